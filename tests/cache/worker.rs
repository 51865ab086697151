//! A process of 64 tasks that read one hot value. The process records each load.

use std::{
    env,
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, SystemClock};
use distlock_recipes::cache_guard::{CacheGuard, RedisCache, Settings};
use tokio::{runtime::Builder, task::JoinSet};

pub(crate) const KEY: &str = "hot";
const TASKS: usize = 64;
/// The time for which a value is fresh.
pub(crate) const TTL: Duration = Duration::from_millis(500);
/// The duration of one load.
const LOAD: Duration = Duration::from_millis(150);
/// The TTL of a loader's lock. Nobody loads the value for this time after a loader has died.
const LOCK_TTL: Duration = Duration::from_secs(1);
/// The pause between two reads of a task.
const PAUSE: Duration = Duration::from_millis(20);

const URL: &str = "DISTLOCK_CACHE_WORKER";
const LOG: &str = "DISTLOCK_CACHE_LOADS";
const GUARDED: &str = "DISTLOCK_CACHE_GUARDED";

/// The orders of a worker process.
pub(crate) struct Work {
    pub(crate) url: String,
    pub(crate) log: PathBuf,
    pub(crate) guarded: bool,
}

impl Work {
    /// Reads the orders; `None` in a process that is no worker.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        let Ok(url) = env::var(URL) else {
            return Ok(None);
        };
        Ok(Some(Self {
            url,
            log: env::var_os(LOG).context("the log")?.into(),
            guarded: env::var_os(GUARDED).is_some(),
        }))
    }

    pub(crate) fn into_environment(self, command: &mut Command) -> &mut Command {
        command.env(URL, self.url).env(LOG, self.log);
        if self.guarded {
            command.env(GUARDED, "yes");
        }
        command
    }
}

pub(crate) fn number(value: &[u8]) -> u64 {
    String::from_utf8_lossy(value).parse().unwrap_or_default()
}

pub(crate) fn run(work: &Work) -> Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .init();
    Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let mut tasks = JoinSet::new();
            if work.guarded {
                let store = distlock::open(work.url.as_str()).await?;
                let mut settings = Settings::ttl(TTL);
                settings.jitter = 0.0;
                settings.beta = 0.0;
                settings.lock_ttl = Some(LOCK_TTL);
                settings.max_load = Duration::from_secs(10);
                let cache = RedisCache::new(&work.url)?;
                let guard = CacheGuard::new(&store, cache, settings)?;
                for _ in 0..TASKS {
                    let (guard, log) = (guard.clone(), work.log.clone());
                    tasks.spawn(async move {
                        loop {
                            let log = log.clone();
                            let value = guard.get_or_rebuild(KEY, async move || load(&log).await);
                            if let Err(error) = value.await {
                                tracing::error!(%error, "no value");
                            }
                            SystemClock.sleep(PAUSE).await;
                        }
                    });
                }
            } else {
                let client = redis::Client::open(work.url.as_str())?;
                let server = client.get_multiplexed_async_connection().await?;
                for _ in 0..TASKS {
                    let (mut server, log) = (server.clone(), work.log.clone());
                    tasks.spawn(async move {
                        loop {
                            if let Err(error) = get_without_guard(&mut server, &log).await {
                                tracing::error!(%error, "no value");
                            }
                            SystemClock.sleep(PAUSE).await;
                        }
                    });
                }
            }
            tasks.join_all().await;
            Ok(())
        })
}

/// Reads the value and, if it is absent, loads and stores it. This is cache-aside without a guard.
async fn get_without_guard(
    server: &mut redis::aio::MultiplexedConnection,
    log: &Path,
) -> Result<()> {
    let mut get = redis::cmd("GET");
    let value: Option<Vec<u8>> = get.arg(KEY).query_async(server).await?;
    if value.is_none() {
        let value = load(log).await?.unwrap_or_default();
        let mut set = redis::cmd("SET");
        set.arg(KEY)
            .arg(value)
            .arg("PX")
            .arg(u64::try_from(TTL.as_millis())?);
        set.exec_async(server).await?;
    }
    Ok(())
}

/// Loads the value, which is a number that rises with each load.
async fn load(log: &Path) -> distlock::Result<Option<Vec<u8>>> {
    let number = now_us();
    note(log, "began", number);
    SystemClock.sleep(LOAD).await;
    note(log, "ended", number);
    Ok(Some(number.to_string().into_bytes()))
}

/// Appends a line in one write, so that lines of several processes do not mix.
fn note(log: &Path, what: &str, number: u64) {
    let line = format!("{what} {number} {} {}\n", std::process::id(), now_us());
    let file = OpenOptions::new().append(true).create(true).open(log);
    let noted = file.and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = noted {
        tracing::error!(%error, "a load is not written down");
    }
}

fn now_us() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
