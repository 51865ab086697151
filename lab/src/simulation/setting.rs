//! The values that a seed draws: the number of processes, the kind of store, and the faults.

use std::time::Duration;

use distlock::{Capabilities, Fairness, Wakeup};
use fastrand::Rng;

/// Longest delay of a request.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(4);

/// Time without an answer after which a connection is given up: the bound of each request of a
/// store.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);

/// Longest TTL.
pub(super) const LONGEST_TTL: Duration = Duration::from_secs(3);

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
            chances,
            pauses: random.bool(),
            kills: random.u32(0..3) == 0,
            cuts: random.bool(),
            outages: random.u32(0..3) == 0,
            forced: random.u32(0..3) == 0,
            pushes_losses: random.bool(),
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
        self.store_queue && !self.hand_over
    }
}
