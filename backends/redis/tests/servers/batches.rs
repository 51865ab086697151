//! Batches: many operations share a request, and each has its own answer.

use std::time::Duration;

use crate::common::{commands_of, redis, request, take};
use distlock_core::{
    AcquireRequest, Attempt, Deleted, DistLock, ErrorKind, Expect, FencingToken, Grant, HandOver,
    HolderLabel, Lease, LockName, LossReason, Meta, OwnerId, RecordKey, ReleaseOutcome, Renewal,
    Renewed, Result, Written,
};
use distlock_harness::servers::redis::RedisServer;
use futures_util::future::join_all;

/// The TTL of a lease that outlives every test.
const LONG: Duration = Duration::from_secs(60);

/// Acquires locks at the same time. The first few use one request each; the others share requests.
async fn acquire_all(
    lock: &dyn DistLock,
    requests: &[AcquireRequest],
) -> Vec<Result<Attempt<Grant>>> {
    join_all(requests.iter().map(|request| lock.try_acquire(request))).await
}

async fn release_all(lock: &dyn DistLock, requests: &[AcquireRequest]) -> Vec<ReleaseOutcome> {
    let release = |request: &AcquireRequest| {
        let lease = Lease::new(request.name.clone(), request.owner, None);
        async move { lock.release(&lease).await.unwrap() }
    };
    join_all(requests.iter().map(release)).await
}

fn names() -> impl Iterator<Item = String> {
    (0..64).map(|n| format!("n{n}"))
}

fn token(answer: &Result<Attempt<Grant>>) -> FencingToken {
    match answer {
        Ok(Attempt::Acquired(grant)) => grant.token,
        other => panic!("not granted: {other:?}"),
    }
}

/// Returns requests for all names. Their holders and metas are either the same or all different.
fn requests(differ: bool) -> Vec<AcquireRequest> {
    let one = |(n, name): (usize, String)| {
        let mut request = request(&name, LONG);
        if differ {
            request.holder = HolderLabel::new(format!("holder {n}")).unwrap();
            request.meta = (n % 2 == 0).then(|| Meta::new(format!("meta {n}")).unwrap());
        }
        request
    };
    names().enumerate().map(one).collect()
}

#[tokio::test]
async fn a_batch_of_acquires_stores_holders_and_rising_tokens() {
    let server = RedisServer::start().unwrap();
    let lock = redis(&server.url()).await.unwrap().lock();
    let mut last = vec![None; names().count()];
    for differ in [false, true, false] {
        let wanted = requests(differ);
        let granted = acquire_all(&*lock, &wanted).await;
        for (last, granted) in last.iter_mut().zip(&granted) {
            assert!(*last < Some(token(granted)));
            *last = Some(token(granted));
        }
        for (wanted, granted) in wanted.iter().zip(&granted) {
            let info = lock.inspect(&wanted.name).await.unwrap().held.unwrap();
            assert_eq!(info.holder, wanted.holder.as_str());
            assert_eq!(info.meta.as_deref(), wanted.meta.as_ref().map(Meta::as_str));
            assert_eq!(info.token, Some(token(granted)));
        }
        // Another owner finds all locks held and releases none.
        let others = requests(differ);
        for answer in acquire_all(&*lock, &others).await {
            assert!(matches!(answer, Ok(Attempt::Busy(Some(_)))), "{answer:?}");
        }
        for outcome in release_all(&*lock, &others).await {
            assert_eq!(outcome, ReleaseOutcome::NotHeld);
        }
        // A repeated request gets the same answer.
        let again = acquire_all(&*lock, &wanted).await;
        assert!(again.iter().map(token).eq(granted.iter().map(token)));
        for outcome in release_all(&*lock, &wanted).await {
            assert!(matches!(outcome, ReleaseOutcome::Released { .. }));
        }
    }
    assert_eq!(server.command(&["KEYS", "*}:lock:*"]).unwrap(), "");
}

/// Another owner holds every third lock. Operations on these locks do not succeed, and all other
/// operations of the same batch succeed.
#[tokio::test]
async fn each_operation_of_a_batch_has_its_own_answer() {
    let server = RedisServer::start().unwrap();
    let lock = redis(&server.url()).await.unwrap().lock();
    let is_held = |at: usize| at.is_multiple_of(3);
    let held: Vec<_> = requests(false).into_iter().step_by(3).collect();
    let held_tokens: Vec<_> = acquire_all(&*lock, &held).await.iter().map(token).collect();
    let wanted = requests(false);
    let mut tokens = Vec::new();
    for (at, answer) in acquire_all(&*lock, &wanted).await.iter().enumerate() {
        if is_held(at) {
            assert!(matches!(answer, Ok(Attempt::Busy(Some(_)))), "{answer:?}");
            tokens.push(None);
        } else {
            tokens.push(Some(token(answer)));
        }
    }
    let lease = |(request, token): (&AcquireRequest, &Option<FencingToken>)| {
        Lease::new(request.name.clone(), request.owner, *token)
    };
    let leases: Vec<_> = wanted.iter().zip(&tokens).map(lease).collect();
    let renewal = Renewal::plain(wanted[0].ttl);
    let renewed = join_all(leases.iter().map(|lease| lock.renew(lease, &renewal))).await;
    for (at, answer) in renewed.into_iter().enumerate() {
        match answer.unwrap() {
            Renewed::Extended { token, .. } => assert_eq!(Some(token), tokens[at]),
            Renewed::NotHeld(reason) => {
                assert!(
                    is_held(at) && reason == LossReason::TakenOver,
                    "{at}: {reason}"
                );
            }
        }
    }
    let next = requests(true);
    let passed_on = leases
        .iter()
        .zip(&next)
        .map(|(lease, next)| lock.hand_over(lease, next));
    let passed_on = join_all(passed_on).await;
    for (at, answer) in passed_on.into_iter().enumerate() {
        match answer.unwrap() {
            HandOver::Done(grant) => assert!(tokens[at].is_some_and(|it| it < grant.token), "{at}"),
            HandOver::NotHeld(reason) => {
                assert!(
                    is_held(at) && reason == LossReason::TakenOver,
                    "{at}: {reason}"
                );
            }
            HandOver::Unsupported => panic!("{at}"),
        }
        let holder = lock.inspect(&next[at].name).await.unwrap().held.unwrap();
        if is_held(at) {
            assert_eq!(holder.token, Some(held_tokens[at / 3]));
        } else {
            assert_eq!(holder.holder, next[at].holder.as_str());
        }
    }
    for (at, outcome) in release_all(&*lock, &next).await.into_iter().enumerate() {
        let released = matches!(outcome, ReleaseOutcome::Released { .. });
        assert_eq!(released, !is_held(at), "{at}");
    }
}

#[tokio::test]
async fn one_bad_lock_does_not_affect_its_batch() {
    let server = RedisServer::start().unwrap();
    let lock = redis(&server.url()).await.unwrap().lock();
    let mut last = vec![None; names().count()];
    // The first acquire of a name creates the counter of its bucket.
    for (last, answer) in last
        .iter_mut()
        .zip(acquire_all(&*lock, &requests(false)).await)
    {
        *last = Some(token(&answer));
    }
    let keys: Vec<_> = names()
        .map(|name| {
            server
                .command(&["KEYS", &format!("*}}:lock:{name}")])
                .unwrap()
        })
        .collect();
    let key = |name: &str| {
        keys.iter()
            .find(|key| key.ends_with(&format!(":{name}")))
            .unwrap()
            .clone()
    };
    let counter = |name: &str| key(name).replace(&format!("lock:{name}"), "counter");
    // The first two share a bucket.
    let (ahead, also_ahead, used_up) = ("n8", "n31", "n61");
    let (foreign, list, held, own, gone) = ("n55", "n56", "n57", "n58", "n59");
    let (foreign_key, list_key) = (key(foreign), key(list));
    assert_eq!(counter(ahead), counter(also_ahead));
    for (name, value) in [(ahead, "2000000000000000"), (used_up, "9007199254740991")] {
        server.command(&["SET", &counter(name), value]).unwrap();
    }
    server
        .command(&["SET", &counter(gone), "nonsense"])
        .unwrap();
    server
        .command(&[
            "EVAL",
            "return redis.call('DEL', unpack(redis.call('KEYS', '*}:lock:*')))",
            "0",
        ])
        .unwrap();
    server
        .command(&["SET", &foreign_key, "not a lock"])
        .unwrap();
    server.command(&["RPUSH", &list_key, "not a lock"]).unwrap();
    take(&*lock, &request(held, LONG)).await;

    for differ in [false, true] {
        let wanted = requests(differ);
        let mine = wanted
            .iter()
            .find(|request| request.name.as_str() == own)
            .unwrap();
        let before = take(&*lock, mine).await.token;
        let answers = acquire_all(&*lock, &wanted).await;
        for ((wanted, answer), last) in wanted.iter().zip(&answers).zip(&mut last) {
            let kind = answer.as_ref().err().map(distlock_core::Error::kind);
            match wanted.name.as_str() {
                name if name == used_up => assert_eq!(kind, Some(ErrorKind::LimitExceeded)),
                name if name == foreign || name == list => {
                    assert_eq!(kind, Some(ErrorKind::Corrupt));
                }
                name if name == held => assert!(matches!(answer, Ok(Attempt::Busy(Some(_))))),
                name if name == own => assert_eq!(token(answer), before),
                name => {
                    assert!(*last < Some(token(answer)), "{name}");
                    *last = Some(token(answer));
                    let over = token(answer).get() > 2_000_000_000_000_000;
                    let is_ahead = name == ahead || name == also_ahead;
                    assert_eq!(over, is_ahead, "{name}: {}", token(answer));
                    let counted = server.command(&["GET", &counter(name)]).unwrap();
                    assert_eq!(counted.parse(), Ok(token(answer).get()), "{name}");
                }
            }
        }
        assert_eq!(
            server.command(&["GET", &counter(used_up)]).unwrap(),
            "9007199254740991"
        );
        let kept = [used_up, foreign, list, held];
        for (wanted, outcome) in wanted.iter().zip(release_all(&*lock, &wanted).await) {
            let released = matches!(outcome, ReleaseOutcome::Released { .. });
            assert_eq!(
                released,
                !kept.contains(&wanted.name.as_str()),
                "{}",
                wanted.name
            );
        }
    }
    assert_eq!(
        server.command(&["GET", &foreign_key]).unwrap(),
        "not a lock"
    );
    assert_eq!(server.command(&["TYPE", &list_key]).unwrap(), "list");
}

/// Some callers acquire while others release. The server refuses a part of both.
#[tokio::test]
async fn acquires_and_releases_of_a_batch_have_their_own_answers() {
    let server = RedisServer::with(&["appendonly no"]).unwrap();
    let store = redis(&server.url()).await.unwrap();
    let lock = store.lock();
    let elsewhere = |mut request: AcquireRequest| {
        request.name = LockName::new(format!("other-{}", request.name.as_str())).unwrap();
        request
    };
    let is_held = |at: usize| at.is_multiple_of(3);
    for differ in [false, true] {
        let held = requests(differ);
        let wanted: Vec<_> = requests(differ).into_iter().map(elsewhere).collect();
        let strangers = requests(differ).into_iter().map(elsewhere);
        let strangers: Vec<_> = strangers.step_by(3).collect();
        for answer in acquire_all(&*lock, &[&*held, &*strangers].concat()).await {
            token(&answer);
        }
        // Every third lease has a wrong owner.
        let lease = |(at, request): (usize, &AcquireRequest)| {
            let owner = if is_held(at) {
                OwnerId::new()
            } else {
                request.owner
            };
            Lease::new(request.name.clone(), owner, None)
        };
        let leases: Vec<_> = held.iter().enumerate().map(lease).collect();
        let before = commands_of(&store);
        let pairs = wanted.iter().zip(&leases);
        let both = pairs.map(|(wanted, lease)| async {
            tokio::join!(lock.try_acquire(wanted), lock.release(lease))
        });
        for (at, (taken, freed)) in join_all(both).await.iter().enumerate() {
            match taken {
                Ok(Attempt::Acquired(_)) => assert!(!is_held(at), "{at}"),
                Ok(Attempt::Busy(Some(_))) => assert!(is_held(at), "{at}"),
                other => panic!("{at}: {other:?}"),
            }
            let released = matches!(freed, Ok(ReleaseOutcome::Released { .. }));
            assert_eq!(released, !is_held(at), "{at}: {freed:?}");
        }
        assert!(commands_of(&store) - before < 16);
        release_all(&*lock, &held).await;
        release_all(&*lock, &wanted).await;
        release_all(&*lock, &strangers).await;
        assert_eq!(server.command(&["KEYS", "*}:lock:*"]).unwrap(), "");
    }
}

#[tokio::test]
async fn a_server_without_memory_refuses_grants_and_releases_locks() {
    let server = RedisServer::with(&["appendonly no"]).unwrap();
    let lock = redis(&server.url()).await.unwrap().lock();
    let held = requests(false);
    acquire_all(&*lock, &held).await.iter().for_each(|answer| {
        token(answer);
    });
    assert_eq!(
        server
            .command(&["CONFIG", "SET", "maxmemory", "1"])
            .unwrap(),
        "OK"
    );
    let answers = held.iter().map(|held| {
        let mut wanted = request(&format!("other-{}", held.name.as_str()), LONG);
        wanted.holder = held.holder.clone();
        let lease = Lease::new(held.name.clone(), held.owner, None);
        let lock = &lock;
        async move { tokio::join!(lock.try_acquire(&wanted), lock.release(&lease)) }
    });
    for (taken, freed) in join_all(answers).await {
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert!(
            matches!(freed, Ok(ReleaseOutcome::Released { .. })),
            "{freed:?}"
        );
    }
    assert_eq!(server.command(&["KEYS", "*}:lock:*"]).unwrap(), "");
}

/// The index or the counter of a record was overwritten by another program. Then nothing of that
/// record is stored, and the other records of the batch are stored.
#[tokio::test]
async fn one_bad_record_does_not_affect_its_batch() {
    let server = RedisServer::start().unwrap();
    let records = redis(&server.url()).await.unwrap().records();
    let keys: Vec<_> = names().map(|name| RecordKey::new(name).unwrap()).collect();
    let put_all = || {
        join_all(
            keys.iter()
                .map(|key| records.put(key, b"v", Expect::Absent)),
        )
    };
    let written = put_all().await;
    let bucket = |key: &RecordKey| {
        let found = server.command(&["KEYS", &format!("*:record:{}", key.as_str())]);
        let found = found.unwrap();
        found[..=found.find('}').unwrap()].to_owned()
    };
    let (no_index, no_counter, kept) = (&keys[5], &keys[9], &keys[13]);
    let (index, counter) = (
        format!("{}:record-index", bucket(no_index)),
        format!("{}:counter", bucket(no_counter)),
    );
    let kept_index = format!("{}:record-index", bucket(kept));
    let neighbours: Vec<_> = keys
        .iter()
        .filter(|key| format!("{}:record-index", bucket(key)) == kept_index)
        .collect();
    let spoil = |key: &str| {
        server.command(&["DEL", key]).unwrap();
        server.command(&["RPUSH", key, "no index"]).unwrap();
    };
    spoil(&kept_index);
    let deleted = join_all(keys.iter().zip(&written).map(async |(key, written)| {
        let Ok(Written::Stored(version)) = written else {
            panic!("{written:?}");
        };
        records.delete(key, *version).await
    }));
    for (key, deleted) in keys.iter().zip(deleted.await) {
        if neighbours.contains(&key) {
            assert_eq!(deleted.unwrap_err().kind(), ErrorKind::Corrupt, "{key:?}");
            assert!(records.get(key).await.unwrap().is_some(), "{key:?}");
        } else {
            assert_eq!(deleted.unwrap(), Deleted::Done, "{key:?}");
        }
    }
    server.command(&["FLUSHALL"]).unwrap();
    spoil(&index);
    spoil(&counter);
    for (key, written) in keys.iter().zip(put_all().await) {
        let stored = records.get(key).await.unwrap().is_some();
        match written {
            Ok(written) => assert!(matches!(written, Written::Stored(_)) && stored, "{key:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{key:?}");
                assert!(!stored && key != no_counter, "{key:?}");
            }
        }
    }
    assert!(records.get(no_index).await.unwrap().is_none());
}
