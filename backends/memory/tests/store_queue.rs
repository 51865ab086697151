//! The store queue: contenders are served in order, each of them is served, and a contender that
//! has left delays no other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use distlock_core::{
    AcquireRequest, Attempt, FencingToken, HolderLabel, Lease, LockName, Moment, OwnerId,
    ReleaseOutcome, Ttl,
};
use distlock_memory::{Armed, Now, QueueEntry, Table};
use proptest::prelude::*;

const TTL: u64 = 10_000;

#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A contender, run by the test step by step.
struct Waiter {
    request: AcquireRequest,
    entry: Option<QueueEntry>,
    /// Whether the contender is inside `wait`.
    waiting: bool,
    /// The moment at which the contender's sleep ends without a wake-up.
    timer: Moment,
    waker: Arc<CountingWaker>,
    /// The number of wakes that the last poll had seen.
    wakes_seen: usize,
}

impl Waiter {
    /// Returns whether the contender has a queue entry and is not inside `wait`.
    fn is_idle(&self) -> bool {
        self.entry.is_some() && !self.waiting
    }
}

struct Fixture {
    table: Table,
    now: Moment,
    name: LockName,
}

impl Fixture {
    fn new() -> Self {
        Self {
            table: Table::new(),
            now: Moment::from_boot(Duration::from_secs(100)),
            name: LockName::new("l").unwrap(),
        }
    }

    fn now(&self) -> Now {
        Now {
            boot: self.now,
            wall_micros: 1,
        }
    }

    fn request(&self) -> AcquireRequest {
        AcquireRequest::new(
            self.name.clone(),
            OwnerId::new(),
            Ttl::from_millis(TTL).unwrap(),
            HolderLabel::new("x").unwrap(),
        )
    }

    /// Adds a contender to the queue.
    fn join_as_waiter(&self) -> Waiter {
        let request = self.request();
        let entry = self.table.join(&request);
        Waiter {
            request,
            entry: Some(entry),
            waiting: false,
            timer: self.now,
            waker: Arc::default(),
            wakes_seen: 0,
        }
    }

    /// Acquires the lock, which must be free, as a new owner.
    fn acquire(&self) -> Lease {
        let request = self.request();
        self.try_acquire(&request).expect("the lock is free")
    }

    /// Makes an attempt without a queue entry.
    fn try_acquire(&self, request: &AcquireRequest) -> Option<Lease> {
        let token = self.table.try_acquire(self.now(), request, None).unwrap();
        token.acquired().map(|token| lease(request, token))
    }

    /// Makes an attempt with a queue entry. A success removes the entry.
    fn attempt(&self, waiter: &mut Waiter) -> Option<Lease> {
        match self
            .table
            .try_acquire(self.now(), &waiter.request, waiter.entry)
            .unwrap()
        {
            Attempt::Acquired(token) => {
                waiter.entry = None;
                Some(lease(&waiter.request, token))
            }
            Attempt::Busy(_) => None,
        }
    }

    /// Starts a wait like `MemoryContender::wait`. Returns `false` if the contender must make an
    /// attempt at once.
    fn start_waiting(&self, waiter: &mut Waiter) -> bool {
        let entry = waiter.entry.unwrap();
        waiter.waiting = false;
        let Armed::Sleep(pause) = self.table.arm(self.now, &self.name, entry) else {
            return false;
        };
        waiter.timer = self.now + pause;
        waiter.waiting = !self.listen(waiter);
        waiter.waiting
    }

    /// Polls the wait. Returns whether the contender was woken.
    fn listen(&self, waiter: &mut Waiter) -> bool {
        waiter.wakes_seen = waiter.waker.0.load(Ordering::SeqCst);
        let entry = waiter.entry.unwrap();
        let waker = Waker::from(Arc::clone(&waiter.waker));
        self.table.listen(&self.name, entry, &waker)
    }

    /// Ends or continues the wait. Returns whether the wait has ended. As with an executor, the
    /// wait is polled only after its waker was called or its timer has fired.
    fn wait_ends(&self, waiter: &mut Waiter) -> bool {
        assert!(waiter.waiting);
        let touched = waiter.waker.0.load(Ordering::SeqCst) > waiter.wakes_seen;
        if touched && self.listen(waiter) {
            waiter.waiting = false;
        } else if self.now >= waiter.timer {
            self.start_waiting(waiter);
        }
        !waiter.waiting
    }

    fn interrupt_wait(&self, waiter: &mut Waiter) {
        self.table
            .interrupt_wait(self.now, &self.name, waiter.entry.unwrap());
        waiter.waiting = false;
    }

    fn leave(&self, waiter: &mut Waiter) {
        if let Some(entry) = waiter.entry.take() {
            self.table.leave(self.now, &self.name, entry);
        }
        waiter.waiting = false;
    }
}

fn lease(request: &AcquireRequest, token: FencingToken) -> Lease {
    Lease::new(request.name.clone(), request.owner, Some(token))
}

/// Returns whether a contender still waits after this release, which must have freed the lock.
fn others_wait_after(outcome: ReleaseOutcome) -> bool {
    match outcome {
        ReleaseOutcome::Released { others_waiting } => others_waiting.unwrap(),
        ReleaseOutcome::NotHeld => panic!("not held"),
    }
}

#[test]
fn contenders_far_behind_look_at_the_queue_seldom() {
    let fixture = Fixture::new();
    let mut request = fixture.request();
    request.ttl = Ttl::from_millis(60_000).unwrap();
    fixture.try_acquire(&request).expect("the lock is free");
    let mut sleeps = Vec::new();
    for _ in 0..200 {
        let mut waiter = fixture.join_as_waiter();
        assert!(fixture.start_waiting(&mut waiter));
        sleeps.push(waiter.timer.since(fixture.now).as_secs());
    }
    assert_eq!((sleeps[0], sleeps[15], sleeps[16]), (1, 1, 2));
    assert_eq!((sleeps[159], sleeps[160], sleeps[199]), (19, 20, 20));
    assert!(sleeps.is_sorted());
}

#[test]
fn a_release_wakes_the_first_contender_only() {
    let fixture = Fixture::new();
    let held = fixture.acquire();
    let (mut first, mut second) = (fixture.join_as_waiter(), fixture.join_as_waiter());
    assert!(fixture.start_waiting(&mut first) && fixture.start_waiting(&mut second));
    assert_eq!(
        fixture.table.inspect(fixture.now, &fixture.name).waiters,
        Some(2)
    );
    assert!(others_wait_after(fixture.table.release(fixture.now, &held)));
    assert!(fixture.wait_ends(&mut first) && !fixture.wait_ends(&mut second));
    // Between the wake-up and the attempt of the first contender, no other caller gets the lock.
    assert!(fixture.try_acquire(&fixture.request()).is_none());
    assert!(fixture.attempt(&mut second).is_none());
    let held = fixture.attempt(&mut first).unwrap();
    assert!(fixture.start_waiting(&mut second));
    assert!(others_wait_after(fixture.table.release(fixture.now, &held)));
    assert!(fixture.wait_ends(&mut second));
    let held = fixture.attempt(&mut second).unwrap();
    assert!(!others_wait_after(
        fixture.table.release(fixture.now, &held)
    ));
    assert!(fixture.try_acquire(&fixture.request()).is_some());
}

#[test]
fn a_release_wakes_no_contender_of_another_name() {
    let fixture = Fixture::new();
    let held = fixture.acquire();

    let elsewhere = LockName::new("m").unwrap();
    let mut request = fixture.request();
    request.name = elsewhere.clone();
    let entry = fixture.table.join(&request);
    let waker = Arc::new(CountingWaker::default());
    assert!(
        !fixture
            .table
            .listen(&elsewhere, entry, &Waker::from(Arc::clone(&waker)))
    );
    assert!(!others_wait_after(
        fixture.table.release(fixture.now, &held)
    ));
    assert_eq!(waker.0.load(Ordering::SeqCst), 0);
}

#[test]
fn a_contender_that_leaves_passes_its_wake_up_on() {
    let fixture = Fixture::new();
    let held = fixture.acquire();
    let mut waiters: Vec<_> = (0..3).map(|_| fixture.join_as_waiter()).collect();
    for waiter in &mut waiters {
        assert!(fixture.start_waiting(waiter));
    }
    fixture.table.release(fixture.now, &held);
    // The first contender leaves after it was woken. The wait of the second contender is dropped.
    fixture.leave(&mut waiters[0]);
    assert!(fixture.wait_ends(&mut waiters[1]));
    waiters[1].waiting = true;
    fixture.interrupt_wait(&mut waiters[1]);
    assert!(fixture.wait_ends(&mut waiters[2]));
    let held = fixture.attempt(&mut waiters[2]).unwrap();
    // The contender that dropped its wait still has its queue entry.
    assert!(!others_wait_after(
        fixture.table.release(fixture.now, &held)
    ));
    assert!(fixture.attempt(&mut waiters[1]).is_some());
}

#[test]
fn a_wake_up_outlives_a_dropped_wait() {
    let fixture = Fixture::new();
    let held = fixture.acquire();
    let mut waiter = fixture.join_as_waiter();
    fixture.table.release(fixture.now, &held);
    assert!(!fixture.start_waiting(&mut waiter), "asks at once");
    let held = fixture.attempt(&mut waiter).unwrap();
    let mut waiter = fixture.join_as_waiter();
    assert!(fixture.start_waiting(&mut waiter));
    fixture.table.release(fixture.now, &held);
    fixture.interrupt_wait(&mut waiter);
    assert!(
        fixture.try_acquire(&fixture.request()).is_some(),
        "nobody waits"
    );
    assert!(!fixture.start_waiting(&mut waiter), "it was woken before");
    assert!(fixture.attempt(&mut waiter).is_none());
    assert!(fixture.start_waiting(&mut waiter));
}

#[test]
fn a_contender_that_misses_its_turn_is_skipped() {
    let mut fixture = Fixture::new();
    let held = fixture.acquire();
    let (mut stuck, mut next) = (fixture.join_as_waiter(), fixture.join_as_waiter());
    assert!(fixture.start_waiting(&mut stuck) && fixture.start_waiting(&mut next));
    fixture.table.release(fixture.now, &held);
    assert!(fixture.attempt(&mut next).is_none());
    // The timer of the next contender now fires at the end of the reservation.
    assert!(fixture.start_waiting(&mut next));
    fixture.now = next.timer;
    assert!(fixture.wait_ends(&mut next));
    let held = fixture.attempt(&mut next).unwrap();
    // A skipped contender is again the first after its next call.
    let mut late = fixture.join_as_waiter();
    assert!(fixture.attempt(&mut stuck).is_none());
    assert!(fixture.start_waiting(&mut stuck) && fixture.start_waiting(&mut late));
    fixture.table.release(fixture.now, &held);
    assert!(fixture.wait_ends(&mut stuck) && !fixture.wait_ends(&mut late));
}

#[test]
fn an_expired_lock_goes_to_the_first_contender() {
    let mut fixture = Fixture::new();
    fixture.acquire();
    let (mut first, mut second) = (fixture.join_as_waiter(), fixture.join_as_waiter());
    assert!(fixture.start_waiting(&mut first) && fixture.start_waiting(&mut second));
    fixture.now = fixture.now + Duration::from_millis(TTL);
    // Both timers fire. The second contender calls `arm` first. That call gives the turn to the
    // first contender.
    assert!(!fixture.wait_ends(&mut second));
    assert!(fixture.wait_ends(&mut first));
    assert!(fixture.attempt(&mut first).is_some());
}

#[test]
fn a_hand_over_wakes_the_new_owner() {
    let fixture = Fixture::new();
    let held = fixture.acquire();
    let (mut first, mut second) = (fixture.join_as_waiter(), fixture.join_as_waiter());
    assert!(fixture.start_waiting(&mut first) && fixture.start_waiting(&mut second));
    let token = fixture
        .table
        .hand_over(fixture.now(), &held, &second.request)
        .unwrap()
        .unwrap();
    assert!(fixture.wait_ends(&mut second) && !fixture.wait_ends(&mut first));
    assert_eq!(fixture.attempt(&mut second).unwrap().token, Some(token));
    assert_eq!(
        fixture.table.inspect(fixture.now, &fixture.name).waiters,
        Some(1)
    );
}

#[test]
fn a_forced_release_wakes_a_contender() {
    let fixture = Fixture::new();
    let held = fixture.acquire();
    let mut waiter = fixture.join_as_waiter();
    assert!(fixture.start_waiting(&mut waiter));
    fixture
        .table
        .force_release(fixture.now, &fixture.name, held.token.unwrap());
    assert!(fixture.wait_ends(&mut waiter));
}

/// A step of a random history. The number is the index of a contender.
#[derive(Clone, Debug)]
enum Act {
    Join,
    Attempt(usize),
    StartWaiting(usize),
    InterruptWait(usize),
    Leave(usize),
    NewCaller,
    Release,
    Time(u64),
}

fn any_acts() -> impl Strategy<Value = Vec<Act>> {
    let index = || 0usize..8;
    let act = prop_oneof![
        3 => Just(Act::Join),
        4 => index().prop_map(Act::Attempt),
        4 => index().prop_map(Act::StartWaiting),
        2 => index().prop_map(Act::InterruptWait),
        1 => index().prop_map(Act::Leave),
        1 => Just(Act::NewCaller),
        3 => Just(Act::Release),
        1 => (0u64..TTL + 10).prop_map(Act::Time),
    ];
    prop::collection::vec(act, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// After any history, the lock is freed and all waiting contenders go on as real ones do. Each
    /// of them then gets the lock, in the order of joining. Time passes only for contenders that
    /// miss their turn.
    #[test]
    fn every_contender_is_served_in_order(acts in any_acts()) {
        let mut fixture = Fixture::new();
        let mut waiters: Vec<Waiter> = Vec::new();
        let held = run_acts(&mut fixture, &mut waiters, acts)?;

        // From here on, a contender that neither waits nor left does nothing. Each of these stuck
        // contenders delays the others by at most one reservation and one sleep.
        let stuck = waiters.iter().filter(|w| w.is_idle()).count();
        let start = fixture.now;
        if let Some(lease) = held {
            fixture.table.release(fixture.now, &lease);
        }
        let order = serve_waiting(&mut fixture, &mut waiters)?;
        let waited = fixture.now.since(start);
        prop_assert!(
            waited <= Duration::from_millis(1500) * u32::try_from(stuck).unwrap(),
            "{stuck} stuck ones delayed the others by {waited:?}"
        );
        // The list of contenders is in the order of joining.
        let expected: Vec<_> = waiters
            .iter()
            .map(|w| w.request.owner)
            .filter(|owner| order.contains(owner))
            .collect();
        if stuck == 0 {
            prop_assert_eq!(order, expected);
        }
        for waiter in &mut waiters {
            fixture.leave(waiter);
        }
        prop_assert_eq!(fixture.table.inspect(fixture.now, &fixture.name).waiters, Some(0));
        prop_assert!(fixture.try_acquire(&fixture.request()).is_some());
    }
}

/// Runs a random history, and checks that no grant overlaps a live lease. Returns the last lease
/// that was not released; it may have expired.
fn run_acts(
    fixture: &mut Fixture,
    waiters: &mut Vec<Waiter>,
    acts: Vec<Act>,
) -> Result<Option<Lease>, TestCaseError> {
    let mut held: Option<(Lease, Moment)> = None;
    let is_live = |fixture: &Fixture, held: &Option<(Lease, Moment)>| {
        held.as_ref().is_some_and(|(_, until)| fixture.now < *until)
    };
    for act in acts {
        match act {
            Act::Join => {
                if waiters.len() < 8 {
                    waiters.push(fixture.join_as_waiter());
                }
            }
            Act::Attempt(index) => {
                if let Some(waiter) = waiters.get_mut(index).filter(|w| w.is_idle())
                    && let Some(lease) = fixture.attempt(waiter)
                {
                    prop_assert!(!is_live(fixture, &held), "exclusion");
                    held = Some((lease, fixture.now + Duration::from_millis(TTL)));
                }
            }
            Act::StartWaiting(index) => {
                if let Some(waiter) = waiters.get_mut(index).filter(|w| w.is_idle()) {
                    fixture.start_waiting(waiter);
                }
            }
            Act::InterruptWait(index) => {
                if let Some(waiter) = waiters.get_mut(index).filter(|w| w.waiting) {
                    fixture.interrupt_wait(waiter);
                }
            }
            Act::Leave(index) => {
                if let Some(waiter) = waiters.get_mut(index) {
                    fixture.leave(waiter);
                }
            }
            Act::NewCaller => {
                if let Some(lease) = fixture.try_acquire(&fixture.request()) {
                    prop_assert!(!is_live(fixture, &held), "exclusion");
                    held = Some((lease, fixture.now + Duration::from_millis(TTL)));
                }
            }
            Act::Release => {
                if let Some((lease, _)) = held.take() {
                    fixture.table.release(fixture.now, &lease);
                }
            }
            Act::Time(by) => fixture.now = fixture.now + Duration::from_millis(by),
        }
    }
    Ok(held.map(|(lease, _)| lease))
}

/// Runs each waiting contender like a real one, until each has got the lock and released it. Time
/// passes only when no contender can go on. Returns the owners in the order of their grants.
fn serve_waiting(
    fixture: &mut Fixture,
    waiters: &mut [Waiter],
) -> Result<Vec<OwnerId>, TestCaseError> {
    let mut order = Vec::new();
    let mut rounds = 0;
    while waiters.iter().any(|w| w.waiting) {
        let mut quiet = true;
        rounds += 1;
        prop_assert!(rounds < 10_000, "no contender makes progress");
        for waiter in &mut *waiters {
            if !waiter.waiting || !fixture.wait_ends(waiter) {
                continue;
            }
            quiet = false;
            match fixture.attempt(waiter) {
                Some(lease) => {
                    order.push(lease.owner);
                    fixture.table.release(fixture.now, &lease);
                }
                None => {
                    fixture.start_waiting(waiter);
                }
            }
        }
        if quiet {
            let timers = waiters.iter().filter(|w| w.waiting).map(|w| w.timer);
            let next = timers.min().unwrap();
            // A real contender calls `arm` at least once per second, even if its timer fires later.
            fixture.now = next.min(fixture.now + Duration::from_secs(1));
            for waiter in waiters.iter_mut().filter(|w| w.waiting) {
                waiter.timer = waiter.timer.min(fixture.now);
            }
        }
    }
    Ok(order)
}
