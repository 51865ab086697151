//! A job that many hosts start, over the memory store. `tests/cli/every.rs` of the tool repeats
//! these cases over servers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_conformance::RecordsLayer;
use distlock_core::{
    Attempt, Deleted, Entry, Error, ErrorKind, Expect, LockName, Locker, ManualClock, RecordKey,
    Records, Renew, Result, Store, Version, Written,
};
use distlock_memory::Memory;
use distlock_recipes::{Due, Job, Outcome, Periodic, Ran};
use tokio::{sync::Barrier, task::JoinSet};

const HOUR: Duration = Duration::from_secs(3600);

fn store(memory: &Memory) -> Store {
    Store::new(memory.lock(), memory.records())
}

/// A memory store, and the clock that the test moves.
fn memory_with_manual_clock() -> (Memory, ManualClock) {
    let clock = ManualClock::new();
    (Memory::new(Arc::new(clock.clone())), clock)
}

/// Starts a job that counts its runs and has a period of one hour.
async fn run_job(periodic: &Periodic, runs: &AtomicU32) -> Ran<u32> {
    let ran = periodic.at_most_once("nightly", HOUR, async |_| {
        Ok(runs.fetch_add(1, Ordering::AcqRel) + 1)
    });
    ran.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_hosts_that_start_a_job_together_run_it_once_per_period() {
    let (memory, clock) = memory_with_manual_clock();
    let runs = Arc::new(AtomicU32::new(0));
    for period in 1..=20 {
        let together = Arc::new(Barrier::new(20));
        let mut hosts = JoinSet::new();
        for _ in 0..20 {
            let periodic = Periodic::new(&store(&memory)).unwrap();
            let (runs, together) = (Arc::clone(&runs), Arc::clone(&together));
            hosts.spawn(async move {
                together.wait().await;
                matches!(run_job(&periodic, &runs).await, Ran::Here(_))
            });
        }
        let here = hosts.join_all().await.into_iter().filter(|here| *here);
        assert_eq!((here.count(), runs.load(Ordering::Acquire)), (1, period));
        // All hosts start the job again one minute before the period ends, as if their timers had
        // fired early. The job must run nevertheless.
        clock.advance(HOUR - Duration::from_secs(60));
    }
}

#[tokio::test]
async fn a_started_job_is_due_again_only_after_its_period() {
    let (memory, clock) = memory_with_manual_clock();
    let periodic = Periodic::new(&store(&memory)).unwrap();
    let runs = AtomicU32::new(0);
    assert!(matches!(run_job(&periodic, &runs).await, Ran::Here(1)));
    clock.advance(HOUR / 2);
    assert!(matches!(run_job(&periodic, &runs).await, Ran::Before(ago) if ago == HOUR / 2));
    let name = LockName::new("nightly").unwrap();
    let due = periodic.due(&name, HOUR).await.unwrap();
    assert_eq!(due, Due::Later { started: HOUR / 2 });
    clock.advance(HOUR / 2);
    assert_eq!(periodic.due(&name, HOUR).await.unwrap(), Due::Now);
    assert!(matches!(run_job(&periodic, &runs).await, Ran::Here(2)));
}

/// Starts the same job, which fails.
async fn run_failing_job(periodic: &Periodic) -> Result<Ran<()>> {
    let broken = || Err(Error::new(ErrorKind::Internal, "the disk is full"));
    periodic
        .at_most_once("nightly", HOUR, async |_| broken())
        .await
}

#[tokio::test]
async fn a_failed_job_is_repeated_only_with_retry_failed() {
    let (memory, clock) = memory_with_manual_clock();
    let once = Periodic::new(&store(&memory)).unwrap();
    let runs = AtomicU32::new(0);
    assert!(run_failing_job(&once).await.is_err());
    assert!(matches!(run_job(&once, &runs).await, Ran::Before(_)));
    let again = once.clone().retry_failed();
    assert!(run_failing_job(&again).await.is_err());
    assert!(matches!(run_job(&again, &runs).await, Ran::Here(1)));
    assert!(matches!(run_job(&again, &runs).await, Ran::Before(_)));
    clock.advance(HOUR);
    assert!(matches!(run_job(&again, &runs).await, Ran::Here(2)));
}

#[tokio::test]
async fn a_retry_does_not_move_the_period() {
    let (memory, clock) = memory_with_manual_clock();
    let again = Periodic::new(&store(&memory)).unwrap().retry_failed();
    let runs = AtomicU32::new(0);
    assert!(run_failing_job(&again).await.is_err());
    clock.advance(HOUR / 4);
    assert!(matches!(run_job(&again, &runs).await, Ran::Here(1)));
    clock.advance(HOUR / 2);
    // A success also counts for jobs without `retry_failed`.
    let once = Periodic::new(&store(&memory)).unwrap();
    let since_first_start = HOUR * 3 / 4;
    for periodic in [&again, &once] {
        let ran = run_job(periodic, &runs).await;
        assert!(matches!(ran, Ran::Before(ago) if ago == since_first_start));
    }
    clock.advance(HOUR / 4);
    assert!(matches!(run_job(&again, &runs).await, Ran::Here(2)));
}

#[tokio::test]
async fn a_holder_that_keeps_the_lock_gets_one_start_per_period() {
    let (memory, clock) = memory_with_manual_clock();
    let store = store(&memory);
    let periodic = Periodic::new(&store).unwrap();
    let locker = store.locker();
    let guard = locker
        .lock("nightly")
        .ttl(HOUR * 24)
        .acquire()
        .await
        .unwrap();
    for _ in 0..3 {
        assert_eq!(periodic.begin(&guard, HOUR).await.unwrap(), Due::Now);
        clock.advance(HOUR / 2);
        let later = Due::Later { started: HOUR / 2 };
        assert_eq!(periodic.begin(&guard, HOUR).await.unwrap(), later);
        clock.advance(HOUR / 2);
    }
}

#[tokio::test]
async fn a_dropped_job_counts_as_started() {
    let (memory, _clock) = memory_with_manual_clock();
    let periodic = Periodic::new(&store(&memory)).unwrap();
    {
        let hangs = periodic.at_most_once("nightly", HOUR, async |_| {
            std::future::pending::<()>().await;
            Ok(())
        });
        let mut hangs = std::pin::pin!(hangs);
        let name = LockName::new("nightly").unwrap();
        // The loop runs until the start is recorded.
        while periodic.due(&name, HOUR).await.unwrap() == Due::Now {
            tokio::select! {
                _ = &mut hangs => unreachable!("it hangs"),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    let runs = AtomicU32::new(0);
    assert!(matches!(run_job(&periodic, &runs).await, Ran::Before(_)));
}

#[tokio::test]
async fn a_job_longer_than_its_period_does_not_run_twice_at_once() {
    let memory = Memory::default();
    let short = Duration::from_millis(10);
    let (one, other) = (
        Periodic::new(&store(&memory)).unwrap(),
        Periodic::new(&store(&memory)).unwrap(),
    );
    let name = LockName::new("nightly").unwrap();
    let ran = one.at_most_once("nightly", short, async |_| {
        while other.due(&name, short).await? != Due::Now {
            tokio::task::yield_now().await;
        }
        other.at_most_once("nightly", short, async |_| Ok(())).await
    });
    let beside = match ran.await.unwrap() {
        Ran::Here(beside) => beside,
        other => panic!("{other:?}"),
    };
    assert!(matches!(beside, Ran::Elsewhere(Some(_))), "{beside:?}");
}

/// A layer that loses the answers to the first write and to the first delete, and then fails one
/// read.
#[derive(Clone, Debug)]
struct Unreliable {
    below: Arc<dyn Records>,
    /// The number of writes so far.
    writes: Arc<AtomicU32>,
    /// The number of deletes so far.
    deletes: Arc<AtomicU32>,
    /// Whether the next read fails.
    next_read_fails: Arc<AtomicBool>,
}

#[async_trait]
impl RecordsLayer for Unreliable {
    fn below(&self) -> &Arc<dyn Records> {
        &self.below
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        if self.next_read_fails.swap(false, Ordering::AcqRel) {
            return Err(Error::new(ErrorKind::Unavailable, "no connection"));
        }
        self.below.get(key).await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let written = self.below.put(key, value, expect).await?;
        if self.writes.fetch_add(1, Ordering::AcqRel) > 0 {
            return Ok(written);
        }
        self.next_read_fails.store(true, Ordering::Release);
        Err(Error::new(ErrorKind::OutcomeUnknown, "the answer was lost"))
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        let deleted = self.below.delete(key, expect).await?;
        if self.deletes.fetch_add(1, Ordering::AcqRel) > 0 {
            return Ok(deleted);
        }
        self.next_read_fails.store(true, Ordering::Release);
        Err(Error::new(ErrorKind::OutcomeUnknown, "the answer was lost"))
    }
}

impl Unreliable {
    /// A layer over the records of this store.
    fn over(memory: &Memory) -> Self {
        Self {
            below: memory.records(),
            writes: Arc::default(),
            deletes: Arc::default(),
            next_read_fails: Arc::default(),
        }
    }
}

#[tokio::test]
async fn a_start_whose_answer_was_lost_is_recognised() {
    let memory = Memory::default();
    let layer = Unreliable::over(&memory);
    let one = Store::new(memory.lock(), layer.clone().into_records());
    let runs = AtomicU32::new(0);
    assert!(matches!(
        run_job(&Periodic::new(&one).unwrap(), &runs).await,
        Ran::Here(1)
    ));
    // The start and the success are written once each.
    assert_eq!(layer.writes.load(Ordering::Acquire), 2);
    let other = Periodic::new(&store(&memory)).unwrap();
    assert!(matches!(run_job(&other, &runs).await, Ran::Before(_)));
}

/// The host that recorded the start cannot begin the job, and the answers of its store are lost.
#[tokio::test]
async fn a_start_that_did_not_happen_leaves_the_period_to_another_host() {
    let (memory, _clock) = memory_with_manual_clock();
    let layer = Unreliable::over(&memory);
    let one = Store::new(memory.lock(), layer.clone().into_records());
    let broken = Periodic::new(&one).unwrap();
    let locker = one.locker();
    let guard = locker.lock("nightly").acquire().await.unwrap();
    assert_eq!(broken.begin(&guard, HOUR).await.unwrap(), Due::Now);
    broken.not_started(&guard).await.unwrap();
    assert_eq!(layer.deletes.load(Ordering::Acquire), 1);
    assert!(guard.release().await.is_clean());

    let runs = AtomicU32::new(0);
    let other = Periodic::new(&store(&memory)).unwrap();
    assert!(matches!(run_job(&other, &runs).await, Ran::Here(1)));
    // A call that comes late, or twice, changes nothing: this start has another token.
    let guard = locker.lock("nightly").acquire().await.unwrap();
    broken.not_started(&guard).await.unwrap();
    assert!(matches!(
        other.due(guard.name(), HOUR).await.unwrap(),
        Due::Later { .. }
    ));
}

/// The holder keeps its lock after its job has run, and asks again in the same period.
#[tokio::test]
async fn a_failed_call_leaves_the_earlier_start_on_record() {
    let memory = Memory::default();
    let periodic = Periodic::new(&store(&memory)).unwrap();
    let locker = store(&memory).locker();
    let lock = locker.lock("nightly").ttl(Duration::from_secs(1));
    let guard = lock.acquire().await.unwrap();
    assert_eq!(periodic.begin(&guard, HOUR).await.unwrap(), Due::Now);
    let forced = locker.force_release("nightly", guard.token()).await;
    forced.unwrap();
    guard.lost().await;
    let lost = periodic.begin(&guard, HOUR).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    let other = Periodic::new(&store(&memory)).unwrap();
    assert!(matches!(
        other.due(guard.name(), HOUR).await.unwrap(),
        Due::Later { .. }
    ));
}

/// The holder keeps its lock into the next period, whose first write does not reach the store.
#[tokio::test]
async fn the_start_of_the_last_period_is_not_taken_for_a_lost_write() {
    let (memory, clock) = memory_with_manual_clock();
    let layer = LosingOneWrite {
        below: memory.records(),
        next_write_fails: Arc::default(),
    };
    let one = Store::new(memory.lock(), layer.clone().into_records());
    let periodic = Periodic::new(&one).unwrap();
    let locker = store(&memory).locker();
    let lock = locker.lock("nightly").ttl(HOUR * 24);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(periodic.begin(&guard, HOUR).await.unwrap(), Due::Now);
    clock.advance(HOUR);
    layer.next_write_fails.store(true, Ordering::Release);
    assert_eq!(periodic.begin(&guard, HOUR).await.unwrap(), Due::Now);
    let other = Periodic::new(&store(&memory)).unwrap();
    let started = Duration::ZERO;
    assert_eq!(
        other.due(guard.name(), HOUR).await.unwrap(),
        Due::Later { started }
    );
}

/// A layer that loses one write on the way to the store.
#[derive(Clone, Debug)]
struct LosingOneWrite {
    below: Arc<dyn Records>,
    next_write_fails: Arc<AtomicBool>,
}

#[async_trait]
impl RecordsLayer for LosingOneWrite {
    fn below(&self) -> &Arc<dyn Records> {
        &self.below
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        if self.next_write_fails.swap(false, Ordering::AcqRel) {
            return Err(Error::new(ErrorKind::OutcomeUnknown, "no answer came"));
        }
        self.below.put(key, value, expect).await
    }
}

#[tokio::test]
async fn a_retry_that_did_not_start_does_not_move_the_period() {
    let (memory, clock) = memory_with_manual_clock();
    let store = store(&memory);
    let once = Periodic::new(&store).unwrap();
    let again = Periodic::new(&store).unwrap().retry_failed();
    run_failing_job(&again).await.unwrap_err();
    clock.advance(HOUR / 2);
    let guard = store.locker().lock("nightly").acquire().await.unwrap();
    assert_eq!(again.begin(&guard, HOUR).await.unwrap(), Due::Now);
    again.not_started(&guard).await.unwrap();
    let name = guard.name();
    assert_eq!(again.due(name, HOUR).await.unwrap(), Due::Now);
    let started = HOUR / 2;
    assert_eq!(once.due(name, HOUR).await.unwrap(), Due::Later { started });
    clock.advance(HOUR / 2);
    assert_eq!(once.due(name, HOUR).await.unwrap(), Due::Now);
}

/// The holder is paused while it records its start, and continues after its lease.
#[tokio::test]
async fn a_start_that_was_recorded_too_late_is_taken_back() {
    let (memory, clock) = memory_with_manual_clock();
    let locker = Locker::builder(memory.lock()).clock(Arc::new(clock.clone()));
    let locker = locker.build();
    let layer = Pausing {
        below: memory.records(),
        clock: clock.clone(),
    };
    let one = Store::with_clock(memory.lock(), layer.into_records(), Arc::new(clock));
    let paused = Periodic::new(&one).unwrap();
    let lock = locker.lock("nightly").renew(Renew::Manual);
    let guard = lock.acquire().await.unwrap();
    let lost = paused.begin(&guard, HOUR).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    let runs = AtomicU32::new(0);
    let other = Periodic::new(&store(&memory)).unwrap();
    assert!(matches!(run_job(&other, &runs).await, Ran::Here(1)));
}

/// A layer whose process is stopped for a minute after each write.
#[derive(Clone, Debug)]
struct Pausing {
    below: Arc<dyn Records>,
    clock: ManualClock,
}

#[async_trait]
impl RecordsLayer for Pausing {
    fn below(&self) -> &Arc<dyn Records> {
        &self.below
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let written = self.below.put(key, value, expect).await;
        self.clock.advance(Duration::from_secs(60));
        written
    }
}

/// Without a recorded start a short job leaves no trace, so the next host runs it again.
#[tokio::test]
async fn without_a_recorded_start_a_short_job_runs_on_every_host() {
    let (memory, _clock) = memory_with_manual_clock();
    let mut runs = 0;
    for _ in 0..20 {
        let locker = store(&memory).locker();
        let attempt = locker.lock("nightly").try_acquire().await.unwrap();
        if let Attempt::Acquired(guard) = attempt {
            runs += 1;
            let _ = guard.release().await;
        }
    }
    assert_eq!(runs, 20);
}

#[tokio::test]
async fn invalid_input_is_named_in_the_error_and_changes_nothing() {
    let (memory, _clock) = memory_with_manual_clock();
    let periodic = Periodic::new(&store(&memory)).unwrap();
    let year = HOUR * 24 * 366;
    for (name, every, kind, says) in [
        ("nightly", Duration::ZERO, ErrorKind::InvalidArgument, "0ns"),
        (
            "nightly",
            year + HOUR,
            ErrorKind::InvalidArgument,
            "366 days",
        ),
        ("", HOUR, ErrorKind::InvalidName, "name"),
    ] {
        let refused = periodic.at_most_once(name, every, async |_| Ok(()));
        let error = refused.await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(says), "{error}");
    }
    let records = memory.records();
    assert!(records.scan("periodic/", None, 9).await.unwrap().is_empty());

    let key = RecordKey::new("periodic/start/nightly").unwrap();
    let later = br#"{"v":2,"token":1,"at_ms":1}"#;
    records.put(&key, later, Expect::Absent).await.unwrap();
    let refused = periodic.at_most_once("nightly", HOUR, async |_| Ok(()));
    let error = refused.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("format 2"), "{error}");
}

async fn jobs_of(
    periodic: &Periodic,
    prefix: &str,
    after: Option<&LockName>,
    limit: u32,
) -> Vec<Job> {
    let jobs = periodic.jobs(prefix, after, limit).await.unwrap();
    jobs.into_iter().map(|job| job.unwrap()).collect()
}

/// A process that is stopped after its job has failed writes that end when its lock has a new
/// holder, whose run has succeeded.
#[tokio::test]
async fn a_late_failure_does_not_replace_the_success_of_a_later_holder() {
    let (memory, clock) = memory_with_manual_clock();
    let (stopped, other) = (store(&memory), store(&memory));
    let of = |store: &Store| Periodic::new(store).unwrap().retry_failed();
    let ttl = Duration::from_secs(10);
    let slow = stopped.locker().lock("job").ttl(ttl).renew(Renew::Manual);
    let slow = slow.acquire().await.unwrap();
    assert_eq!(of(&stopped).begin(&slow, HOUR).await.unwrap(), Due::Now);
    clock.advance(ttl);
    let good = async |_| Ok(());
    let ran = of(&other).at_most_once("job", HOUR, good).await.unwrap();
    assert!(matches!(ran, Ran::Here(())), "{ran:?}");
    of(&stopped).failed(&slow).await;
    let jobs = jobs_of(&of(&other), "job", None, 1).await;
    assert_eq!(jobs[0].outcome, Outcome::Succeeded);
    let ran = of(&other).at_most_once("job", HOUR, good).await.unwrap();
    assert!(matches!(ran, Ran::Before(_)), "{ran:?}");
}

/// The job with the bad record comes first, and a reset mends it.
#[tokio::test]
async fn a_job_with_a_bad_record_hides_no_other_job() {
    let (memory, _) = memory_with_manual_clock();
    let store = store(&memory);
    let periodic = Periodic::new(&store).unwrap();
    let key = RecordKey::new("periodic/start/a").unwrap();
    let put = memory.records();
    put.put(&key, br#"{"v":9}"#, Expect::Absent).await.unwrap();
    let good = async |_| Ok(());
    periodic.at_most_once("b", HOUR, good).await.unwrap();
    let jobs = periodic.jobs("", None, 10).await.unwrap();
    let [Err(bad), Ok(other)] = &jobs[..] else {
        panic!("{jobs:?}")
    };
    assert_eq!(bad.kind(), ErrorKind::Corrupt);
    assert_eq!(bad.name().unwrap().as_str(), "a");
    assert_eq!(other.name.as_str(), "b");
    assert!(periodic.reset(bad.name().unwrap()).await.unwrap());
    assert_eq!(jobs_of(&periodic, "", None, 10).await.len(), 1);
}

/// The jobs on record show the last start and its end. A reset makes one of them due, once.
#[tokio::test]
async fn the_jobs_on_record_are_shown_and_reset() {
    let (memory, clock) = memory_with_manual_clock();
    let store = store(&memory);
    let periodic = Periodic::new(&store).unwrap();
    assert!(periodic.jobs("", None, 10).await.unwrap().is_empty());
    let runs = AtomicU32::new(0);
    let good = async || {
        let count = async |_| Ok(runs.fetch_add(1, Ordering::SeqCst));
        periodic.at_most_once("good", HOUR, count).await.unwrap()
    };
    assert!(matches!(good().await, Ran::Here(0)));
    clock.advance(Duration::from_secs(60));
    let failing = async |_| Err::<(), _>(Error::new(ErrorKind::Internal, "it failed"));
    periodic
        .at_most_once("bad", HOUR, failing)
        .await
        .unwrap_err();
    let kept = store
        .locker()
        .lock("long")
        .holder("ada")
        .acquire()
        .await
        .unwrap();
    assert_eq!(periodic.begin(&kept, HOUR).await.unwrap(), Due::Now);

    let jobs = jobs_of(&periodic, "", None, 10).await;
    let seen: Vec<_> = jobs
        .iter()
        .map(|job| (job.name.as_str(), job.outcome))
        .collect();
    assert_eq!(
        seen,
        [
            ("bad", Outcome::Failed),
            ("good", Outcome::Succeeded),
            ("long", Outcome::Running)
        ]
    );
    assert_eq!(
        (jobs[1].started, jobs[1].every),
        (Duration::from_secs(60), HOUR)
    );
    assert_eq!(jobs[1].due_in, Duration::from_secs(3240 - 60));
    assert_eq!((&*jobs[2].started_by, jobs[2].token), ("ada", kept.token()));
    let second = jobs_of(&periodic, "", Some(&jobs[0].name), 1).await;
    assert_eq!(second[..], jobs[1..2]);
    assert_eq!(jobs_of(&periodic, "lo", None, 9).await[..], jobs[2..]);
    // The holder dies, or lost its lock, without a record of the end.
    assert!(kept.release().await.is_clean());
    let jobs = jobs_of(&periodic, "long", None, 1).await;
    assert_eq!(jobs[0].outcome, Outcome::Unknown);

    let name = LockName::new("good").unwrap();
    assert!(matches!(good().await, Ran::Before(_)));
    assert!(periodic.reset(&name).await.unwrap());
    assert!(!periodic.reset(&name).await.unwrap(), "it is due already");
    assert!(matches!(good().await, Ran::Here(1)));
    assert!(
        matches!(good().await, Ran::Before(_)),
        "the new start counts"
    );
}
