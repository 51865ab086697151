//! Injects faults into a holder and into servers, and measures the time until locks work again.
//! Only servers that this command started are broken.

use std::time::Duration;

use anyhow::{Context as _, Result};
use distlock::{Clock as _, LockWatch, Locker, SystemClock};
use distlock_cli::program::{Failure, Outcome, code, workers};
use distlock_conformance::{
    history::{Hold, check},
    worker::Worker,
};
use distlock_harness::{
    Signal,
    servers::redis::{RedisCluster, RedisServer},
};
use distlock_report::compare::{Scenario, ScenarioKind};

use super::{
    plan::{ComparisonRun, pause, within},
    stores::{Opener, Server, StoreUnderTest},
};
use crate::quorum::Lost;

/// The TTL of each lock here.
const TTL: Duration = Duration::from_secs(4);

/// The deadline of each step.
const DEADLINE: Duration = Duration::from_secs(60);

/// The time between the kill of a server and its restart.
const DOWN_TIME: Duration = Duration::from_secs(1);
/// The time for which a server is paused: longer than the lease.
const PAUSED_TIME: Duration = Duration::from_secs(7);

impl ComparisonRun {
    /// Plays each scenario on all stores that this run started. All stores run at the same time,
    /// because a scenario mostly waits.
    pub(super) async fn run_scenarios(&mut self) -> Outcome<()> {
        for kind in ScenarioKind::ALL {
            let stage: Vec<_> = self
                .stores
                .iter_mut()
                .filter(|store| store.is_ours && store.is_alive() && can_play(kind, store))
                .collect();
            if !stage.is_empty() {
                self.progress
                    .begin_part(&format!("breaking: {}", kind.key()));
            }
            let kept = &self.kept;
            let playing = stage.into_iter().map(|store| async move {
                let name = format!("failure.{}.{}.json", kind.key(), store.key());
                if let Some(scenario) = kept.load::<Scenario>(&name) {
                    return Ok(scenario);
                }
                let scenario = Box::pin(play_scenario(kind, store)).await;
                if scenario.failed.is_none() {
                    kept.save(&name, &scenario)?;
                }
                Ok::<_, std::io::Error>(scenario)
            });
            let played = futures_util::future::try_join_all(playing).await?;
            self.scenarios.extend(played);
            self.progress.finish_step();
        }
        Ok(())
    }
}

/// Whether a scenario can be played on a store.
fn can_play(kind: ScenarioKind, store: &StoreUnderTest) -> bool {
    match (kind, &store.server) {
        // The holder is a process of its own, so the store must be shared by processes.
        (ScenarioKind::HolderKilled, _) => store.reach() != distlock::Reach::Process,
        // A further loss would leave a quorum no majority.
        (_, None | Some(Server::Quorum(_, Lost::Dead | Lost::Silent))) => false,
        // In a group of servers only the loss of the leader is played: the group must go on without
        // that server. The other faults are played on single servers, which cannot go on. The
        // member of a ring is one.
        (kind, Some(server)) => is_group(server) == (kind == ScenarioKind::LeaderLost),
    }
}

/// Whether the server is one of several that take over from each other.
fn is_group(server: &Server) -> bool {
    match server {
        Server::ZooKeeper(_)
        | Server::RedisSentinels(_)
        | Server::RedisCluster(_)
        | Server::Quorum(..) => true,
        Server::Served(it) => it.servers.len() > 1,
        Server::Redis(_) | Server::Ring(_) | Server::MySql(_) | Server::Postgres(_) => false,
    }
}

/// Plays one scenario on one store, and records it.
async fn play_scenario(kind: ScenarioKind, store: &mut StoreUnderTest) -> Scenario {
    let mut stage = ScenarioRun {
        name: random_name(),
        scenario: Scenario {
            store: store.key().to_owned(),
            kind,
            ttl_ms: 4_000,
            next_holder_ms: None,
            usable_ms: None,
            holder_kept: None,
            broken: None,
            failed: None,
        },
        holds: Vec::new(),
    };
    let played = within(DEADLINE * 2, async {
        match kind {
            ScenarioKind::HolderKilled => stage.play_holder_killed(store).await,
            _ => stage.play_server_broken(kind, store).await,
        }
    })
    .await;
    match played {
        Some(Ok(())) => {}
        Some(Err(failure)) => stage.scenario.failed = Some(failure.to_string()),
        None => stage.scenario.failed = Some("it hung".into()),
    }
    stage.finish()
}

/// A scenario while it is recorded.
struct ScenarioRun {
    name: String,
    scenario: Scenario,
    holds: Vec<Hold>,
}

impl ScenarioRun {
    /// Plays this: a process holds the lock and is killed, and a waiting client gets the lock.
    async fn play_holder_killed(&mut self, store: &StoreUnderTest) -> Outcome<()> {
        let workers = workers(&store.target)?;
        let mut worker = Worker::start(&workers).await.map_err(unavailable)?;
        let waiter = store.opener().open_client().await?;
        let held = worker
            .acquire(&self.name, TTL, Duration::ZERO)
            .await
            .map_err(unavailable)?;
        let waiting = spawn_next(&waiter.locker(), &self.name);
        pause(Duration::from_millis(1500)).await;
        let fault = SystemClock.now().since_boot();
        worker.kill().await.map_err(unavailable)?;
        let killed = SystemClock.now().since_boot();
        self.record_hold("holder", held.token, held.granted, killed);
        let next = waiting.await.map_err(unavailable)??;
        self.scenario.next_holder_ms = Some(millis_between(fault, next.from));
        self.record_hold("next", next.token, next.from, next.until);
        waiter.close().await;
        Ok(())
    }

    /// Plays this: a client holds the lock and another one waits, while the server is broken and
    /// recovers.
    async fn play_server_broken(
        &mut self,
        kind: ScenarioKind,
        store: &mut StoreUnderTest,
    ) -> Outcome<()> {
        let opener = store.opener();
        let (holder, waiter) = (opener.open_client().await?, opener.open_client().await?);
        let guard = holder.locker().lock(&self.name).ttl(TTL).acquire().await?;
        let (token, granted) = (u64::from(guard.token()), SystemClock.now().since_boot());
        let other = self
            .another_lock_of_same_server(store, &holder.locker())
            .await?;
        let believing = tokio::spawn(wait_for_loss(guard.watch()));
        let waiting = spawn_next(&waiter.locker(), &self.name);
        pause(Duration::from_millis(1500)).await;
        let fault = SystemClock.now().since_boot();
        let usable = spawn_usable(&opener, other);
        break_server(kind, store, &self.name).await?;
        self.scenario.usable_ms = usable
            .await
            .map_err(unavailable)?
            .map(|at| millis_between(fault, at));
        // This is long enough for a loss to be reported.
        pause(TTL).await;
        let kept = guard.is_valid();
        self.scenario.holder_kept = Some(kept);
        let until = if kept {
            let until = SystemClock.now().since_boot();
            let _ = guard.release().await;
            believing.abort();
            until
        } else {
            believing.await.map_err(unavailable)?
        };
        self.record_hold("holder", token, granted, until);
        if let Some(next) = within(DEADLINE, waiting).await {
            let next = next.map_err(unavailable)??;
            if !kept {
                self.scenario.next_holder_ms = Some(millis_between(fault, next.from));
            }
            self.record_hold("next", next.token, next.from, next.until);
        }
        // A client that cannot reach its server yet may take long to close, so the wait has a
        // limit.
        for store in [holder, waiter] {
            within(Duration::from_secs(5), store.close()).await;
        }
        Ok(())
    }

    /// The name of another lock that the same server decides about. In a cluster and in a ring,
    /// names are tried until one belongs to that server.
    async fn another_lock_of_same_server(
        &self,
        store: &StoreUnderTest,
        locker: &Locker,
    ) -> Outcome<String> {
        let server_of = |name: &str| match &store.server {
            Some(Server::RedisCluster(it)) => primary_of(it, name).map(Some),
            Some(Server::Ring(it)) => holder_of(&it.members, name).map(|it| Some(it.0)),
            _ => Ok(None),
        };
        let Some(own) = server_of(&self.name).map_err(unavailable)? else {
            return Ok(random_name());
        };
        loop {
            let name = random_name();
            let guard = locker.lock(&name).ttl(TTL).acquire().await?;
            let at = server_of(&name);
            let _ = guard.release().await;
            if at.map_err(unavailable)? == Some(own) {
                return Ok(name);
            }
        }
    }

    /// Records the time in which a client believed to hold the lock.
    fn record_hold(&mut self, who: &str, token: u64, from: Duration, until: Duration) {
        self.holds.push(Hold {
            lock: self.name.clone(),
            who: who.to_owned(),
            token,
            from,
            until: until.max(from),
        });
    }

    /// Checks the recorded holds.
    fn finish(mut self) -> Scenario {
        self.scenario.broken = check(&self.holds).err();
        self.scenario
    }
}

fn millis_between(from: Duration, to: Duration) -> f64 {
    to.saturating_sub(from).as_secs_f64() * 1e3
}

/// A lock name that no other scenario uses.
fn random_name() -> String {
    format!("bench:failure:{:08x}", fastrand::u32(..))
}

/// The index of the server in the cluster that has the key of a held lock.
fn primary_of(cluster: &RedisCluster, name: &str) -> Result<usize> {
    cluster.primary_of(&holder_of(&cluster.nodes, name)?.1)
}

/// The index of the first server that has the key of a held lock, and the key.
fn holder_of(servers: &[RedisServer], name: &str) -> Result<(usize, String)> {
    // A key contains the encoded name of its lock. The last part of our names has only letters and
    // digits, which are not encoded.
    let last = name.rsplit(':').next().unwrap_or(name);
    let pattern = format!("*{last}*");
    let found = servers.iter().enumerate().find_map(|(at, server)| {
        let keys = server.command(&["KEYS", &pattern]).ok()?;
        let key = keys.lines().find(|key| key.contains(last))?;
        Some((at, key.to_owned()))
    });
    found.with_context(|| format!("no server has a key of {name}"))
}

/// Breaks the server of a store.
async fn break_server(kind: ScenarioKind, store: &mut StoreUnderTest, name: &str) -> Outcome<()> {
    let Some(mut server) = store.server.take() else {
        return Ok(());
    };
    // Killing and starting a server block their thread, so they run on a thread of their own. The
    // scenarios of the other stores run meanwhile.
    let name = name.to_owned();
    let broken = tokio::task::spawn_blocking(move || {
        let result = inject_fault(kind, &mut server, &name);
        (server, result)
    });
    let (server, result) = broken.await.map_err(unavailable)?;
    store.server = Some(server);
    result.map_err(|error| Failure::new(code::UNAVAILABLE, format!("{error:#}")))
}

/// Injects the fault: pauses the server for a while, or kills it. A single server is started again.
fn inject_fault(kind: ScenarioKind, server: &mut Server, name: &str) -> Result<()> {
    let is_paused = kind == ScenarioKind::ServerPaused;
    match server {
        Server::Redis(it) if is_paused => {
            it.signal(Signal::STOP)?;
            wait_on_this_thread(PAUSED_TIME);
            it.signal(Signal::CONT)?;
        }
        Server::Ring(it) if is_paused => {
            let member = &it.members[holder_of(&it.members, name)?.0];
            member.signal(Signal::STOP)?;
            wait_on_this_thread(PAUSED_TIME);
            member.signal(Signal::CONT)?;
        }
        Server::MySql(it) if is_paused => {
            it.signal(Signal::STOP)?;
            wait_on_this_thread(PAUSED_TIME);
            it.signal(Signal::CONT)?;
        }
        Server::Postgres(it) if is_paused => {
            let _paused = it.pause()?;
            wait_on_this_thread(PAUSED_TIME);
        }
        Server::Served(it) if is_paused => {
            it.servers[0].signal(Signal::STOP)?;
            wait_on_this_thread(PAUSED_TIME);
            it.servers[0].signal(Signal::CONT)?;
        }
        // An agent that is lost leaves the other one.
        Server::Served(it) if it.servers.len() > 1 => it.servers[0].kill(),
        Server::Served(it) => {
            it.servers[0].kill();
            wait_on_this_thread(DOWN_TIME);
            it.servers[0].restart()?;
        }
        Server::Redis(it) => {
            it.kill();
            wait_on_this_thread(DOWN_TIME);
            it.restart()?;
        }
        Server::Ring(it) => {
            let at = holder_of(&it.members, name)?.0;
            it.members[at].kill();
            wait_on_this_thread(DOWN_TIME);
            it.members[at].restart()?;
        }
        Server::MySql(it) => {
            it.kill();
            wait_on_this_thread(DOWN_TIME);
            it.restart()?;
        }
        Server::Postgres(it) => {
            it.kill();
            wait_on_this_thread(DOWN_TIME);
            it.restart()?;
        }
        Server::ZooKeeper(it) => {
            let leader = it.leader()?;
            it.kill(leader);
        }
        Server::RedisSentinels(it) => it.primary.kill(),
        Server::Quorum(it, _) => it.lose(Lost::Dead)?,
        Server::RedisCluster(it) => {
            let primary = primary_of(it, name)?;
            it.nodes[primary].kill();
        }
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own for a server that is away or stands still"
)]
fn wait_on_this_thread(time: Duration) {
    std::thread::sleep(time);
}

/// The times at which the waiting client held the lock.
struct Next {
    token: u64,
    from: Duration,
    until: Duration,
}

/// Waits for the lock, holds the lock for a moment, and releases it. After an error the client asks
/// for the lock again, because the server may be down.
fn spawn_next(locker: &Locker, name: &str) -> tokio::task::JoinHandle<Outcome<Next>> {
    let (locker, name) = (locker.clone(), name.to_owned());
    tokio::spawn(async move {
        let start = SystemClock.now();
        loop {
            let asked = locker
                .lock(&name)
                .ttl(TTL)
                .wait(Duration::from_secs(45))
                .acquire()
                .await;
            match asked {
                Ok(guard) => {
                    let (token, from) = (u64::from(guard.token()), SystemClock.now().since_boot());
                    pause(Duration::from_millis(1500)).await;
                    let until = SystemClock.now().since_boot();
                    let _ = guard.release().await;
                    return Ok(Next { token, from, until });
                }
                Err(error) if SystemClock.now().since(start) > DEADLINE => return Err(error.into()),
                Err(_) => pause(Duration::from_millis(50)).await,
            }
        }
    })
}

/// Waits until the guard reports its loss, and returns the moment of the report.
async fn wait_for_loss(watch: LockWatch) -> Duration {
    let _ = watch.ended().await;
    SystemClock.now().since_boot()
}

/// Tries again and again to acquire this lock, and returns the first moment at which the lock was
/// granted; `None` if the lock was not granted in time.
fn spawn_usable(opener: &Opener, name: String) -> tokio::task::JoinHandle<Option<Duration>> {
    let opener = opener.clone();
    tokio::spawn(async move {
        // The fault must come first, because a success before it would count.
        pause(Duration::from_millis(300)).await;
        let start = SystemClock.now();
        let client = loop {
            match within(Duration::from_secs(5), opener.open_client()).await {
                Some(Ok(client)) => break client,
                _ if SystemClock.now().since(start) > DEADLINE => return None,
                _ => pause(Duration::from_millis(20)).await,
            }
        };
        let locker = client.locker();
        while SystemClock.now().since(start) < DEADLINE {
            let asked = locker.lock(&name).ttl(TTL).wait(Duration::from_secs(1));
            if let Some(Ok(guard)) = within(Duration::from_secs(5), asked.acquire()).await {
                let at = SystemClock.now().since_boot();
                let _ = guard.release().await;
                within(Duration::from_secs(5), client.close()).await;
                return Some(at);
            }
            pause(Duration::from_millis(20)).await;
        }
        None
    })
}

/// The failure for an error of a store.
fn unavailable(error: impl std::fmt::Display) -> Failure {
    Failure::new(code::UNAVAILABLE, error.to_string())
}
