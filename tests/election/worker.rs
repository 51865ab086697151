//! A process that is a candidate in every election. The process records its steps while it leads.

use std::{
    env,
    fs::{File, OpenOptions},
    io::Write as _,
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, FencedFile, FencingToken, SystemClock};
use distlock_recipes::election::{Election, Term};
use tokio::{runtime::Builder, task::JoinSet};

/// The TTL of the leader's lock. An election has no leader for this time after a leader has died.
pub(crate) const TTL: Duration = Duration::from_secs(1);
/// The duration of the longest term, in milliseconds.
const LONGEST: u64 = 300;
/// The time between two steps of a leader.
const STEP: Duration = Duration::from_millis(25);

const URL: &str = "DISTLOCK_ELECTION_WORKER";
const FOLDER: &str = "DISTLOCK_ELECTION_FOLDER";
const ELECTIONS: &str = "DISTLOCK_ELECTION_COUNT";

/// The orders of a worker process.
pub(crate) struct Work {
    pub(crate) url: String,
    pub(crate) folder: PathBuf,
    pub(crate) elections: usize,
}

impl Work {
    /// Reads the orders; `None` in a process that is no worker.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        let Ok(url) = env::var(URL) else {
            return Ok(None);
        };
        Ok(Some(Self {
            url,
            folder: env::var_os(FOLDER).context("the folder")?.into(),
            elections: env::var(ELECTIONS)?.parse()?,
        }))
    }

    pub(crate) fn into_environment(self, command: &mut Command) -> &mut Command {
        command
            .env(URL, self.url)
            .env(FOLDER, self.folder)
            .env(ELECTIONS, self.elections.to_string())
    }
}

/// A running term. Dropping the value records the end of the term.
struct Leading<'a> {
    log: &'a Log,
    term: FencingToken,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.log.note("ends", self.term, now_us());
    }
}

/// The log of all processes. Each line is appended in one write, so that lines of several processes
/// do not mix.
#[derive(Debug)]
struct Log(File, usize);

impl Log {
    fn note(&self, what: &str, term: FencingToken, since_us: u64) {
        let (election, process) = (self.1, std::process::id());
        let line = format!(
            "{what} {election} {term} {process} {since_us} {}\n",
            now_us()
        );
        if let Err(error) = (&self.0).write_all(line.as_bytes()) {
            tracing::error!(%error, "it is not written down");
        }
    }
}

pub(crate) fn run(work: &Work) -> Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .init();
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(async {
            let store = loop {
                match distlock::open(work.url.as_str()).await {
                    Ok(store) => break store,
                    Err(error) => tracing::warn!(%error, "the store is away"),
                }
                SystemClock.sleep(STEP).await;
            };
            let file = OpenOptions::new()
                .append(true)
                .create(true)
                .open(work.folder.join("log"))?;
            let mut tasks = JoinSet::new();
            for number in 0..work.elections {
                let candidate = std::process::id().to_string();
                let election =
                    Election::new(&store, &format!("play-{number}"), &candidate)?.ttl(TTL);
                let log = Log(file.try_clone()?, number);
                let bar = FencedFile::open(work.folder.join(format!("bar-{number}")))?;
                let bar = Arc::new(bar);
                tasks.spawn(async move {
                    loop {
                        let led =
                            election.run_while_leader(|term| lead(&log, Arc::clone(&bar), term));
                        if let Err(error) = led.await {
                            tracing::warn!(%error, "no campaign");
                            SystemClock.sleep(STEP).await;
                        }
                    }
                });
            }
            tasks.join_all().await;
            Ok(())
        })
}

async fn lead(log: &Log, bar: Arc<FencedFile>, term: Term) {
    log.note("begins", term.number, now_us());
    let leading = Leading {
        log,
        term: term.number,
    };
    let until = SystemClock.now() + Duration::from_millis(fastrand::u64(..LONGEST));
    while SystemClock.now() < until {
        let (bar, fence, since_us) = (Arc::clone(&bar), term.fence.clone(), now_us());
        let step = tokio::task::spawn_blocking(move || bar.read_fenced(&fence));
        let what = match step.await {
            Ok(Ok(_)) => "steps",
            Ok(Err(error)) if error.refusal().is_some() => "refused",
            other => {
                tracing::error!(?other, "the resource failed");
                continue;
            }
        };
        log.note(what, term.number, since_us);
        SystemClock.sleep(STEP).await;
    }
    drop(leading);
}

pub(crate) fn now_us() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
