//! A lock over versioned records, on the memory backend's records.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Deleted, DistLock, Entry, Error, ErrorKind, Expect, FencingToken,
    Forced, Grant, HandOver, HolderLabel, KvLock, Lease, LockName, LossReason, ManualClock, Meta,
    OwnerId, Reach, RecordKey, Records, ReleaseOutcome, Renewal, Renewed, Result, TicketStep, Ttl,
    Verdict, Version, Written,
};
use distlock_memory::Memory;
use futures_util::future::join_all;
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(5);
const RELEASED: ReleaseOutcome = ReleaseOutcome::Released {
    others_waiting: None,
};

/// What happens to a write that is not simply done.
#[derive(Clone, Copy)]
enum Fate {
    /// It happens, and the answer is lost.
    Unanswered,
    /// It is lost on the way, and nobody knows.
    Lost,
    /// It is refused by a server that cannot serve now.
    Refused,
}

/// Records with a network in between.
#[derive(Debug)]
struct Far {
    inner: Arc<dyn Records>,
    fates: Mutex<VecDeque<Option<Fate>>>,
    reads: AtomicUsize,
    ages: bool,
}

impl std::fmt::Debug for Fate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fate")
    }
}

impl Far {
    /// The fates of the next writes.
    fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.fates
            .lock()
            .unwrap()
            .extend(fates.into_iter().map(Some));
    }

    async fn pass<T>(&self, write: impl Future<Output = Result<T>>) -> Result<T> {
        let fate = self.fates.lock().unwrap().pop_front().flatten();
        let unknown = || Error::new(ErrorKind::OutcomeUnknown, "no answer");
        match fate {
            None => write.await,
            Some(Fate::Unanswered) => {
                write.await?;
                Err(unknown())
            }
            Some(Fate::Lost) => Err(unknown()),
            Some(Fate::Refused) => Err(Error::new(ErrorKind::Unavailable, "not now")),
        }
    }
}

#[async_trait]
impl Records for Far {
    fn backend(&self) -> &'static str {
        "far"
    }

    fn tells_ages(&self) -> bool {
        self.ages
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        self.inner.reopen().await
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.get(key).await
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        self.inner.get_many(keys).await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        self.pass(self.inner.put(key, value, expect)).await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.pass(self.inner.delete(key, expect)).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        self.inner.scan(prefix, after, limit).await
    }

    async fn close(&self) {
        panic!("whoever opened it closes it");
    }
}

struct Scene {
    clock: ManualClock,
    records: Arc<Far>,
    lock: KvLock,
}

async fn scene() -> Scene {
    let clock = ManualClock::new();
    let records = Arc::new(Far {
        inner: Memory::new(Arc::new(clock.clone())).records(),
        fates: Mutex::default(),
        reads: AtomicUsize::new(0),
        ages: true,
    });
    let lock = KvLock::new(Arc::clone(&records) as Arc<dyn Records>).unwrap();
    let lock = lock.with_clock(Arc::new(clock.clone())).with_seed(7);
    // The first operation names the history, which is a write of its own.
    lock.inspect(&name("x")).await.unwrap();
    Scene {
        clock,
        records,
        lock,
    }
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn key(text: &str) -> RecordKey {
    RecordKey::new(text).unwrap()
}

fn ttl() -> Ttl {
    Ttl::new(TTL).unwrap()
}

fn request(text: &str) -> AcquireRequest {
    let holder = HolderLabel::new("ci@host:1").unwrap();
    AcquireRequest::new(name(text), OwnerId::new(), ttl(), holder)
}

fn lease(request: &AcquireRequest, grant: &Grant) -> Lease {
    Lease::new(request.name.clone(), request.owner, Some(grant.token))
}

impl Scene {
    async fn grant(&self, request: &AcquireRequest) -> Grant {
        let attempt = self.lock.try_acquire(request).await.unwrap();
        attempt.acquired().expect("it is free")
    }

    async fn is_busy(&self, text: &str) -> bool {
        let attempt = self.lock.try_acquire(&request(text)).await.unwrap();
        matches!(attempt, Attempt::Busy(Some(_)))
    }

    async fn raw(&self, text: &str) -> Option<Entry> {
        self.records.get(&key(text)).await.unwrap()
    }
}

#[tokio::test]
async fn the_version_is_the_token_and_stays_it() {
    let scene = scene().await;
    let first = request("a");
    let grant = scene.grant(&first).await;
    assert_eq!(
        grant.token.get(),
        scene.raw("lock/a").await.unwrap().version.get()
    );
    assert_eq!(grant.valid_for, TTL);
    scene.clock.advance(TTL / 2);
    let lease = lease(&first, &grant);
    let renewed = scene
        .lock
        .renew(&lease, &Renewal::plain(ttl()))
        .await
        .unwrap();
    assert!(matches!(renewed, Renewed::Extended { token, .. } if token == grant.token));
    assert!(scene.raw("lock/a").await.unwrap().version.get() > grant.token.get());
    scene.clock.advance(TTL / 2 + Duration::from_millis(1));
    assert!(scene.is_busy("a").await, "renewed");
    assert_eq!(
        scene.grant(&first).await.token,
        grant.token,
        "the same owner asks again"
    );
    assert_eq!(scene.lock.release(&lease).await.unwrap(), RELEASED);
    assert_eq!(
        scene.lock.release(&lease).await.unwrap(),
        ReleaseOutcome::NotHeld
    );
    assert_eq!(scene.raw("lock/a").await, None, "nothing is left");
    assert!(scene.grant(&request("a")).await.token > grant.token);
}

#[tokio::test]
async fn an_expired_lock_is_taken_exactly_once() {
    let scene = scene().await;
    let first = request("a");
    let grant = scene.grant(&first).await;
    scene.clock.advance(TTL - Duration::from_nanos(1));
    assert!(scene.is_busy("a").await);
    scene.clock.advance(Duration::from_nanos(1));
    let free = scene.lock.inspect(&name("a")).await.unwrap();
    assert_eq!((free.held, free.last_token), (None, Some(grant.token)));
    let lease = lease(&first, &grant);
    let renewed = scene
        .lock
        .renew(&lease, &Renewal::plain(ttl()))
        .await
        .unwrap();
    assert!(matches!(renewed, Renewed::NotHeld(LossReason::Expired)));
    let takers: Vec<_> = (0..8).map(|_| request("a")).collect();
    let attempts = join_all(takers.iter().map(|taker| scene.lock.try_acquire(taker))).await;
    let winners: Vec<_> = attempts
        .into_iter()
        .filter_map(|attempt| attempt.unwrap().acquired())
        .collect();
    assert_eq!(winners.len(), 1);
    assert!(winners[0].token > grant.token);
    let renewed = scene
        .lock
        .renew(&lease, &Renewal::plain(ttl()))
        .await
        .unwrap();
    assert!(matches!(renewed, Renewed::NotHeld(LossReason::TakenOver)));
    assert_eq!(
        scene.lock.release(&lease).await.unwrap(),
        ReleaseOutcome::NotHeld
    );
    assert!(scene.is_busy("a").await);
}

/// Real threads race for one name, over and over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_find_it_free_one_gets_it() {
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
async fn a_busy_answer_says_who() {
    let scene = scene().await;
    let mut first = request("a");
    first.meta = Some(Meta::new("job 7").unwrap());
    let grant = scene.grant(&first).await;
    scene.clock.advance(Duration::from_secs(1));
    let attempt = scene.lock.try_acquire(&request("a")).await.unwrap();
    let Attempt::Busy(Some(holder)) = attempt else {
        panic!("it is held")
    };
    assert_eq!(holder.holder, "ci@host:1");
    assert_eq!(holder.meta.as_deref(), Some("job 7"));
    assert_eq!(holder.token, Some(grant.token));
    assert_eq!(holder.expires_in, Some(Duration::from_secs(4)));
    assert!(holder.acquired_at.is_some());
    let info = scene.lock.inspect(&name("a")).await.unwrap();
    assert_eq!(info.held, Some(holder));
    assert_eq!(info.epoch, Some(grant.epoch));
}

#[tokio::test]
async fn what_cannot_be_read_is_never_free() {
    let scene = scene().await;
    let first = request("a");
    let grant = scene.grant(&first).await;
    let lease = lease(&first, &grant);
    let good = scene.raw("lock/a").await.unwrap();
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
        let written = scene.records.put(&key, bad.as_bytes(), expect).await;
        let Written::Stored(stored) = written.unwrap() else {
            panic!("nobody else writes")
        };
        version = stored;
        // Long after any lease.
        scene.clock.advance(TTL * 1000);
        let lock = &scene.lock;
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
        let now = scene.raw("lock/a").await.unwrap();
        assert_eq!((now.version, now.value), (version, bad.into_bytes()));
    }
}

#[tokio::test]
async fn a_store_that_does_not_tell_ages_is_refused() {
    let records = Arc::new(Far {
        inner: Memory::default().records(),
        fates: Mutex::default(),
        reads: AtomicUsize::new(0),
        ages: false,
    });
    assert_eq!(
        KvLock::new(records).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[tokio::test]
async fn a_version_that_can_be_no_token_holds_nothing() {
    let scene = scene().await;
    // Microseconds reach 2^53 in the year 2255.
    scene
        .clock
        .advance(Duration::from_secs(300 * 365 * 24 * 3600));
    let error = scene.lock.try_acquire(&request("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(scene.raw("lock/a").await, None);
}

#[tokio::test]
async fn lost_answers_to_an_acquire() {
    let scene = scene().await;
    let first = request("a");
    scene.records.next([Fate::Unanswered]);
    let grant = scene.grant(&first).await;
    assert_eq!(scene.grant(&first).await.token, grant.token);
    // Free, and the write may still arrive: nobody can say.
    for fate in [Fate::Lost, Fate::Refused] {
        scene.records.next([fate]);
        let error = scene.lock.try_acquire(&request("b")).await.unwrap_err();
        let unknown = matches!(fate, Fate::Lost);
        assert_eq!(
            error.kind() == ErrorKind::OutcomeUnknown,
            unknown,
            "{error}"
        );
        assert_eq!(error.did_not_happen(), !unknown);
    }
    // The same for an expired lock, whose record is still as it was.
    scene.clock.advance(TTL);
    scene.records.next([Fate::Lost]);
    let error = scene.lock.try_acquire(&request("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    scene.records.next([Fate::Unanswered]);
    assert!(scene.grant(&request("a")).await.token > grant.token);
}

#[tokio::test]
async fn lost_answers_to_a_release() {
    let scene = scene().await;
    for fates in [vec![Fate::Unanswered], vec![Fate::Lost, Fate::Lost]] {
        let first = request("a");
        let grant = scene.grant(&first).await;
        scene.records.next(fates);
        let released = scene.lock.release(&lease(&first, &grant)).await.unwrap();
        assert_eq!(released, RELEASED, "found gone, or tried again");
        assert_eq!(scene.raw("lock/a").await, None);
    }
    let first = request("a");
    let grant = scene.grant(&first).await;
    scene.records.next([Fate::Lost; 50]);
    let error = scene
        .lock
        .release(&lease(&first, &grant))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert!(
        scene.records.fates.lock().unwrap().len() > 30,
        "it gave up soon"
    );
}

#[tokio::test]
async fn lost_answers_to_a_renewal_and_a_hand_over() {
    let scene = scene().await;
    let (first, second) = (request("a"), request("a"));
    let grant = scene.grant(&first).await;
    let held = lease(&first, &grant);
    let nonce = Uuid::from_u128(1);
    let mut renewal = Renewal::plain(ttl());
    for ticket in [TicketStep::Issue(nonce), TicketStep::Redeem(nonce)] {
        renewal.ticket = ticket;
        scene.records.next([Fate::Unanswered]);
        let renewed = scene.lock.renew(&held, &renewal).await.unwrap();
        assert!(matches!(renewed, Renewed::Extended { token, .. } if token == grant.token));
    }
    let renewed = scene.lock.renew(&held, &renewal).await.unwrap();
    assert!(
        matches!(renewed, Renewed::NotHeld(LossReason::TakenOver)),
        "used once"
    );
    scene.records.next([Fate::Lost]);
    let error = scene
        .lock
        .renew(&held, &Renewal::plain(ttl()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    scene.records.next([Fate::Unanswered]);
    let handed = scene.lock.hand_over(&held, &second).await.unwrap();
    let HandOver::Done(next) = handed else {
        panic!("{handed:?}")
    };
    assert!(next.token > grant.token);
    let handed = scene.lock.hand_over(&held, &second).await.unwrap();
    assert!(matches!(handed, HandOver::NotHeld(LossReason::TakenOver)));
    assert_eq!(
        scene.lock.release(&lease(&second, &next)).await.unwrap(),
        RELEASED
    );
    let other = scene
        .lock
        .hand_over(&held, &request("b"))
        .await
        .unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn intervention_needs_the_right_token() {
    let scene = scene().await;
    let a = name("a");
    let grant = scene.grant(&request("a")).await;
    let other = FencingToken::new(grant.token.get() + 1).unwrap();
    let force = async |token| scene.lock.force_release(&a, token).await.unwrap();
    assert_eq!(force(other).await, Forced::OtherToken(grant.token));
    assert_eq!(force(grant.token).await, Forced::Released);
    assert_eq!(force(grant.token).await, Forced::NotHeld);
    scene.grant(&request("a")).await;
    scene.clock.advance(TTL);
    assert_eq!(force(grant.token).await, Forced::NotHeld);
}

#[tokio::test]
async fn lists_pages_of_what_is_held() {
    let scene = scene().await;
    for n in 0..300 {
        scene.grant(&request(&format!("old/{n:03}"))).await;
    }
    scene.clock.advance(TTL);
    let tricky = ["/", "a b", "old/150x", "old/ü", "~%{}"];
    for text in tricky {
        scene.grant(&request(text)).await;
    }
    let list = async |prefix, after: Option<LockName>, limit| {
        let infos = scene
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
        scene.lock.reap(Duration::from_secs(1), 1000).await.unwrap(),
        0
    );
    scene.clock.advance(Duration::from_secs(2));
    assert_eq!(
        scene.lock.reap(Duration::from_secs(1), 10).await.unwrap(),
        10
    );
    assert_eq!(
        scene.lock.reap(Duration::from_secs(1), 1000).await.unwrap(),
        290
    );
    assert_eq!(list("", None, 100).await, tricky);
}

#[tokio::test]
async fn handles_share_a_history() {
    let scene = scene().await;
    let other = scene.lock.reopen().await.unwrap();
    let first = request("a");
    let grant = scene.grant(&first).await;
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
    // The records that were passed in stay open: `Far` panics otherwise.
    scene.lock.close().await;
    let elsewhere = KvLock::new(Memory::default().records()).unwrap();
    assert_ne!(elsewhere.health().await.unwrap().epoch, health.epoch);
    let capabilities = elsewhere.capabilities();
    assert_eq!(
        (capabilities.backend, capabilities.reach),
        ("kv+memory", Reach::Process)
    );
    assert_eq!(capabilities.default_ttl, Duration::from_secs(5));
}

#[tokio::test]
async fn a_waiter_asks_now_and_then_and_when_the_lease_ends() {
    let scene = scene().await;
    let grant = scene.grant(&request("a")).await;
    let mut contender = scene.lock.contend(&request("a")).await.unwrap();
    let start = scene.records.reads.load(Ordering::SeqCst);
    let clock = scene.clock.clone();
    let waiter = tokio::spawn(async move {
        loop {
            match contender.attempt().await.unwrap() {
                Attempt::Acquired(grant) => return grant,
                Attempt::Busy(_) => contender.wait(Duration::from_secs(3600)).await,
            }
        }
    });
    // Exactly at the end of the lease it has the lock: it never oversleeps that.
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
    let reads = scene.records.reads.load(Ordering::SeqCst) - start;
    assert!(
        reads <= 20,
        "{reads} reads in {TTL:?} in which nothing moved"
    );
}

#[tokio::test]
async fn a_wait_in_small_portions_gets_there_too() {
    let scene = scene().await;
    scene.grant(&request("a")).await;
    let mut contender = scene.lock.contend(&request("a")).await.unwrap();
    contender.attempt().await.unwrap();
    let clock = scene.clock.clone();
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
