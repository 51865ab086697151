//! Tests of the guarded cache over a real Redis: 8 processes of 64 tasks each read one hot value.
//! Some processes are killed or stopped while they load the value. Without the guard, the same
//! workload causes needless loads.

mod worker;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use distlock::{Clock as _, ErrorKind, FencingToken, SystemClock};
use distlock_harness::{Process, Signal, eventually_async, servers::redis::RedisServer};
use distlock_recipes::cache_guard::{Cache, Loaded, RedisCache};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

use crate::worker::{KEY, TTL, Work};

/// The number of processes that read the value.
const PROCESSES: usize = 8;
/// The time for which the processes read.
const TIME: Duration = Duration::from_secs(5);
/// The deadline of every step that has no reason to take long, on a machine that is busy with other
/// tests.
const SOON: Duration = Duration::from_secs(20);

fn main() -> Result<ExitCode> {
    if let Some(work) = Work::from_environment()? {
        return worker::run(&work).map(|()| ExitCode::SUCCESS);
    }
    let trials = vec![
        trial("one_load_follows_each_expiry", check_one_load_per_expiry),
        trial("a_killed_loader_causes_one_more_load", check_killed_loaders),
        trial(
            "a_value_of_a_stopped_loader_is_refused",
            check_stopped_loaders,
        ),
        trial("late_values_are_refused_by_redis", check_late_values),
        trial("options_of_the_url_are_used", check_options),
    ];
    Ok(libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}

fn trial(name: &str, play: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, || play().map_err(|error| format!("{error:#}").into()))
}

/// A load, as its loader records it.
#[derive(Clone, Copy, Debug)]
struct Load {
    began_us: u64,
    /// `None` for a load that did not finish.
    ended_us: Option<u64>,
    process: u32,
}

/// The server, the log and the folder of one test.
struct Fixture {
    server: RedisServer,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        Ok(Self {
            server: RedisServer::start()?,
            log: folder.path().join("loads"),
            _folder: folder,
        })
    }

    fn start(&self, guarded: bool) -> Result<Process> {
        let work = Work {
            url: self.server.url(),
            log: self.log.clone(),
            guarded,
        };
        let mut command = Command::new(env::current_exe()?);
        Process::spawn(work.into_environment(&mut command)).context("start a worker")
    }

    fn start_all(&self, guarded: bool) -> Result<Vec<Process>> {
        (0..PROCESSES).map(|_| self.start(guarded)).collect()
    }

    /// All loads, in the order of their start.
    fn loads(&self) -> Result<Vec<Load>> {
        parse_loads(&self.log)
    }

    /// The value in the cache, which is the number of its load.
    async fn cached(&self) -> Result<Option<u64>> {
        let found = RedisCache::new(&self.server.url())?.get(KEY).await?.found;
        let value = found.and_then(|found| found.value);
        Ok(value.map(|value| worker::number(&value)))
    }
}

fn parse_loads(log: &Path) -> Result<Vec<Load>> {
    let mut loads: BTreeMap<u64, Load> = BTreeMap::new();
    for line in fs::read_to_string(log).unwrap_or_default().lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [what, number, process, at_us] = words[..] else {
            anyhow::bail!("the log says {line:?}");
        };
        let at_us = at_us.parse()?;
        let load = loads.entry(number.parse()?).or_insert(Load {
            began_us: at_us,
            ended_us: None,
            process: process.parse()?,
        });
        if what == "ended" {
            load.ended_us = Some(at_us);
        }
    }
    let mut loads: Vec<_> = loads.into_values().collect();
    loads.sort_by_key(|load| load.began_us);
    Ok(loads)
}

/// The number of loads that started before the value of an earlier load had expired.
fn count_needless(loads: &[Load]) -> usize {
    let ttl_us = u64::try_from(TTL.as_micros()).unwrap_or(u64::MAX);
    let is_needless = |pair: &[Load]| {
        let ends_us = pair[0].ended_us.map_or(0, |ended_us| ended_us + ttl_us);
        pair[1].began_us < ends_us
    };
    loads.windows(2).filter(|pair| is_needless(pair)).count()
}

fn check_one_load_per_expiry() -> Result<()> {
    let runtime = Runtime::new()?;
    for guarded in [true, false] {
        let fixture = Fixture::new()?;
        let processes = fixture.start_all(guarded)?;
        runtime.block_on(async { SystemClock.sleep(TIME).await });
        drop(processes);
        let loads = fixture.loads()?;
        let needless = count_needless(&loads);
        let says = format!("{} loads, {needless} of them needless", loads.len());
        if guarded {
            ensure!(needless == 0, "{says}: {loads:?}");
            ensure!(loads.len() >= 4, "{says}: nothing is shown");
        } else {
            ensure!(needless > loads.len() / 2, "{says}, without the guard");
        }
        print_result(&format!("guarded: {guarded}, {says}"));
    }
    Ok(())
}

/// A loader is killed with SIGKILL in the middle of a load. One more load follows, after the lease
/// of the dead loader.
fn check_killed_loaders() -> Result<()> {
    let fixture = Fixture::new()?;
    let runtime = Runtime::new()?;
    let mut processes = fixture.start_all(true)?;
    let mut kills = 0;
    while kills < 5 {
        let before = fixture.loads()?.len();
        let load = runtime.block_on(wait_for_load(&fixture, before))?;
        let victim = processes.iter().position(|it| it.id() == load.process);
        let victim = victim.context("a load of a process that is not there")?;
        processes[victim].signal(Signal::KILL)?;
        processes[victim] = fixture.start(true)?;
        kills += 1;
        let stored = eventually_async("another load", SOON, || async {
            let loads = fixture.loads().ok()?;
            let mut after = loads.iter().skip(before + 1);
            after.find(|load| load.ended_us.is_some())?;
            Some(())
        });
        runtime.block_on(stored)?;
    }
    drop(processes);
    let loads = fixture.loads()?;
    let broken = |load: &Load| load.ended_us.is_none();
    let twice = loads
        .windows(2)
        .filter(|pair| broken(&pair[0]) && broken(&pair[1]))
        .count();
    // The loader of the last load is killed too, at the end of the test.
    let all = loads.iter().filter(|load| broken(load)).count();
    ensure!(
        twice == 0 && (kills..=kills + 1).contains(&all),
        "{kills} kills, and {loads:?}"
    );
    // A finished load follows each unfinished load, unless the loader of the second load was killed
    // too.
    ensure!(count_needless(&loads) == 0, "{loads:?}");
    print_result(&format!(
        "{} loads, {all} of them killed, none of them needless",
        loads.len()
    ));
    Ok(())
}

/// The first load that runs now, after the first `after` loads of the log.
async fn wait_for_load(fixture: &Fixture, after: usize) -> Result<Load> {
    eventually_async("a load", SOON, || async {
        let loads = fixture.loads().ok()?;
        let running = loads
            .iter()
            .skip(after)
            .find(|load| load.ended_us.is_none());
        running.copied()
    })
    .await
}

/// A loader is stopped with SIGSTOP in the middle of a load, for longer than its lease. The value
/// that it stores afterwards is older than the value in the cache, and must be refused.
fn check_stopped_loaders() -> Result<()> {
    let fixture = Fixture::new()?;
    let runtime = Runtime::new()?;
    let processes = fixture.start_all(true)?;
    for _ in 0..3 {
        let before = fixture.loads()?.len();
        let load = runtime.block_on(wait_for_load(&fixture, before))?;
        let victim = processes.iter().find(|it| it.id() == load.process);
        let victim = victim.context("a load of a process that is not there")?;
        victim.signal(Signal::STOP)?;
        let stopped = fixture.loads()?.len();
        // Now another loader has loaded and stored the value.
        let newer = runtime.block_on(eventually_async("another load", SOON, || async {
            let loads = fixture.loads().ok()?;
            loads
                .iter()
                .skip(stopped)
                .find(|load| load.ended_us.is_some())?;
            fixture.cached().await.ok()?
        }))?;
        victim.signal(Signal::CONT)?;
        // The stopped loader ends its load now. No process may read its value from the cache.
        let until = SystemClock.now() + TTL * 2;
        while SystemClock.now() < until {
            if let Some(cached) = runtime.block_on(fixture.cached())? {
                ensure!(cached >= newer, "{cached} was stored over {newer}");
            }
        }
    }
    let refused: usize = processes
        .iter()
        .map(|process| process.output().matches("came too late").count())
        .sum();
    ensure!(refused >= 3, "only {refused} values were refused");
    print_result(&format!("{refused} values that came too late were refused"));
    Ok(())
}

fn check_late_values() -> Result<()> {
    let fixture = Fixture::new()?;
    Runtime::new()?.block_on(async {
        let cache = RedisCache::new(&fixture.server.url())?;
        let loaded = |value: Option<&[u8]>, token: u64| {
            anyhow::Ok(Loaded {
                value: value.map(Into::into),
                token: FencingToken::new(token)?,
                ttl: Duration::from_millis(300),
                stale: Duration::from_millis(300),
                floor: Duration::from_millis(600),
                load: Duration::from_micros(1234),
            })
        };
        let began = cache.get("k").await?;
        ensure!(began.found.is_none());
        ensure!(
            cache
                .put("k", &loaded(Some(b"two"), 2)?, began.mark)
                .await?
        );
        ensure!(
            !cache
                .put("k", &loaded(Some(b"one"), 1)?, began.mark)
                .await?
        );
        let seen = cache.get("k").await?;
        let found = seen.found.context("the value")?;
        ensure!(found.value.as_deref() == Some(&b"two"[..]) && found.token.get() == 2);
        ensure!(found.load == Duration::from_micros(1234), "{found:?}");
        ensure!(!found.fresh_for.is_zero() && found.fresh_for <= Duration::from_millis(300));
        SystemClock.sleep(Duration::from_millis(320)).await;
        let stale = cache.get("k").await?.found.context("a stale value")?;
        ensure!(stale.fresh_for.is_zero(), "{stale:?}");
        SystemClock.sleep(Duration::from_millis(320)).await;
        // The value has expired, and its floor has not expired.
        let ended = cache.get("k").await?;
        ensure!(ended.found.is_none());
        ensure!(
            !cache
                .put("k", &loaded(Some(b"one"), 1)?, ended.mark)
                .await?
        );
        ensure!(
            !cache
                .put("k", &loaded(Some(b"three"), 3)?, began.mark)
                .await?,
            "too slow"
        );
        ensure!(cache.put("k", &loaded(None, 3)?, ended.mark).await?);
        let negative = cache.get("k").await?;
        ensure!(
            negative
                .found
                .context("that there is none")?
                .value
                .is_none()
        );
        cache.delete("k", Duration::from_millis(600)).await?;
        ensure!(cache.get("k").await?.found.is_none());
        ensure!(
            !cache
                .put("k", &loaded(Some(b"four"), 4)?, negative.mark)
                .await?
        );
        let after = cache.get("k").await?.mark;
        ensure!(cache.put("k", &loaded(Some(b"five"), 5)?, after).await?);
        // Every key expires.
        let left: i64 = fixture
            .server
            .command(&["PTTL", "distlock:cache:k"])?
            .parse()?;
        ensure!((1..=1210).contains(&left), "{left}");
        Ok(())
    })
}

/// The options of a cache's URL reach the server, and its refusals are explained.
fn check_options() -> Result<()> {
    let fixture = Fixture::new()?;
    let (server, host) = (&fixture.server, fixture.server.address().to_string());
    server.command(&["ACL", "SETUSER", "app", "on", ">p/w", "~app:*", "+@all"])?;
    let open = async |options: &str| {
        RedisCache::new(&format!("redis://{host}{options}"))?
            .get("k")
            .await
    };
    Runtime::new()?.block_on(async {
        let url = format!("redis://{host}?db=3&prefix=app:&user=app&password=p%2Fw");
        let cache = RedisCache::new(&url)?;
        let mark = cache.get("k").await?.mark;
        let loaded = Loaded {
            value: Some(b"value".as_slice().into()),
            token: FencingToken::new(1)?,
            ttl: TTL,
            stale: Duration::ZERO,
            floor: TTL,
            load: Duration::ZERO,
        };
        ensure!(cache.put("k", &loaded, mark).await?);
        // Nothing but the cache writes to this server.
        let databases = server.command(&["INFO", "keyspace"])?;
        ensure!(databases.contains("db3:keys=1,"), "{databases}");
        ensure!(!databases.contains("db0:"), "{databases}");

        for (options, kind, says) in [
            (
                "?user=app&password=wrong",
                ErrorKind::AccessDenied,
                "or the password is wrong",
            ),
            (
                "?user=app&password=p%2Fw",
                ErrorKind::AccessDenied,
                "does not permit this user",
            ),
            (
                "/9999?user=app&password=p%2Fw",
                ErrorKind::InvalidConfig,
                "no such database",
            ),
        ] {
            let error = open(options).await.err().context("refused")?;
            let said = error.to_string();
            ensure!(error.kind() == kind, "{options}: {said}");
            ensure!(
                said.contains(says) && said.contains(&host),
                "{options}: {said}"
            );
            ensure!(!said.contains("p/w") && !said.contains("wrong@"), "{said}");
        }
        Ok(())
    })
}

/// Prints a result into the output of a test that passes.
#[expect(clippy::print_stdout, reason = "the test runner shows it")]
fn print_result(result: &str) {
    println!("{result}");
}
