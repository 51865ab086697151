//! The meaning of a seed: how many take part, over which kind of store, and what goes wrong.

use std::time::Duration;

use distlock::{Capabilities, Fairness, Wakeup};
use fastrand::Rng;

/// No request takes longer on its way than this.
pub(super) const LATEST: Duration = Duration::from_secs(4);

/// A connection is given up when nothing was heard for this long: the bound that each request of a
/// store has.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);

/// No lease is longer than this.
pub(super) const LONGEST_TTL: Duration = Duration::from_secs(3);

/// The shape of one run.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) processes: usize,
    /// Tasks of each process that take locks.
    pub(super) tasks: usize,
    pub(super) locks: usize,
    /// Whether those who wait stand in line at the store, and are told. Otherwise they ask again
    /// and again.
    pub(super) store_queue: bool,
    /// Whether the store passes a lock on in one step.
    pub(super) hand_over: bool,
    pub(super) hand_over_limit: u32,
    /// How long things go wrong.
    pub(super) fault_time: Duration,
    pub(super) chances: Chances,
    /// Whole processes stand still.
    pub(super) pauses: bool,
    /// Processes are killed, and new ones started.
    pub(super) kills: bool,
    /// A process cannot reach the store for a while.
    pub(super) cuts: bool,
    /// Nobody can reach the store for a while.
    pub(super) outages: bool,
    /// Locks are taken away from their holders by hand.
    pub(super) forced: bool,
    /// Whether the store tells the holder of that, later.
    pub(super) pushes_losses: bool,
}

/// So many requests of a thousand.
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
    pub(super) fn draw(random: &mut Rng) -> Self {
        // Each kind of fault is left out of many runs, and the rule in a few: some bugs show only
        // without the others.
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
            chances,
            pauses: random.bool(),
            kills: random.u32(0..3) == 0,
            cuts: random.bool(),
            outages: random.u32(0..3) == 0,
            forced: random.u32(0..3) == 0,
            pushes_losses: random.bool(),
        }
    }

    /// The promises of the store in this run: its own, less those that it is kept from.
    pub(super) fn capabilities(&self, own: &Capabilities) -> Capabilities {
        let mut promised = own.clone();
        promised.hand_over = self.hand_over;
        if !self.store_queue {
            promised.fairness = Fairness::None;
            promised.wakeup = Wakeup::Poll;
        }
        promised
    }

    /// Whether several tasks of a process wait at the store, in an order of the store's.
    pub(super) const fn store_orders_tasks(&self) -> bool {
        self.store_queue && !self.hand_over
    }
}
