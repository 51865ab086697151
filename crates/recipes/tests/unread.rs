//! Unread counters over the memory store, with crashes before and after any request.
//! `tests/counters` repeats these cases over servers, with processes that are killed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use distlock_conformance::RecordsLayer;
use distlock_core::{
    Deleted, Entry, Error, ErrorKind, Expect, RecordKey, Records, Result, Store, Version, Written,
    sync::Mutex,
};
use distlock_memory::Memory;
use distlock_recipes::unread::{
    Counter, LockedCounters, MOST, OptimisticCounters, Unread, UnreadCounters,
};
use fastrand::Rng;
use tokio::task::JoinSet;

const HISTORIES: u64 = 2000;
const STEPS: usize = 30;
const CONVERSATIONS: [&str; 3] = ["family", "work", "news"];

/// The fault of a process at one of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The process dies before the request.
    DiesBefore,
    /// The process dies after the request.
    DiesAfter,
    /// The process dies, and its write arrives later, after writes of others.
    ArrivesLate,
    /// The reply is lost.
    LosesReply,
    /// The request is lost, and so is the reply.
    LosesRequest,
}

const FAULTS: [Fault; 5] = [
    Fault::DiesBefore,
    Fault::DiesAfter,
    Fault::ArrivesLate,
    Fault::LosesReply,
    Fault::LosesRequest,
];

type Write = (RecordKey, Vec<u8>, Expect);

/// The connection of one process to the store.
#[derive(Clone, Debug)]
struct Process {
    records: Arc<dyn Records>,
    /// The number of requests before the fault, and the fault.
    fault: Arc<Mutex<Option<(u32, Fault)>>>,
    dead: Arc<Mutex<bool>>,
    /// The writes that arrive late.
    late: Arc<Mutex<Vec<Write>>>,
    /// The number of faults that have happened, in all histories.
    met: Arc<AtomicU32>,
}

impl Process {
    /// Counts a request. Returns the fault of this request, or an error when the process is dead.
    fn next_fault(&self) -> Result<Option<Fault>> {
        if *self.dead.lock() {
            return Err(Error::new(ErrorKind::Closed, "the process is dead"));
        }
        let mut fault = self.fault.lock();
        match &mut *fault {
            Some((0, now)) => {
                let now = *now;
                *fault = None;
                self.met.fetch_add(1, Ordering::Relaxed);
                if !matches!(now, Fault::LosesReply | Fault::LosesRequest) {
                    *self.dead.lock() = true;
                }
                Ok(Some(now))
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(None)
            }
            None => Ok(None),
        }
    }
}

/// The answer to the request at which the process dies.
fn process_died_error<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Closed, "the process dies"))
}

#[async_trait]
impl RecordsLayer for Process {
    fn below(&self) -> &Arc<dyn Records> {
        &self.records
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        match self.next_fault()? {
            None | Some(Fault::LosesReply | Fault::LosesRequest) => self.records.get(key).await,
            Some(_) => process_died_error(),
        }
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let lost = Error::new(ErrorKind::OutcomeUnknown, "the reply was lost");
        match self.next_fault()? {
            None => self.records.put(key, value, expect).await,
            Some(Fault::DiesBefore) => process_died_error(),
            Some(Fault::DiesAfter) => {
                self.records.put(key, value, expect).await?;
                process_died_error()
            }
            Some(Fault::ArrivesLate) => {
                let late = (key.clone(), value.to_vec(), expect);
                self.late.lock().push(late);
                process_died_error()
            }
            Some(Fault::LosesReply) => {
                self.records.put(key, value, expect).await?;
                Err(lost)
            }
            Some(Fault::LosesRequest) => Err(lost),
        }
    }
}

/// Counters without a journal: a change writes one counter after the other.
#[derive(Debug)]
struct Naive(Arc<dyn Records>);

impl Naive {
    async fn count(&self, key: &str) -> Result<Option<(Version, u64)>> {
        let entry = self.0.get(&RecordKey::new(key)?).await?;
        Ok(entry.map(|it| {
            (
                it.version,
                String::from_utf8(it.value).unwrap().parse().unwrap(),
            )
        }))
    }

    /// Changes a count by compare-and-swap, until a write succeeds. Returns the new count.
    async fn set(&self, key: &str, to: impl Fn(u64) -> u64) -> Result<u64> {
        loop {
            let before = self.count(key).await?;
            let expect = before.map_or(Expect::Absent, |(version, _)| Expect::Version(version));
            let after = to(before.map_or(0, |(_, count)| count));
            let value = after.to_string().into_bytes();
            let written = self.0.put(&RecordKey::new(key)?, &value, expect).await?;
            if matches!(written, Written::Stored(_)) {
                return Ok(after);
            }
        }
    }
}

#[async_trait]
impl UnreadCounters for Naive {
    async fn increment(&self, counter: &Counter, by: i64) -> Result<Unread> {
        let by = u64::try_from(by).unwrap();
        Ok(Unread {
            conversation: self.set(counter.conversation(), |count| count + by).await?,
            total: self.set("total", |count| count + by).await?,
        })
    }

    async fn clear(&self, counter: &Counter) -> Result<Unread> {
        let before = self.count(counter.conversation()).await?;
        let before = before.map_or(0, |(_, count)| count);
        self.set(counter.conversation(), |_| 0).await?;
        let total = self
            .set("total", |total| total.saturating_sub(before))
            .await?;
        Ok(Unread {
            conversation: 0,
            total,
        })
    }

    async fn read(&self, counter: &Counter) -> Result<Unread> {
        let conversation = self.count(counter.conversation()).await?;
        let Some((_, conversation)) = conversation else {
            return Err(Error::new(ErrorKind::InvalidArgument, "unknown"));
        };
        let total = self.count("total").await?.map_or(0, |(_, total)| total);
        Ok(Unread {
            conversation,
            total,
        })
    }

    fn retries(&self) -> u64 {
        0
    }
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Naive,
    Locked,
    Optimistic,
}

fn counters(mode: Mode, memory: &Memory, records: Arc<dyn Records>) -> Box<dyn UnreadCounters> {
    let store = Store::new(memory.lock(), Arc::clone(&records));
    match mode {
        Mode::Naive => Box::new(Naive(records)),
        Mode::Locked => Box::new(LockedCounters::new(&store)),
        Mode::Optimistic => Box::new(OptimisticCounters::new(&store)),
    }
}

fn counter_of(conversation: &str) -> Counter {
    Counter::new("ann", conversation).unwrap()
}

type State = BTreeMap<&'static str, u64>;

/// Reads the counter of each conversation. It is an error when a total is not their sum.
async fn read_state(counters: &dyn UnreadCounters) -> std::result::Result<State, String> {
    let mut state = BTreeMap::new();
    let mut totals = Vec::new();
    for conversation in CONVERSATIONS {
        match counters.read(&counter_of(conversation)).await {
            Ok(unread) => {
                state.insert(conversation, unread.conversation);
                totals.push(unread.total);
            }
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let sum: u64 = state.values().sum();
    if totals.iter().any(|total| *total != sum) {
        return Err(format!("the totals are {totals:?} of {state:?}"));
    }
    Ok(state)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(&'static str, i64),
    Clear(&'static str),
}

impl Step {
    fn random(rng: &mut Rng) -> Self {
        let conversation = CONVERSATIONS[rng.usize(..CONVERSATIONS.len())];
        match rng.u8(..3) {
            0 => Self::Clear(conversation),
            _ => Self::Add(conversation, rng.i64(1..5)),
        }
    }

    async fn apply(self, counters: &dyn UnreadCounters) -> Result<Unread> {
        match self {
            Self::Add(conversation, by) => counters.increment(&counter_of(conversation), by).await,
            Self::Clear(conversation) => counters.clear(&counter_of(conversation)).await,
        }
    }

    fn applied_to(self, mut state: State) -> State {
        match self {
            Self::Add(conversation, by) => {
                *state.entry(conversation).or_default() += by.unsigned_abs();
            }
            Self::Clear(conversation) => {
                state.entry(conversation).and_modify(|count| *count = 0);
            }
        }
        state
    }
}

/// Runs random changes one after the other. In some of them the process dies or loses an answer at
/// one of its requests.
async fn run_history(
    mode: Mode,
    seed: u64,
    met: &Arc<AtomicU32>,
) -> std::result::Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let memory = Memory::default();
    let healthy = counters(mode, &memory, memory.records());
    let late = Arc::default();
    let mut known = BTreeMap::new();
    for _ in 0..STEPS {
        let step = Step::random(&mut rng);
        let fault = rng
            .bool()
            .then(|| (rng.u32(..6), FAULTS[rng.usize(..FAULTS.len())]));
        let process = Process {
            records: memory.records(),
            fault: Arc::new(Mutex::new(fault)),
            dead: Arc::default(),
            late: Arc::clone(&late),
            met: Arc::clone(met),
        };
        let took = step
            .apply(&*counters(mode, &memory, process.into_records()))
            .await;
        let seen = read_state(&*healthy)
            .await
            .map_err(|why| format!("{step:?} {fault:?}: {why}"))?;
        let (made, not) = (step.applied_to(known.clone()), known);
        let fits = match took {
            Ok(unread) => seen == made && unread.total == seen.values().sum::<u64>(),
            Err(error) if error.kind() == ErrorKind::InvalidArgument => seen == not,
            Err(_) => seen == made || seen == not,
        };
        if !fits {
            return Err(format!("{step:?} {fault:?} made {seen:?} of {not:?}"));
        }
        known = seen;
        if rng.u8(..4) == 0 {
            let arriving: Vec<_> = late.lock().drain(..).collect();
            for (key, value, expect) in arriving {
                let _ = memory.records().put(&key, &value, expect).await;
            }
            known = read_state(&*healthy).await?;
        }
    }
    Ok(())
}

/// Runs many histories. Returns the number of those that went wrong, and the problem of the first.
async fn run_histories(mode: Mode) -> (u64, Option<String>) {
    let first = match std::env::var("DISTLOCK_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => fastrand::u64(..),
    };
    let (mut wrong, mut why, met) = (0, None, Arc::default());
    for seed in first..first.saturating_add(HISTORIES) {
        if let Err(problem) = run_history(mode, seed, &met).await {
            wrong += 1;
            why.get_or_insert(format!("DISTLOCK_SEED={seed}: {problem}"));
        }
    }
    let met = met.load(Ordering::Relaxed);
    assert!(met > 1000, "only {met} faults were met");
    (wrong, why)
}

#[tokio::test]
async fn no_crash_leaves_half_a_change_of_locked_counters() {
    assert_eq!(run_histories(Mode::Locked).await, (0, None));
}

#[tokio::test]
async fn no_crash_leaves_half_a_change_of_optimistic_counters() {
    assert_eq!(run_histories(Mode::Optimistic).await, (0, None));
}

/// This test shows that the histories can find a mistake.
#[tokio::test]
async fn counters_without_a_journal_disagree_after_crashes() {
    let (wrong, _) = run_histories(Mode::Naive).await;
    assert!(wrong > HISTORIES / 2, "only {wrong} histories went wrong");
}

/// Records that read several keys one by one, as a cluster does, and let other tasks run in
/// between.
#[derive(Clone, Debug)]
struct Slow(Arc<dyn Records>);

#[async_trait]
impl Records for Slow {
    fn backend(&self) -> &'static str {
        self.0.backend()
    }

    fn tells_ages(&self) -> bool {
        self.0.tells_ages()
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        Ok(Arc::new(self.clone()))
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let entry = self.0.get(key).await;
        let_others_run().await;
        entry
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let mut entries = Vec::new();
        for key in keys {
            entries.push(self.get(key).await?);
        }
        Ok(entries)
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let_others_run().await;
        self.0.put(key, value, expect).await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.0.delete(key, expect).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        self.0.scan(prefix, after, limit).await
    }

    async fn close(&self) {}
}

async fn let_others_run() {
    for _ in 0..fastrand::u8(..4) {
        tokio::task::yield_now().await;
    }
}

/// Runs changes of eight tasks at the same time on the same counters. Half of the tasks use each
/// mode.
async fn run_concurrent_changes(modes: [Mode; 2]) -> std::result::Result<State, String> {
    let memory = Memory::default();
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let records = Arc::new(Slow(memory.records()));
        let counters = counters(modes[task % 2], &memory, records);
        tasks.spawn(async move {
            for _ in 0..100 {
                tokio::task::yield_now().await;
                for conversation in CONVERSATIONS {
                    counters
                        .increment(&counter_of(conversation), 1)
                        .await
                        .unwrap();
                }
                if task == 0 {
                    counters.clear(&counter_of("news")).await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    read_state(&*counters(modes[0], &memory, memory.records())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_concurrent_increment_is_lost() {
    let modes = [
        [Mode::Locked, Mode::Locked],
        [Mode::Optimistic, Mode::Optimistic],
        [Mode::Locked, Mode::Optimistic],
    ];
    for modes in modes {
        let state = run_concurrent_changes(modes).await.unwrap();
        assert_eq!((state["family"], state["work"]), (800, 800), "{modes:?}");
    }
}

#[tokio::test]
async fn locked_and_optimistic_counters_give_the_same_results() {
    let memory = [Memory::default(), Memory::default()];
    let modes = [Mode::Locked, Mode::Optimistic];
    let both = [0, 1].map(|at| counters(modes[at], &memory[at], memory[at].records()));
    let mut rng = Rng::with_seed(7);
    for _ in 0..500 {
        let step = Step::random(&mut rng);
        let [one, two] = &both;
        let (one, two) = (step.apply(&**one).await, step.apply(&**two).await);
        let kind = |error: Error| (error.kind(), error.to_string());
        assert_eq!(one.map_err(kind), two.map_err(kind), "{step:?}");
    }
}

/// A holder continues after its lease has ended and after another holder has changed the counters.
#[tokio::test]
async fn a_holder_of_a_lost_lock_changes_nothing() {
    let memory = Memory::default();
    let store = Store::new(memory.lock(), memory.records());
    let counters = LockedCounters::new(&store);
    counters.increment(&counter_of("work"), 1).await.unwrap();
    // The test writes the largest token into the journal, as if a later holder of the lock had made
    // a change.
    let journal = RecordKey::new("unread/ann/journal").unwrap();
    let entry = memory.records().get(&journal).await.unwrap().unwrap();
    let mut intent: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
    intent["token"] = MOST.into();
    let later = serde_json::to_vec(&intent).unwrap();
    let expect = Expect::Version(entry.version);
    memory
        .records()
        .put(&journal, &later, expect)
        .await
        .unwrap();
    let error = counters
        .increment(&counter_of("work"), 1)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(counters.read(&counter_of("work")).await.unwrap().total, 1);
}

#[tokio::test]
async fn invalid_input_is_named_in_the_error_and_changes_nothing() {
    let memory = Memory::default();
    let counters = counters(Mode::Optimistic, &memory, memory.records());
    for (user, conversation) in [("", "x"), ("ann", "a/b"), ("an\n", "x"), ("ann", "{x}")] {
        let error = Counter::new(user, conversation).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    }
    let long = Counter::new("u".repeat(129), "x").unwrap_err().to_string();
    assert!(long.contains("129 bytes"), "{long}");
    for unknown in [
        counters.read(&counter_of("work")).await,
        counters.clear(&counter_of("work")).await,
    ] {
        let error = unknown.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("\"work\" of \"ann\""), "{error}");
    }
    counters.increment(&counter_of("work"), 5).await.unwrap();
    for amount in [0, -3] {
        let error = counters
            .increment(&counter_of("work"), amount)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.to_string().contains(&format!("amount is {amount}")),
            "{error}"
        );
    }
    let too_many = i64::try_from(MOST).unwrap() - 4;
    let error = counters
        .increment(&counter_of("work"), too_many)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    let five = Unread {
        conversation: 5,
        total: 5,
    };
    assert_eq!(counters.read(&counter_of("work")).await.unwrap(), five);
    let total = RecordKey::new("unread/ann/total").unwrap();
    let entry = memory.records().get(&total).await.unwrap().unwrap();
    let garbage = Expect::Version(entry.version);
    memory
        .records()
        .put(&total, b"five", garbage)
        .await
        .unwrap();
    let error = counters
        .increment(&counter_of("work"), 1)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("unread/ann/total"), "{error}");
}
