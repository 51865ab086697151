//! The line of waiters: in order, nobody forgotten, nobody waited for in vain.

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
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// One who wants the lock, driven by hand.
struct Waiter {
    request: AcquireRequest,
    place: Option<QueueEntry>,
    /// Sits in `wait`.
    waiting: bool,
    /// When its own timer ends the sleep.
    timer: Moment,
    bell: Arc<Bell>,
    heard: usize,
}

struct Scene {
    table: Table,
    now: Moment,
    name: LockName,
}

impl Scene {
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

    fn waiter(&self) -> Waiter {
        let request = self.request();
        let place = self.table.join(&self.name, request.owner);
        Waiter {
            request,
            place: Some(place),
            waiting: false,
            timer: self.now,
            bell: Arc::default(),
            heard: 0,
        }
    }

    fn hold(&self) -> Lease {
        let request = self.request();
        self.take(&request).expect("the lock is free")
    }

    fn take(&self, request: &AcquireRequest) -> Option<Lease> {
        let token = self.table.try_acquire(self.now(), request, None).unwrap();
        token.acquired().map(|token| lease(request, token))
    }

    /// An attempt; on success the place is gone.
    fn attempt(&self, waiter: &mut Waiter) -> Option<Lease> {
        match self
            .table
            .try_acquire(self.now(), &waiter.request, waiter.place)
            .unwrap()
        {
            Attempt::Acquired(token) => {
                waiter.place = None;
                Some(lease(&waiter.request, token))
            }
            Attempt::Busy(_) => None,
        }
    }

    /// Enters `wait`, as the shell does. `false` = it is to ask at once.
    fn sit_down(&self, waiter: &mut Waiter) -> bool {
        let place = waiter.place.unwrap();
        waiter.waiting = false;
        let Armed::Sleep(pause) = self.table.arm(self.now, &self.name, place) else {
            return false;
        };
        waiter.timer = self.now + pause;
        waiter.waiting = !self.listen(waiter);
        waiter.waiting
    }

    fn listen(&self, waiter: &mut Waiter) -> bool {
        waiter.heard = waiter.bell.0.load(Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&waiter.bell));
        self.table.listen(&self.name, waiter.place.unwrap(), &waker)
    }

    /// Whether `wait` would end now: an executor polls only whom a waker or a timer has touched.
    fn rings(&self, waiter: &mut Waiter) -> bool {
        assert!(waiter.waiting);
        let touched = waiter.bell.0.load(Ordering::SeqCst) > waiter.heard;
        if touched && self.listen(waiter) {
            waiter.waiting = false;
        } else if self.now >= waiter.timer {
            self.sit_down(waiter);
        }
        !waiter.waiting
    }

    fn walk_away(&self, waiter: &mut Waiter) {
        self.table
            .interrupt_wait(self.now, &self.name, waiter.place.unwrap());
        waiter.waiting = false;
    }

    fn leave(&self, waiter: &mut Waiter) {
        if let Some(place) = waiter.place.take() {
            self.table.leave(self.now, &self.name, place);
        }
        waiter.waiting = false;
    }
}

fn lease(request: &AcquireRequest, token: FencingToken) -> Lease {
    Lease::new(request.name.clone(), request.owner, Some(token))
}

fn freed(outcome: ReleaseOutcome) -> bool {
    match outcome {
        ReleaseOutcome::Released { others_waiting } => others_waiting.unwrap(),
        ReleaseOutcome::NotHeld => panic!("not held"),
    }
}

#[test]
fn a_release_wakes_one_and_that_one_is_next() {
    let scene = Scene::new();
    let held = scene.hold();
    let (mut first, mut second) = (scene.waiter(), scene.waiter());
    assert!(scene.sit_down(&mut first) && scene.sit_down(&mut second));
    assert_eq!(scene.table.inspect(scene.now, &scene.name).waiters, Some(2));
    assert!(freed(scene.table.release(scene.now, &held)));
    assert!(scene.rings(&mut first) && !scene.rings(&mut second));
    // Neither a newcomer nor the second gets in between.
    assert!(scene.take(&scene.request()).is_none());
    assert!(scene.attempt(&mut second).is_none());
    let held = scene.attempt(&mut first).unwrap();
    assert!(scene.sit_down(&mut second));
    assert!(freed(scene.table.release(scene.now, &held)));
    assert!(scene.rings(&mut second));
    let held = scene.attempt(&mut second).unwrap();
    assert!(!freed(scene.table.release(scene.now, &held)));
    assert!(scene.take(&scene.request()).is_some());
}

#[test]
fn only_waiters_of_that_name_are_woken() {
    let scene = Scene::new();
    let held = scene.hold();

    let elsewhere = LockName::new("m").unwrap();
    let place = scene.table.join(&elsewhere, OwnerId::new());
    let bell = Arc::new(Bell::default());
    assert!(
        !scene
            .table
            .listen(&elsewhere, place, &Waker::from(Arc::clone(&bell)))
    );
    assert!(!freed(scene.table.release(scene.now, &held)));
    assert_eq!(bell.0.load(Ordering::SeqCst), 0);
}

#[test]
fn a_wake_up_is_passed_on_by_those_who_give_up() {
    let scene = Scene::new();
    let held = scene.hold();
    let mut waiters: Vec<_> = (0..3).map(|_| scene.waiter()).collect();
    for waiter in &mut waiters {
        assert!(scene.sit_down(waiter));
    }
    scene.table.release(scene.now, &held);
    // One leaves after it was woken, one just stops waiting.
    scene.leave(&mut waiters[0]);
    assert!(scene.rings(&mut waiters[1]));
    waiters[1].waiting = true;
    scene.walk_away(&mut waiters[1]);
    assert!(scene.rings(&mut waiters[2]));
    let held = scene.attempt(&mut waiters[2]).unwrap();
    // The one who only stopped waiting has kept its place.
    assert!(!freed(scene.table.release(scene.now, &held)));
    assert!(scene.attempt(&mut waiters[1]).is_some());
}

#[test]
fn a_wake_up_that_nobody_received_is_kept() {
    let scene = Scene::new();
    let held = scene.hold();
    let mut waiter = scene.waiter();
    scene.table.release(scene.now, &held);
    assert!(!scene.sit_down(&mut waiter), "asks at once");
    let held = scene.attempt(&mut waiter).unwrap();
    let mut waiter = scene.waiter();
    assert!(scene.sit_down(&mut waiter));
    scene.table.release(scene.now, &held);
    scene.walk_away(&mut waiter);
    assert!(scene.take(&scene.request()).is_some(), "nobody waits");
    assert!(!scene.sit_down(&mut waiter), "it was woken before");
    assert!(scene.attempt(&mut waiter).is_none());
    assert!(scene.sit_down(&mut waiter));
}

#[test]
fn one_who_does_not_come_is_passed_over() {
    let mut scene = Scene::new();
    let held = scene.hold();
    let (mut stuck, mut next) = (scene.waiter(), scene.waiter());
    assert!(scene.sit_down(&mut stuck) && scene.sit_down(&mut next));
    scene.table.release(scene.now, &held);
    assert!(scene.attempt(&mut next).is_none());
    // Its own timer is now the end of the grace.
    assert!(scene.sit_down(&mut next));
    scene.now = next.timer;
    assert!(scene.rings(&mut next));
    let held = scene.attempt(&mut next).unwrap();
    // Back again, it is the first in line.
    let mut late = scene.waiter();
    assert!(scene.attempt(&mut stuck).is_none());
    assert!(scene.sit_down(&mut stuck) && scene.sit_down(&mut late));
    scene.table.release(scene.now, &held);
    assert!(scene.rings(&mut stuck) && !scene.rings(&mut late));
}

#[test]
fn an_expired_lock_goes_to_the_first_in_line() {
    let mut scene = Scene::new();
    scene.hold();
    let (mut first, mut second) = (scene.waiter(), scene.waiter());
    assert!(scene.sit_down(&mut first) && scene.sit_down(&mut second));
    scene.now = first.timer;
    // Both timers end; the second looks first and only has the first one called.
    assert!(!scene.rings(&mut second));
    assert!(scene.rings(&mut first));
    assert!(scene.attempt(&mut first).is_some());
}

#[test]
fn a_hand_over_wakes_the_one_who_got_it() {
    let scene = Scene::new();
    let held = scene.hold();
    let (mut first, mut second) = (scene.waiter(), scene.waiter());
    assert!(scene.sit_down(&mut first) && scene.sit_down(&mut second));
    let token = scene
        .table
        .hand_over(scene.now(), &held, &second.request)
        .unwrap()
        .unwrap();
    assert!(scene.rings(&mut second) && !scene.rings(&mut first));
    assert_eq!(scene.attempt(&mut second).unwrap().token, Some(token));
    assert_eq!(scene.table.inspect(scene.now, &scene.name).waiters, Some(1));
}

#[test]
fn a_forced_release_wakes_too() {
    let scene = Scene::new();
    let held = scene.hold();
    let mut waiter = scene.waiter();
    assert!(scene.sit_down(&mut waiter));
    scene
        .table
        .force_release(scene.now, &scene.name, held.token.unwrap());
    assert!(scene.rings(&mut waiter));
}

#[derive(Clone, Debug)]
enum Act {
    Join,
    Attempt(usize),
    SitDown(usize),
    WalkAway(usize),
    Leave(usize),
    Newcomer,
    Release,
    Time(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let who = || 0usize..8;
    let act = prop_oneof![
        3 => Just(Act::Join),
        4 => who().prop_map(Act::Attempt),
        4 => who().prop_map(Act::SitDown),
        2 => who().prop_map(Act::WalkAway),
        1 => who().prop_map(Act::Leave),
        1 => Just(Act::Newcomer),
        3 => Just(Act::Release),
        1 => (0u64..TTL + 10).prop_map(Act::Time),
    ];
    prop::collection::vec(act, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// After any history: if the lock is freed and everybody who sits waiting does what waiters do, each gets its turn, in the
    /// order of joining, without time passing except for those who were called and did not come.
    #[test]
    fn everybody_who_waits_is_served_in_order(acts in acts()) {
        let mut scene = Scene::new();
        let mut waiters: Vec<Waiter> = Vec::new();
        let mut held: Option<(Lease, Moment)> = None;
        let live = |scene: &Scene, held: &Option<(Lease, Moment)>| {
            held.as_ref().is_some_and(|(_, until)| scene.now < *until)
        };
        for act in acts {
            match act {
                Act::Join => {
                    if waiters.len() < 8 {
                        waiters.push(scene.waiter());
                    }
                }
                Act::Attempt(who) => {
                    if let Some(waiter) = waiters.get_mut(who).filter(|w| w.place.is_some() && !w.waiting)
                        && let Some(lease) = scene.attempt(waiter)
                    {
                        prop_assert!(!live(&scene, &held), "exclusion");
                        held = Some((lease, scene.now + Duration::from_millis(TTL)));
                    }
                }
                Act::SitDown(who) => {
                    if let Some(waiter) = waiters.get_mut(who).filter(|w| w.place.is_some() && !w.waiting) {
                        scene.sit_down(waiter);
                    }
                }
                Act::WalkAway(who) => {
                    if let Some(waiter) = waiters.get_mut(who).filter(|w| w.waiting) {
                        scene.walk_away(waiter);
                    }
                }
                Act::Leave(who) => {
                    if let Some(waiter) = waiters.get_mut(who) {
                        scene.leave(waiter);
                    }
                }
                Act::Newcomer => {
                    if let Some(lease) = scene.take(&scene.request()) {
                        prop_assert!(!live(&scene, &held), "exclusion");
                        held = Some((lease, scene.now + Duration::from_millis(TTL)));
                    }
                }
                Act::Release => {
                    if let Some((lease, _)) = held.take() {
                        scene.table.release(scene.now, &lease);
                    }
                }
                Act::Time(by) => scene.now = scene.now + Duration::from_millis(by),
            }
        }

        // Those who are neither waiting nor gone do nothing from here on: they are stuck, and cost one grace each at most.
        let stuck = waiters.iter().filter(|w| w.place.is_some() && !w.waiting).count();
        let start = scene.now;
        if let Some((lease, _)) = held.take() {
            scene.table.release(scene.now, &lease);
        }
        let mut order = Vec::new();
        let mut rounds = 0;
        while waiters.iter().any(|w| w.waiting) {
            let mut quiet = true;
            rounds += 1;
            prop_assert!(rounds < 10_000, "nobody gets anywhere");
            for waiter in &mut waiters {
                if !waiter.waiting || !scene.rings(waiter) {
                    continue;
                }
                quiet = false;
                match scene.attempt(waiter) {
                    Some(lease) => {
                        order.push(lease.owner);
                        scene.table.release(scene.now, &lease);
                    }
                    None => {
                        scene.sit_down(waiter);
                    }
                }
            }
            if quiet {
                let timers = waiters.iter().filter(|w| w.waiting).map(|w| w.timer);
                let next = timers.min().unwrap();
                // What the shell's patrol does for those whose timer is far away.
                scene.now = next.min(scene.now + Duration::from_secs(1));
                for waiter in waiters.iter_mut().filter(|w| w.waiting) {
                    waiter.timer = waiter.timer.min(scene.now);
                }
            }
        }
        let waited = scene.now.since(start);
        prop_assert!(
            waited <= Duration::from_millis(1500) * u32::try_from(stuck).unwrap(),
            "{stuck} stuck ones delayed the others by {waited:?}"
        );
        // In the order of joining, which is the order in the list.
        let expected: Vec<_> = waiters
            .iter()
            .map(|w| w.request.owner)
            .filter(|owner| order.contains(owner))
            .collect();
        if stuck == 0 {
            prop_assert_eq!(order, expected);
        }
        for waiter in &mut waiters {
            scene.leave(waiter);
        }
        prop_assert_eq!(scene.table.inspect(scene.now, &scene.name).waiters, Some(0));
        prop_assert!(scene.take(&scene.request()).is_some());
    }
}
