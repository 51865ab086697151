//! Random histories that are compared with a plain model, and random batches.

use std::collections::HashMap;

use distlock_core::{FencingToken, Forced, HandOver, ReleaseOutcome, Renewal, Renewed};
use proptest::{prelude::*, sample::Index};

use super::*;

/// One step of a random history, on one of few names.
#[derive(Clone, Debug)]
enum Step {
    Acquire(u8),
    /// A step of an owner that was granted a lock, now or earlier.
    Again(Index),
    Renew(Index),
    Release(Index),
    HandOver(Index),
    Force(Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..3).prop_map(Step::Acquire),
        1 => any::<Index>().prop_map(Step::Again),
        2 => any::<Index>().prop_map(Step::Renew),
        2 => any::<Index>().prop_map(Step::Release),
        1 => any::<Index>().prop_map(Step::HandOver),
        1 => any::<Index>().prop_map(Step::Force),
    ]
}

/// The owner of each name in a plain model.
#[derive(Default)]
struct Model {
    now: Duration,
    holders: HashMap<LockName, (OwnerId, Duration)>,
    tokens: HashMap<LockName, FencingToken>,
    granted: Vec<(AcquireRequest, Lease)>,
}

impl Model {
    fn holder(&self, name: &LockName) -> Option<OwnerId> {
        self.holders.get(name).map(|(owner, _)| *owner)
    }

    fn is_held_by(&self, lease: &Lease) -> bool {
        self.holder(&lease.name) == Some(lease.owner)
            && lease.token == self.tokens.get(&lease.name).copied()
    }

    fn pick(&self, index: &Index) -> Option<(AcquireRequest, Lease)> {
        (!self.granted.is_empty()).then(|| index.get(&self.granted).clone())
    }

    fn won(&mut self, request: &AcquireRequest, grant: &Grant) {
        let last = self.tokens.insert(request.name.clone(), grant.token);
        if self.holder(&request.name) != Some(request.owner) {
            assert!(last < Some(grant.token), "{} after {last:?}", grant.token);
        }
        self.lasts(request, request.owner);
        self.granted.push((request.clone(), lease(request, grant)));
    }

    fn lasts(&mut self, request: &AcquireRequest, owner: OwnerId) {
        let until = self.now + request.ttl.duration();
        self.holders.insert(request.name.clone(), (owner, until));
    }
}

async fn history(rounds: Vec<(Vec<Step>, u64)>) {
    let place = Place::new();
    let (clock, shared) = manual();
    let lock = place.open_at(shared).await.lock();
    let mut model = Model::default();
    for (steps, pause) in rounds {
        clock.advance(Duration::from_millis(pause));
        let now = clock.now().since_boot();
        model.now = now;
        model.holders.retain(|_, (_, until)| *until > now);
        for step in steps {
            play(&lock, &mut model, step).await;
        }
    }
}

async fn play(lock: &Arc<dyn DistLock>, model: &mut Model, step: Step) {
    let (request, lease) = match &step {
        Step::Acquire(id) => {
            let request = request(&format!("n{id}"));
            let lease = Lease::new(request.name.clone(), request.owner, None);
            (request, lease)
        }
        Step::Again(index)
        | Step::Renew(index)
        | Step::Release(index)
        | Step::HandOver(index)
        | Step::Force(index) => match model.pick(index) {
            Some(picked) => picked,
            None => return,
        },
    };
    let holder = model.holder(&request.name);
    let ours = model.is_held_by(&lease);
    match step {
        Step::Acquire(_) | Step::Again(_) => {
            let free = holder.is_none_or(|owner| owner == request.owner);
            match lock.try_acquire(&request).await.unwrap() {
                Attempt::Acquired(grant) => {
                    assert!(free, "{} was granted twice", request.name);
                    model.won(&request, &grant);
                }
                Attempt::Busy(_) => assert!(!free, "{} was free", request.name),
            }
        }
        Step::Renew(_) => {
            let renewal = Renewal::plain(request.ttl);
            let renewed = lock.renew(&lease, &renewal).await.unwrap();
            let extended = matches!(renewed, Renewed::Extended { .. });
            assert_eq!(extended, ours, "{renewed:?}");
            if ours {
                model.lasts(&request, lease.owner);
            }
        }
        Step::Release(_) => {
            let outcome = lock.release(&lease).await.unwrap();
            if ours {
                assert!(matches!(outcome, ReleaseOutcome::Released { .. }));
                model.holders.remove(&lease.name);
            }
        }
        Step::HandOver(_) => {
            let mut next = request.clone();
            next.owner = OwnerId::new();
            match lock.hand_over(&lease, &next).await.unwrap() {
                HandOver::Done(grant) => {
                    assert!(ours);
                    model.won(&next, &grant);
                }
                HandOver::NotHeld(_) => assert!(!ours),
                HandOver::Unsupported => panic!("unsupported"),
            }
        }
        Step::Force(_) => {
            let token = lease.token.unwrap();
            let current = holder.is_some() && model.tokens.get(&lease.name) == Some(&token);
            let forced = lock.force_release(&lease.name, token).await.unwrap();
            assert_eq!(forced == Forced::Released, current, "{forced:?}");
            if current {
                model.holders.remove(&lease.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_histories_agree_with_a_plain_model(
        rounds in prop::collection::vec((prop::collection::vec(step(), 1..6), 0u64..6000), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(history(rounds));
    }

    #[test]
    fn every_member_of_a_batch_has_its_own_answer(states in prop::collection::vec(0u8..5, 2..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let place = Place::new();
            let (clock, shared) = manual();
            let lock = place.open_at(shared).await.lock();
            let requests: Vec<_> = (0..states.len()).map(|id| request(&format!("n{id}"))).collect();
            let mut expected = Vec::new();
            // The locks that are to expire are taken first. Then the clock moves, and the other
            // locks are taken.
            for (request, state) in requests.iter().zip(&states) {
                if *state == 3 {
                    let mut stale = request.clone();
                    stale.owner = OwnerId::new();
                    take(&lock, &stale).await;
                }
            }
            clock.advance(Duration::from_secs(10));
            for (request, state) in requests.iter().zip(&states) {
                let mut other = request.clone();
                other.owner = OwnerId::new();
                expected.push(match state {
                    0 | 3 => None,
                    1 => { take(&lock, &other).await; Some(None) }
                    2 => Some(Some(take(&lock, request).await.token)),
                    _ => {
                        let grant = take(&lock, &other).await;
                        lock.release(&lease(&other, &grant)).await.unwrap();
                        None
                    }
                });
            }
            // The tokens are ahead of the wall clock: that is the state after the wall clock was
            // set back.
            place
                .sql(
                    "UPDATE distributed_lock SET token = token + 1000000000 \
                     WHERE holder_id IS NULL AND lock_name LIKE '%1'",
                )
                .await;
            let answers = join_all(requests.iter().map(|request| lock.try_acquire(request))).await;
            for ((request, expected), answer) in requests.iter().zip(expected).zip(answers) {
                match (expected, answer.unwrap()) {
                    (Some(None), Attempt::Busy(Some(holder))) => {
                        assert_eq!(holder.holder, "tester");
                    }
                    (Some(Some(token)), Attempt::Acquired(grant)) => {
                        assert_eq!(grant.token, token, "{}", request.name);
                    }
                    (None, Attempt::Acquired(grant)) => {
                        let info = lock.inspect(&request.name).await.unwrap();
                        assert_eq!(info.last_token, Some(grant.token), "{}", request.name);
                    }
                    (expected, answer) => panic!("{}: {expected:?} but {answer:?}", request.name),
                }
            }
        });
    }
}
