//! A lock over records: its owner, its token, and records that cannot be read.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use distlock_core::{
    Attempt, DistLock, ErrorKind, Expect, Forced, HandOver, Lease, LossReason, Meta, Records,
    ReleaseOutcome, Renewal, Renewed, Written, sync::Mutex,
};
use distlock_kv::KvLock;
use distlock_memory::Memory;
use futures_util::future::join_all;

use crate::fixture::{FaultyRecords, RELEASED, TTL, fixture, key, lease, name, request, ttl};

#[tokio::test]
async fn the_version_of_the_grant_stays_the_token() {
    let fixture = fixture().await;
    let first = request("a");
    let grant = fixture.acquire(&first).await;
    assert_eq!(
        grant.token.get(),
        fixture.read_record("lock/a").await.unwrap().version.get()
    );
    assert_eq!(grant.valid_for, TTL);
    fixture.clock.advance(TTL / 2);
    let lease = lease(&first, &grant);
    let renewed = fixture
        .lock
        .renew(&lease, &Renewal::plain(ttl()))
        .await
        .unwrap();
    assert!(matches!(renewed, Renewed::Extended { token, .. } if token == grant.token));
    assert!(fixture.read_record("lock/a").await.unwrap().version.get() > grant.token.get());
    fixture.clock.advance(TTL / 2 + Duration::from_millis(1));
    assert!(fixture.is_busy("a").await, "renewed");
    assert_eq!(
        fixture.acquire(&first).await.token,
        grant.token,
        "the same owner asks again"
    );
    assert_eq!(fixture.lock.release(&lease).await.unwrap(), RELEASED);
    assert_eq!(
        fixture.lock.release(&lease).await.unwrap(),
        ReleaseOutcome::NotHeld
    );
    assert_eq!(fixture.read_record("lock/a").await, None, "nothing is left");
    assert!(fixture.acquire(&request("a")).await.token > grant.token);
}

#[tokio::test]
async fn an_expired_lock_is_taken_exactly_once() {
    let fixture = fixture().await;
    let first = request("a");
    let grant = fixture.acquire(&first).await;
    fixture.clock.advance(TTL - Duration::from_nanos(1));
    assert!(fixture.is_busy("a").await);
    fixture.clock.advance(Duration::from_nanos(1));
    let free = fixture.lock.inspect(&name("a")).await.unwrap();
    assert_eq!((free.held, free.last_token), (None, Some(grant.token)));
    let lease = lease(&first, &grant);
    let renewed = fixture
        .lock
        .renew(&lease, &Renewal::plain(ttl()))
        .await
        .unwrap();
    assert!(matches!(renewed, Renewed::NotHeld(LossReason::Expired)));
    let takers: Vec<_> = (0..8).map(|_| request("a")).collect();
    let attempts = join_all(takers.iter().map(|taker| fixture.lock.try_acquire(taker))).await;
    let winners: Vec<_> = attempts
        .into_iter()
        .filter_map(|attempt| attempt.unwrap().acquired())
        .collect();
    assert_eq!(winners.len(), 1);
    assert!(winners[0].token > grant.token);
    let renewed = fixture
        .lock
        .renew(&lease, &Renewal::plain(ttl()))
        .await
        .unwrap();
    assert!(matches!(renewed, Renewed::NotHeld(LossReason::TakenOver)));
    assert_eq!(
        fixture.lock.release(&lease).await.unwrap(),
        ReleaseOutcome::NotHeld
    );
    assert!(fixture.is_busy("a").await);
}

/// On four threads, eight tasks race for one free lock, a hundred times.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_threads_gets_a_free_lock() {
    let records = Memory::default().records();
    let lock: Arc<dyn DistLock> = Arc::new(KvLock::new(records).unwrap());
    let mut last = 0;
    for round in 0..100 {
        let takers: Vec<_> = (0..8)
            .map(|_| {
                let lock = Arc::clone(&lock);
                tokio::spawn(async move {
                    let request = request("a");
                    let attempt = lock.try_acquire(&request).await.unwrap();
                    attempt.acquired().map(|grant| lease(&request, &grant))
                })
            })
            .collect();
        let leases: Vec<Lease> = join_all(takers)
            .await
            .into_iter()
            .filter_map(|taker| taker.unwrap())
            .collect();
        assert_eq!(leases.len(), 1, "round {round}");
        let token = leases[0].token.unwrap().get();
        assert!(token > last);
        last = token;
        assert_eq!(lock.release(&leases[0]).await.unwrap(), RELEASED);
    }
}

#[tokio::test]
async fn a_busy_answer_names_the_holder() {
    let fixture = fixture().await;
    let mut first = request("a");
    first.meta = Some(Meta::new("job 7").unwrap());
    let grant = fixture.acquire(&first).await;
    fixture.clock.advance(Duration::from_secs(1));
    let attempt = fixture.lock.try_acquire(&request("a")).await.unwrap();
    let Attempt::Busy(Some(holder)) = attempt else {
        panic!("it is held")
    };
    assert_eq!(holder.holder, "ci@host:1");
    assert_eq!(holder.meta.as_deref(), Some("job 7"));
    assert_eq!(holder.token, Some(grant.token));
    assert_eq!(holder.expires_in, Some(Duration::from_secs(4)));
    assert!(holder.acquired_at.is_some());
    let info = fixture.lock.inspect(&name("a")).await.unwrap();
    assert_eq!(info.held, Some(holder));
    assert_eq!(info.epoch, Some(grant.epoch));
}

#[tokio::test]
async fn an_unreadable_record_never_counts_as_free() {
    let fixture = fixture().await;
    let first = request("a");
    let grant = fixture.acquire(&first).await;
    let lease = lease(&first, &grant);
    let good = fixture.read_record("lock/a").await.unwrap();
    let text = String::from_utf8(good.value).unwrap();
    let mut version = good.version;
    for bad in [
        String::new(),
        "{}".into(),
        "null".into(),
        text[..text.len() - 1].into(),
        text.replacen('{', "{\"surprise\":1,", 1),
        text.replace("\"ttl_ms\":5000", "\"ttl_ms\":0"),
        text.replace("\"ttl_ms\":5000", "\"ttl_ms\":99999999999"),
        text.replace("\"token\":null", "\"token\":9007199254740992"),
    ] {
        assert_ne!(bad, text);
        let expect = Expect::Version(version);
        let key = key("lock/a");
        let written = fixture.records.put(&key, bad.as_bytes(), expect).await;
        let Written::Stored(stored) = written.unwrap() else {
            panic!("nobody else writes")
        };
        version = stored;
        // The time is long after the end of every lease, so only the unreadable record keeps the
        // lock held.
        fixture.clock.advance(TTL * 1000);
        let lock = &fixture.lock;
        let next = request("a");
        let errors = [
            lock.try_acquire(&next).await.map(drop),
            lock.try_acquire(&first).await.map(drop),
            lock.renew(&lease, &Renewal::plain(ttl())).await.map(drop),
            lock.release(&lease).await.map(drop),
            lock.hand_over(&lease, &next).await.map(drop),
            lock.inspect(&name("a")).await.map(drop),
            lock.list("", None, 10).await.map(drop),
            lock.force_release(&name("a"), grant.token).await.map(drop),
            lock.reap(Duration::ZERO, 10).await.map(drop),
        ];
        for (at, error) in errors.into_iter().enumerate() {
            let error = error.expect_err(&format!("operation {at} accepted {bad:?}"));
            assert_eq!(error.kind(), ErrorKind::Corrupt, "operation {at}: {error}");
            assert_eq!(error.name(), Some(&name("a")), "operation {at}: {error}");
        }
        let now = fixture.read_record("lock/a").await.unwrap();
        assert_eq!((now.version, now.value), (version, bad.into_bytes()));
    }
}

#[tokio::test]
async fn a_store_that_does_not_tell_ages_is_refused() {
    let records = Arc::new(FaultyRecords {
        inner: Mutex::new(Memory::default().records()),
        faults: Mutex::default(),
        reads: AtomicUsize::new(0),
        writes: AtomicUsize::new(0),
        scans: AtomicUsize::new(0),
        ages: false,
    });
    assert_eq!(
        KvLock::new(records).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[tokio::test]
async fn a_version_beyond_the_token_limit_holds_nothing() {
    let fixture = fixture().await;
    // Microseconds reach 2^53 in the year 2255.
    fixture
        .clock
        .advance(Duration::from_secs(300 * 365 * 24 * 3600));
    let error = fixture.lock.try_acquire(&request("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(fixture.read_record("lock/a").await, None);
}

/// A running client notices that its store lost all data: at a renewal, at a release and at the
/// next grant.
#[tokio::test]
async fn a_store_that_lost_its_data_begins_a_new_history() {
    let fixture = fixture().await;
    let (first, second) = (request("a"), request("b"));
    let grants = [
        fixture.acquire(&first).await,
        fixture.acquire(&second).await,
    ];
    let lost = lease(&first, &grants[0]);
    fixture.lose_all_data();
    let renew = async || fixture.lock.renew(&lost, &Renewal::plain(ttl())).await;
    let renewed = renew().await.unwrap();
    assert!(
        matches!(renewed, Renewed::NotHeld(LossReason::HistoryChanged)),
        "{renewed:?}"
    );
    let next = request("a");
    let grant = fixture.acquire(&next).await;
    assert_ne!(grant.epoch, grants[0].epoch);
    assert!(grant.token > grants[0].token, "the clock was not lost");
    for epoch in [
        fixture.lock.inspect(&name("b")).await.unwrap().epoch,
        fixture.lock.health().await.unwrap().epoch,
    ] {
        assert_eq!(epoch.as_ref(), Some(&grant.epoch));
    }
    // Another holder has the lock of the first lease by now, and nobody has that of the second.
    let renewed = renew().await.unwrap();
    assert!(matches!(renewed, Renewed::NotHeld(LossReason::TakenOver)));
    let (lost, successor) = (lease(&second, &grants[1]), request("b"));
    let handed = fixture.lock.hand_over(&lost, &successor).await.unwrap();
    assert!(
        matches!(handed, HandOver::NotHeld(LossReason::HistoryChanged)),
        "{handed:?}"
    );
    // A lock that is removed within the new history was not lost with the old one.
    let forced = fixture.lock.force_release(&next.name, grant.token).await;
    assert_eq!(forced.unwrap(), Forced::Released);
    let renewal = Renewal::plain(ttl());
    let renewed = fixture.lock.renew(&lease(&next, &grant), &renewal).await;
    let renewed = renewed.unwrap();
    assert!(matches!(renewed, Renewed::NotHeld(LossReason::Removed)));
}
