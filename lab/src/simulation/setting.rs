//! The values that a seed draws: the number of processes, the kind of store, and the faults.

use std::time::Duration;

use distlock::{Capabilities, Fairness, Wakeup};
use fastrand::Rng;

use super::{
    store::SimulatedStore,
    time::{MachineClock, Timeline},
};

/// Longest delay of a request.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(4);

/// Time without an answer after which a connection is given up: the bound of each request of a
/// store.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);

/// Longest TTL.
pub(super) const LONGEST_TTL: Duration = Duration::from_secs(3);

/// Longest time for which a task holds a lock, unless the setting has another one.
pub(super) const LONGEST_HOLD: Duration = Duration::from_millis(3_500);

/// The setting of one run.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) processes: usize,
    /// Number of tasks of each process that take locks.
    pub(super) tasks: usize,
    pub(super) locks: usize,
    /// Whether waiters join a store queue and get notifications. Otherwise waiters poll.
    pub(super) store_queue: bool,
    /// Whether the store supports the hand-over.
    pub(super) hand_over: bool,
    pub(super) hand_over_limit: u32,
    /// Length of the phase of faults.
    pub(super) fault_time: Duration,
    /// The longest time for which a task holds a lock during the faults.
    pub(super) longest_hold: Duration,
    pub(super) chances: Chances,
    /// Whether processes are paused.
    pub(super) pauses: bool,
    /// Whether processes are killed and replaced.
    pub(super) kills: bool,
    /// Whether single processes lose their connection to the store for a while.
    pub(super) cuts: bool,
    /// Whether all processes lose their connection to the store for a while.
    pub(super) outages: bool,
    /// Whether locks are force-released.
    pub(super) forced: bool,
    /// Whether the store later notifies the holder of a force-released lock.
    pub(super) pushes_losses: bool,
    /// The quorum in whose members the locks are. `None`: they are in one store.
    pub(super) quorum: Option<QuorumSetting>,
    /// The ring in whose members the locks are.
    pub(super) ring: Option<RingSetting>,
}

/// Where the locks of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    OneStore,
    Quorum,
    Ring,
}

/// The quorum of one run.
#[derive(Clone, Debug)]
pub(super) struct QuorumSetting {
    /// The number of stores. The first ones are the members.
    pub(super) stores: usize,
    /// The number of members.
    pub(super) listed: usize,
    pub(super) max_lease: Duration,
    /// Whether an operator makes the quorum. Otherwise the first client does.
    pub(super) made: bool,
    /// Whether members forget.
    pub(super) forgets: bool,
    /// Whether the clock of one member is an hour ahead.
    pub(super) fast_clock: bool,
}

/// The ring of one run.
#[derive(Clone, Debug)]
pub(super) struct RingSetting {
    /// The number of members that can be active. The store after them is the ring store.
    pub(super) members: usize,
    pub(super) validity: Duration,
    pub(super) max_lease: Duration,
    /// The number of administrators who change the members.
    pub(super) administrators: usize,
    /// Whether a watch removes members that do not answer.
    pub(super) watched: bool,
    /// Whether administrators die after a write.
    pub(super) deaths: bool,
    /// Whether a write at the ring store can be seen only some time after its age has begun.
    pub(super) stalls: bool,
    /// Whether the clock of one member is an hour ahead.
    pub(super) fast_clock: bool,
}

/// The number of affected requests among a thousand, for each kind of fault.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chances {
    pub(super) request_lost: u32,
    pub(super) answer_lost: u32,
    pub(super) refused: u32,
    pub(super) late: u32,
    pub(super) twice: u32,
    pub(super) wake_up_lost: u32,
}

impl Setting {
    /// Draws all values of a run.
    pub(super) fn draw(random: &mut Rng) -> Self {
        // Many runs have no fault of a kind, and a few runs have very many. Some bugs show only
        // without the other faults.
        let mut chance = |most: u32| match random.u32(0..8) {
            0..4 => 0,
            4..7 => random.u32(1..=most),
            _ => random.u32(most..=4 * most),
        };
        let chances = Chances {
            request_lost: chance(50),
            answer_lost: chance(80),
            refused: chance(50),
            late: chance(80),
            twice: chance(50),
            wake_up_lost: chance(200),
        };
        Self {
            processes: random.usize(2..=3),
            tasks: random.usize(1..=3),
            locks: random.usize(1..=2),
            store_queue: random.bool(),
            hand_over: random.u32(0..3) > 0,
            hand_over_limit: random.u32(0..=4),
            fault_time: Duration::from_millis(random.u64(2_000..=8_000)),
            longest_hold: LONGEST_HOLD,
            chances,
            pauses: random.bool(),
            kills: random.u32(0..3) == 0,
            cuts: random.bool(),
            outages: random.u32(0..3) == 0,
            forced: random.u32(0..3) == 0,
            pushes_losses: random.bool(),
            quorum: None,
            ring: None,
        }
    }

    /// Puts the locks into a quorum, and draws its values.
    pub(super) fn draw_quorum(&mut self, random: &mut Rng) {
        // Two names can be in one shard of a store in memory, which draws the shards by itself, and
        // would then share a counter of tokens.
        self.locks = 1;
        self.hand_over = false;
        self.pushes_losses = false;
        self.fault_time += Duration::from_secs(random.u64(0..=6));
        let listed = if random.u32(0..3) == 0 { 5 } else { 3 };
        self.quorum = Some(QuorumSetting {
            stores: listed,
            listed,
            max_lease: Duration::from_millis(random.u64(1_000..=3_000)),
            made: random.u32(0..4) > 0,
            forgets: random.bool(),
            fast_clock: random.u32(0..4) == 0,
        });
        if random.u32(0..4) == 0 {
            self.move_quorum();
        }
    }

    /// Puts the locks into a ring, and draws its values.
    pub(super) fn draw_ring(&mut self, random: &mut Rng) {
        // As in a quorum.
        self.locks = 1;
        self.pushes_losses = false;
        self.fault_time += Duration::from_secs(random.u64(8..=20));
        // Longer than a quarantine.
        self.longest_hold = Duration::from_secs(8);
        self.ring = Some(RingSetting {
            members: random.usize(2..=5),
            validity: Duration::from_millis(random.u64(400..=2_500)),
            max_lease: Duration::from_millis(random.u64(1_000..=2_500)),
            administrators: if random.u32(0..4) == 0 { 2 } else { 1 },
            watched: random.u32(0..4) == 0,
            deaths: random.bool(),
            stalls: random.bool(),
            fast_clock: random.u32(0..4) == 0,
        });
    }

    /// Has members of the quorum forget.
    pub(super) fn forget(&mut self) {
        self.longest_hold = LONGEST_HOLD;
        if let Some(quorum) = &mut self.quorum {
            (quorum.stores, quorum.forgets, quorum.fast_clock) = (quorum.listed, true, false);
        }
    }

    /// Has the quorum moved to other members, while a lock may be held for longer than that takes.
    pub(super) fn move_quorum(&mut self) {
        if let Some(quorum) = &mut self.quorum {
            (quorum.listed, quorum.stores) = (3, 5);
            (quorum.forgets, quorum.fast_clock) = (false, false);
            self.longest_hold = Duration::from_secs(15);
            self.fault_time = self.fault_time.max(Duration::from_secs(12));
        }
    }

    /// Returns the capabilities of the store in this run: the store's own capabilities, without
    /// those that the setting removes.
    pub(super) fn capabilities(&self, own: &Capabilities) -> Capabilities {
        let mut promised = own.clone();
        promised.hand_over = self.hand_over;
        if !self.store_queue {
            promised.fairness = Fairness::None;
            promised.wakeup = Wakeup::Poll;
        }
        promised
    }

    /// Tells whether the tasks of a process wait at the store, which then decides their order.
    pub(super) const fn store_orders_tasks(&self) -> bool {
        self.store_queue && !self.hand_over && self.quorum.is_none()
    }
}

impl QuorumSetting {
    /// Tells whether an operator moves the quorum from the first members to the last ones.
    pub(super) const fn moves(&self) -> bool {
        self.stores > self.listed
    }

    /// Returns the time for which a member that has forgotten is silent.
    pub(super) fn silence(&self) -> Duration {
        self.max_lease * 5 / 4
    }

    /// Creates the stores. Their clocks agree well enough to vote together, but for the fast one.
    pub(super) fn new_stores(&self, time: &Timeline, random: &mut Rng) -> Vec<SimulatedStore> {
        let fast = self.fast_clock.then_some(self.stores);
        new_stores(self.stores, self.max_lease / 6, fast, time, random)
    }
}

impl RingSetting {
    /// Returns the longest time from the sending of a read of the view to the end of a lease that
    /// the answer allows.
    pub(super) fn bound(&self) -> Duration {
        self.validity + self.max_lease
    }

    /// Creates the members and the ring store. Their clocks agree within the documented bound, but
    /// for the fast one of a member.
    pub(super) fn new_stores(&self, time: &Timeline, random: &mut Rng) -> Vec<SimulatedStore> {
        let fast = self.fast_clock.then_some(self.members);
        new_stores(self.members + 1, self.max_lease / 4, fast, time, random)
    }
}

/// Creates stores whose clocks differ by at most `spread`. If `fast` is a number, the clock of one
/// of so many first stores is an hour ahead.
fn new_stores(
    count: usize,
    spread: Duration,
    fast: Option<usize>,
    time: &Timeline,
    random: &mut Rng,
) -> Vec<SimulatedStore> {
    let common = Duration::from_secs(random.u64(1_000..1_000_000));
    let spread = u64::try_from(spread.as_micros()).unwrap_or_default();
    let fast = fast.map(|first| random.usize(0..first));
    let stores = (0..count).map(|number| {
        let mut start = common + Duration::from_micros(random.u64(0..=spread));
        if fast == Some(number) {
            start += Duration::from_secs(3_600);
        }
        let error = random.i32(-200..=200);
        let clock = MachineClock::new(time.clone(), start, error);
        SimulatedStore::new(clock, fast == Some(number))
    });
    stores.collect()
}
