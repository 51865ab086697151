//! A lock over records: inspecting, force-releasing and waiting.

use std::{sync::atomic::Ordering, time::Duration};

use distlock_core::{Attempt, DistLock, FencingToken, Forced, LockName, Reach, Store, Verdict};
use distlock_kv::KvLock;
use distlock_memory::Memory;

use crate::fixture::{RELEASED, TTL, fixture, lease, name, request};

#[tokio::test]
async fn a_force_release_needs_the_current_token() {
    let fixture = fixture().await;
    let a = name("a");
    let grant = fixture.acquire(&request("a")).await;
    let other = FencingToken::new(grant.token.get() + 1).unwrap();
    let force = async |token| fixture.lock.force_release(&a, token).await.unwrap();
    assert_eq!(force(other).await, Forced::OtherToken(grant.token));
    assert_eq!(force(grant.token).await, Forced::Released);
    assert_eq!(force(grant.token).await, Forced::NotHeld);
    fixture.acquire(&request("a")).await;
    fixture.clock.advance(TTL);
    assert_eq!(force(grant.token).await, Forced::NotHeld);
}

#[tokio::test]
async fn a_list_pages_through_held_locks() {
    let fixture = fixture().await;
    for n in 0..300 {
        fixture.acquire(&request(&format!("old/{n:03}"))).await;
    }
    fixture.clock.advance(TTL);
    let tricky = ["/", "a b", "old/150x", "old/ü", "~%{}"];
    for text in tricky {
        fixture.acquire(&request(text)).await;
    }
    let list = async |prefix, after: Option<LockName>, limit| {
        let infos = fixture
            .lock
            .list(prefix, after.as_ref(), limit)
            .await
            .unwrap();
        let names: Vec<_> = infos.iter().map(|info| info.name.to_string()).collect();
        names
    };
    assert_eq!(list("", None, 100).await, tricky);
    assert_eq!(list("old/", None, 1).await, ["old/150x"]);
    assert_eq!(list("old/", Some(name("old/150x")), 100).await, ["old/ü"]);
    assert!(list("", None, 0).await.is_empty());
    assert_eq!(
        fixture
            .lock
            .reap(Duration::from_secs(1), 1000)
            .await
            .unwrap(),
        0
    );
    fixture.clock.advance(Duration::from_secs(2));
    assert_eq!(
        fixture.lock.reap(Duration::from_secs(1), 10).await.unwrap(),
        10
    );
    assert_eq!(
        fixture
            .lock
            .reap(Duration::from_secs(1), 1000)
            .await
            .unwrap(),
        290
    );
    assert_eq!(list("", None, 100).await, tricky);
}

#[tokio::test]
async fn handles_share_an_epoch() {
    let fixture = fixture().await;
    let other = fixture.lock.reopen().await.unwrap();
    let first = request("a");
    let grant = fixture.acquire(&first).await;
    assert_eq!(
        other.release(&lease(&first, &grant)).await.unwrap(),
        RELEASED
    );
    let health = other.health().await.unwrap();
    assert_eq!(health.epoch.as_ref(), Some(&grant.epoch));
    assert!(
        health
            .findings
            .iter()
            .all(|found| found.verdict == Verdict::Pass)
    );
    other.close().await;
    // This lock did not open its records, so `close` must not close them: the `close` of
    // `FaultyRecords` panics.
    fixture.lock.close().await;
    let memory = Memory::default();
    let elsewhere = KvLock::over(&Store::new(memory.lock(), memory.records())).unwrap();
    assert_ne!(elsewhere.health().await.unwrap().epoch, health.epoch);
    let capabilities = elsewhere.capabilities();
    assert_eq!(
        (capabilities.backend, capabilities.reach),
        ("kv+memory", Reach::Process)
    );
    assert_eq!(capabilities.default_ttl, Duration::from_secs(5));
}

#[tokio::test]
async fn a_waiter_polls_rarely_and_acquires_when_the_lease_expires() {
    let fixture = fixture().await;
    let grant = fixture.acquire(&request("a")).await;
    let mut contender = fixture.lock.contend(&request("a")).await.unwrap();
    let start = fixture.records.reads.load(Ordering::SeqCst);
    let clock = fixture.clock.clone();
    let waiter = tokio::spawn(async move {
        loop {
            match contender.attempt().await.unwrap() {
                Attempt::Acquired(grant) => return grant,
                Attempt::Busy(_) => contender.wait(Duration::from_secs(3600)).await,
            }
        }
    });
    // The last pause of the waiter ends exactly when the lease expires, so the waiter gets the lock
    // then.
    for _ in 0..TTL.as_millis() {
        while clock.sleepers() == 0 && !waiter.is_finished() {
            tokio::task::yield_now().await;
        }
        assert!(!waiter.is_finished());
        clock.advance(Duration::from_millis(1));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    assert!(waiter.await.unwrap().token > grant.token);
    let reads = fixture.records.reads.load(Ordering::SeqCst) - start;
    assert!(
        reads <= 20,
        "{reads} reads in {TTL:?} in which nothing moved"
    );
}

#[tokio::test]
async fn several_short_waits_together_reach_the_next_poll() {
    let fixture = fixture().await;
    fixture.acquire(&request("a")).await;
    let mut contender = fixture.lock.contend(&request("a")).await.unwrap();
    contender.attempt().await.unwrap();
    let clock = fixture.clock.clone();
    let mut waited = Duration::ZERO;
    loop {
        let portion = Duration::from_millis(10);
        let whole = {
            let mut wait = std::pin::pin!(contender.wait(Duration::from_secs(3600)));
            let early = futures_util::poll!(&mut wait).is_ready();
            if !early {
                clock.advance(portion);
                waited += portion;
            }
            early
        };
        if whole {
            break;
        }
        assert!(waited < Duration::from_secs(1), "starved");
    }
    assert!(waited >= Duration::from_millis(50));
    assert_eq!(clock.sleepers(), 0);
}
