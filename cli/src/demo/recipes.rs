//! The second part of the demo: counters, a cache, an election, and readers with a writer, each
//! with a verdict.

use std::{
    future::Future,
    path::Path,
    pin::Pin,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use distlock::{
    Clock as _, ErrorKind, Expect, RecordKey, Records, Store, SystemClock, Target, Written,
};
use distlock_recipes::{
    cache_guard::{CacheGuard, MemoryCache, Settings},
    unread::{Counter, LockedCounters, Unread, UnreadCounters as _},
};
use rustix::process::Pid;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinSet,
};

use super::{readers, timeline::Timeline};
use crate::{drivers, group::is_group_alive};

/// The number of callers that change the counters, or want the value, at the same time.
const CALLERS: usize = 16;
/// The number of changes that each caller makes.
const CHANGES: usize = 60;
/// The longest time, in microseconds, until the future of a caller that dies in the middle of its
/// change is dropped.
const MAX_LIFE_US: u64 = 10_000;
const USERS: usize = 8;
const CONVERSATIONS: [&str; 3] = ["family", "work", "news"];

/// A value is fresh for this time.
const TTL: Duration = Duration::from_millis(200);
/// Loading the value takes this time.
const LOAD_TIME: Duration = Duration::from_millis(30);
/// The callers ask for the value during this time.
const ASKING_TIME: Duration = Duration::from_millis(1200);
/// The length of the longest bar, in characters.
const MAX_BAR: u64 = 50;

/// The lease of a leader. After a leader was killed, the other candidates wait for the end of the
/// lease.
const LEASE: &str = "1s";
/// The deadline of each step that has no reason to take long.
const STEP_LIMIT: Duration = Duration::from_secs(20);

/// One scene.
type Scene = for<'a> fn(&'a RecipesPlay) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

const SCENES: [(&str, Scene); 4] = [
    (
        "unread counters: 16 callers, of whom many die in the middle of a change",
        |stage| Box::pin(stage.play_counters()),
    ),
    (
        "a hot value ends, and 16 callers want it: loads without the guard, and with it",
        |stage| Box::pin(stage.play_stampede()),
    ),
    ("an election: the leader is killed with SIGKILL", |stage| {
        Box::pin(stage.play_election())
    }),
    ("eight readers without a pause, and a writer", |stage| {
        Box::pin(async move { readers::play(&stage.store, &|what| stage.remark(what)).await })
    }),
];

struct RecipesPlay {
    timeline: Arc<Timeline>,
    store: Store,
    url: String,
}

/// Plays all scenes, and returns whether each scene ended as it should.
pub(crate) async fn play_scenes(json: bool) -> Result<bool> {
    // The folder is removed when this function ends or when its future is dropped.
    let folder = tempfile::Builder::new()
        .prefix("distlock-demo-")
        .tempdir()
        .context("make a temporary folder")?;
    let target = Target::sqlite(folder.path().join("demo.db"));
    let stage = RecipesPlay {
        timeline: Arc::new(Timeline::new(json)),
        store: drivers::open(&target).await?,
        url: target.reveal_url(),
    };
    stage.timeline.print_opening(
        "what people build with a lock",
        "a SQLite file in a temporary folder",
    );
    let mut passed = 0;
    for (index, (title, scene)) in SCENES.iter().enumerate() {
        stage.timeline.begin_scene(index + 1, title, false);
        let outcome = scene(&stage).await;
        let failure = outcome.err().map(|error| format!("{error:#}"));
        stage.timeline.print_verdict(title, failure.as_deref());
        passed += usize::from(failure.is_none());
    }
    stage.store.close().await;
    stage.timeline.print_result(passed, SCENES.len());
    Ok(passed == SCENES.len())
}

impl RecipesPlay {
    /// Prints a line to the timeline.
    fn remark(&self, what: &str) {
        self.timeline.print_remark(what);
    }

    /// The same callers change two kinds of counters. In the first kind, the conversation and the
    /// total are written one after the other. In the second kind, the two always agree.
    async fn play_counters(&self) -> Result<()> {
        let naive = Arc::new(OneByOne(self.store.records()));
        let ours = Arc::new(LockedCounters::new(&self.store));
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let (naive, ours) = (Arc::clone(&naive), Arc::clone(&ours));
            callers.spawn(async move {
                for _ in 0..CHANGES {
                    let conversation = CONVERSATIONS[fastrand::usize(..CONVERSATIONS.len())];
                    let user = format!("user-{}", fastrand::usize(..USERS));
                    let counter = Counter::new(user, conversation)?;
                    let is_read = fastrand::u8(..6) == 0;
                    run_or_drop(naive.change(&counter, is_read)).await?;
                    run_or_drop(async {
                        let changed = match is_read {
                            true => ours.clear(&counter).await,
                            false => ours.increment(&counter, 1).await,
                        };
                        match changed {
                            // The counter does not exist yet.
                            Err(error) if error.kind() == ErrorKind::InvalidArgument => Ok(()),
                            changed => changed.map(drop),
                        }
                    })
                    .await?;
                }
                Ok::<_, distlock::Error>(())
            });
        }
        for caller in callers.join_all().await {
            caller?;
        }
        // For both kinds, the number of users whose total is not the sum of their conversations.
        let (mut wrong_one_by_one, mut wrong) = (0, 0);
        for user in 0..USERS {
            let (mut theirs, mut sum) = ([Unread::default(); 2], [0, 0]);
            for conversation in CONVERSATIONS {
                let counter = Counter::new(format!("user-{user}"), conversation)?;
                let ours = match ours.read(&counter).await {
                    Err(error) if error.kind() == ErrorKind::InvalidArgument => continue,
                    unread => unread?,
                };
                theirs = [naive.read(&counter).await?, ours];
                sum = [
                    sum[0] + theirs[0].conversation,
                    sum[1] + theirs[1].conversation,
                ];
            }
            wrong_one_by_one += u32::from(theirs[0].total != sum[0]);
            wrong += u32::from(theirs[1].total != sum[1]);
        }
        for (way, wrong) in [("one by one", wrong_one_by_one), ("unread counters", wrong)] {
            self.remark(&format!(
                "{way:>15}: {wrong} of {USERS} users see a wrong total"
            ));
        }
        ensure!(wrong == 0, "a total is not the sum of its conversations");
        ensure!(
            wrong_one_by_one > 0,
            "the counters that are written one by one agree, so this shows nothing"
        );
        Ok(())
    }

    /// Compares the loads of a hot value with the guard and without.
    async fn play_stampede(&self) -> Result<()> {
        let alone = self.count_loads(false).await?;
        let guarded = self.count_loads(true).await?;
        let most = alone.max(guarded).max(1);
        for (name, loads) in [("without", alone), ("with", guarded)] {
            let bar = usize::try_from((loads * MAX_BAR).div_ceil(most)).unwrap_or(1);
            self.remark(&format!(
                "{name:>8} the guard {:<50} {loads} loads",
                "#".repeat(bar)
            ));
        }
        let endings = ASKING_TIME.as_millis() / (TTL + LOAD_TIME).as_millis() + 1;
        ensure!(
            u128::from(guarded) <= endings,
            "{guarded} loads for {endings} endings"
        );
        ensure!(
            alone > guarded * 4,
            "there was no stampede, so this shows nothing"
        );
        Ok(())
    }

    /// Counts the loads of a value that all callers want for a while, with the guard or without.
    async fn count_loads(&self, guarded: bool) -> Result<u64> {
        let mut settings = Settings::ttl(TTL);
        settings.jitter = 0.0;
        settings.beta = 0.0;
        let guard = CacheGuard::new(&self.store, MemoryCache::new(10), settings)?;
        let aside = Arc::new(distlock::backend::sync::Mutex::new(None));
        let loads = Arc::new(AtomicU64::new(0));
        let until = SystemClock.now() + ASKING_TIME;
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let (guard, loads, aside) = (guard.clone(), Arc::clone(&loads), Arc::clone(&aside));
            callers.spawn(async move {
                while SystemClock.now() < until {
                    let loads = Arc::clone(&loads);
                    let load = async move || {
                        loads.fetch_add(1, Ordering::Relaxed);
                        SystemClock.sleep(LOAD_TIME).await;
                        Ok(Some(vec![42]))
                    };
                    if guarded {
                        guard.get_or_rebuild("hot", load).await?;
                    } else {
                        // Without the guard, each caller that finds no fresh value loads it.
                        let fresh = *aside.lock();
                        if fresh.is_none_or(|until| SystemClock.now() >= until) {
                            load().await?;
                            let fresh = Some(SystemClock.now() + TTL);
                            *aside.lock() = fresh;
                        }
                    }
                    SystemClock.sleep(Duration::from_millis(5)).await;
                }
                Ok::<_, distlock::Error>(())
            });
        }
        for caller in callers.join_all().await {
            caller?;
        }
        Ok(loads.load(Ordering::Relaxed))
    }

    /// Runs three candidates, which are processes of `distlock elect`, and kills the leader.
    async fn play_election(&self) -> Result<()> {
        let folder = self.url.trim_start_matches("sqlite:");
        let log = Path::new(folder).with_file_name("leaders");
        let mut candidates = Vec::new();
        for name in ["anna", "bob", "carl"] {
            candidates.push(Candidate::start(name, &self.url, &log)?);
        }
        let (first, term, pid) = next_leader(&mut candidates).await?;
        self.remark(&format!("{} leads, term {term}", candidates[first].name));
        candidates[first]
            .process
            .kill()
            .await
            .context("kill the leader")?;
        let killed = SystemClock.now();
        self.remark(&format!("{} is killed", candidates[first].name));
        let gone = candidates.remove(first);
        let (next, later, _) = next_leader(&mut candidates).await?;
        let took = SystemClock.now().since(killed);
        self.remark(&format!(
            "{} leads, term {later}, {:.1} s later (the lease is {LEASE})",
            candidates[next].name,
            took.as_secs_f64()
        ));
        ensure!(later > term, "term {later} is not higher than {term}");
        // The command is the leader of its own process group.
        let group = Pid::from_raw(pid).context("a process")?;
        ensure!(
            !is_group_alive(group),
            "what {} ran is alive still",
            gone.name
        );
        self.remark(&format!("what {} ran was ended by its watchdog", gone.name));
        Ok(())
    }
}

/// Runs a change. One caller in four dies in the middle of it: its future is dropped after a random
/// time.
async fn run_or_drop(change: impl Future<Output = distlock::Result<()>>) -> distlock::Result<()> {
    if fastrand::u8(..4) > 0 {
        return change.await;
    }
    let life = Duration::from_micros(fastrand::u64(..MAX_LIFE_US));
    tokio::select! {
        changed = change => changed,
        () = SystemClock.sleep(life) => Ok(()),
    }
}

/// Counters whose two records are written one after the other, as a simple first version does.
struct OneByOne(Arc<dyn Records>);

impl OneByOne {
    /// Increments the counter, or clears it when it `is_read`.
    async fn change(&self, counter: &Counter, is_read: bool) -> distlock::Result<()> {
        let [conversation, total] = keys(counter)?;
        if is_read {
            let before = self.count(&conversation).await?;
            self.set(&conversation, |_| 0).await?;
            self.set(&total, |total| total.saturating_sub(before)).await
        } else {
            self.set(&conversation, |count| count + 1).await?;
            self.set(&total, |count| count + 1).await
        }
    }

    /// Reads the conversation and the total.
    async fn read(&self, counter: &Counter) -> distlock::Result<Unread> {
        let [conversation, total] = keys(counter)?;
        Ok(Unread {
            conversation: self.count(&conversation).await?,
            total: self.count(&total).await?,
        })
    }

    /// Reads one record as a number.
    async fn count(&self, key: &RecordKey) -> distlock::Result<u64> {
        let entry = self.0.get(key).await?;
        Ok(entry.map_or(0, |entry| parse_count(&entry.value)))
    }

    /// Changes one record, and tries again when another caller changed it in between.
    async fn set(&self, key: &RecordKey, to: impl Fn(u64) -> u64) -> distlock::Result<()> {
        loop {
            let entry = self.0.get(key).await?;
            let count = to(entry.as_ref().map_or(0, |entry| parse_count(&entry.value)));
            let expect = entry.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            let value = count.to_string().into_bytes();
            if matches!(self.0.put(key, &value, expect).await?, Written::Stored(_)) {
                return Ok(());
            }
        }
    }
}

/// The records of the conversation and of the total.
fn keys(counter: &Counter) -> distlock::Result<[RecordKey; 2]> {
    let user = counter.user();
    Ok([
        RecordKey::new(format!("one-by-one/{user}/of/{}", counter.conversation()))?,
        RecordKey::new(format!("one-by-one/{user}/total"))?,
    ])
}

/// Reads a number from a record; anything else counts as 0.
fn parse_count(value: &[u8]) -> u64 {
    String::from_utf8_lossy(value).parse().unwrap_or_default()
}

struct Candidate {
    name: &'static str,
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Candidate {
    /// Starts a candidate. Its command prints its term and its process id.
    fn start(name: &'static str, url: &str, log: &Path) -> Result<Self> {
        let leads = format!(
            "echo $DISTLOCK_TOKEN $$; echo {name} >> '{}'; exec sleep 600",
            log.display()
        );
        let mut process = Command::new(std::env::current_exe().context("where this program is")?)
            .args([
                "elect", "demo", "--ttl", LEASE, "--holder", name, "--", "sh", "-c", &leads,
            ])
            .env("DISTLOCK_BACKEND", url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start the candidate {name}"))?;
        let stdout = process
            .stdout
            .take()
            .context("a candidate without output")?;
        Ok(Self {
            name,
            process,
            lines: BufReader::new(stdout).lines(),
        })
    }
}

/// Waits for the next leader, and returns its index, its term, and the process id of its command.
async fn next_leader(candidates: &mut [Candidate]) -> Result<(usize, u64, i32)> {
    let reading = candidates
        .iter_mut()
        .map(|candidate| Box::pin(candidate.lines.next_line()));
    let first = futures_util::future::select_all(reading);
    let (line, leader, _) = tokio::time::timeout(STEP_LIMIT, first)
        .await
        .context("nobody leads")?;
    let line = line?.context("a candidate ended")?;
    let (term, pid) = line.split_once(' ').context("a term and a process")?;
    Ok((leader, term.parse()?, pid.parse()?))
}
