//! The conformance suite on a real ensemble of three servers, with worker processes. `CASE` names
//! the part to run.
//!
//! Each worker is a process of this same binary.

use std::{env, net::Ipv4Addr, process::ExitCode, sync::Arc, time::Duration};

use distlock_conformance::{
    Subject, Workers,
    worker::{self, Ask, Command, ReleaseReport, Reply, Worker},
};
use distlock_core::{Clock as _, ErrorKind, Locker, Result as Opened, Store, SystemClock};
use distlock_harness::{
    Direction, FaultProxy, Signal, Watchdog,
    servers::zookeeper::{Ports, Setup, ZooKeeper},
    signal,
};
use distlock_kv::KvLock;
use distlock_zookeeper::{self as zookeeper, ZooKeeperConfig};
use futures_util::future::join_all;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;
use zookeeper_client as zk;

const WORKER: &str = "conformance-worker";

/// The longest session that a tick of 250 ms allows. A shorter one could expire on a machine that
/// is busy with other tests.
const SESSION: Duration = Duration::from_secs(5);

type Outcome = Result<(), Failed>;

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some(WORKER) {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let worked = runtime.block_on(worker::run(|servers| async move { open(&servers).await }));
        return worked.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let arguments = Arguments::from_args();
    let runtime = Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let handle = runtime.handle().clone();
    // There are only two tests, because each test runs in its own process and starts its own
    // ensemble.
    let standstill = handle.clone();
    let tests = vec![
        Trial::test("conformance_and_processes", move || {
            handle.block_on(run_all())
        }),
        Trial::test("a_write_after_a_standstill_proves_nothing", move || {
            standstill.block_on(a_write_after_a_standstill_proves_nothing())
        }),
    ];
    libtest_mimic::run(&arguments, tests).exit_code()
}

/// Opens a client with its own session.
async fn open(servers: &str) -> Opened<Store> {
    let mut config = ZooKeeperConfig::from_url_parts(&format!("//{servers}"), &[])?;
    config.session_timeout = SESSION;
    let store = zookeeper::ZooKeeper::open(config, Arc::new(SystemClock)).await?;
    Ok(Store::new(store.lock(), store.records()))
}

async fn run_all() -> Outcome {
    let ensemble = ZooKeeper::start()?;
    let servers = ensemble.servers();
    let program = env::current_exe()?;
    let workers = Workers::new(program, [WORKER], servers.clone());
    conformance(&servers, workers.clone()).await?;
    if env::var_os("CASE").is_none() {
        a_lock_over_records_is_refused(&servers).await?;
        a_stopped_holder_learns_of_its_loss_first(&workers).await?;
    }
    Ok(())
}

async fn conformance(servers: &str, workers: Workers) -> Outcome {
    let servers = servers.to_owned();
    let subject = Subject::connect("zookeeper", move || {
        let servers = servers.clone();
        async move { open(&servers).await }
    });
    let subject = subject.await?.with_workers(workers);
    let filter = env::var("CASE").ok();
    let results = distlock_conformance::run(&subject, filter.as_deref()).await;
    let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
    ensure(failed.is_empty(), || {
        let names: Vec<_> = failed.iter().map(|result| result.name).collect();
        format!("failed: {}\n{failed:#?}", names.join(", "))
    })?;
    ensure(!results.is_empty(), || "no case of this name".into())
}

/// `KvLock` refuses these records. The records have the time of their write, but no server reports
/// the present time, so records have no age.
async fn a_lock_over_records_is_refused(servers: &str) -> Outcome {
    let store = open(servers).await?;
    let refused = KvLock::new(store.records()).map(drop);
    ensure(
        refused
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Unsupported),
        || format!("{refused:?}"),
    )?;
    store.close().await;
    Ok(())
}

/// A holder is stopped for two session timeouts. The next holder gets the lock after the deadline
/// of the stopped one. When the stopped holder goes on, the loss is reported before it does
/// anything else.
async fn a_stopped_holder_learns_of_its_loss_first(workers: &Workers) -> Outcome {
    let mut stopped = Worker::start(workers).await?;
    let mut next = Worker::start(workers).await?;
    let process = stopped.id().ok_or("the worker has ended")?;
    let _watchdog = Watchdog::over_process(process)?;
    let first = stopped.acquire("stopped", SESSION, Duration::ZERO).await?;
    let since = SystemClock.now();
    signal(process, Signal::STOP)?;
    let second = next.acquire("stopped", SESSION, SESSION * 4).await?;
    ensure(second.token > first.token, || {
        format!("{first:?} {second:?}")
    })?;
    let slept = SystemClock.now().since(since);
    SystemClock.sleep((SESSION * 2).saturating_sub(slept)).await;
    signal(process, Signal::CONT)?;
    let state = stopped.ask(&Command::State).await?;
    ensure(
        matches!(
            state,
            Reply::State {
                valid: false,
                lost: Some(_),
                ..
            }
        ),
        || format!("{state:?}"),
    )?;
    // The release of the old holder does not disturb the next holder.
    let released = stopped.release().await?;
    ensure(released != ReleaseReport::Clean, || {
        "a clean release".into()
    })?;
    let released = next.release().await?;
    ensure(released == ReleaseReport::Clean, || format!("{released:?}"))
}

/// A client of a follower stands still for most of its session timeout. When the client goes on,
/// its write is committed at once. Then the follower is cut off before it can tell the leader that
/// the session is alive. So the leader ends the session although it committed the write.
async fn a_write_after_a_standstill_proves_nothing() -> Outcome {
    let ports = (0..3)
        .map(|_| Ports::pick())
        .collect::<Result<Vec<_>, _>>()?;
    let mut proxies = Vec::new();
    for other in &ports[1..] {
        proxies.push(FaultProxy::start((Ipv4Addr::LOCALHOST, other.quorum).into()).await?);
    }
    let detours = proxies.iter().zip(1..);
    let ensemble = ZooKeeper::start_with(&Setup {
        // The leader sends two pings in a tick. This tick is long enough to cut the connection
        // between two pings.
        tick: Duration::from_secs(1),
        // The first server has the lowest number, so it does not become the leader.
        detours: detours
            .map(|(proxy, other)| (0, other, proxy.address().port()))
            .collect(),
        ports: Some(ports),
        ..Setup::default()
    })?;
    ensure(ensemble.followers().contains(&0), || {
        "the first server leads".into()
    })?;
    let others = ensemble.reached_at(&[ensemble.address(1), ensemble.address(2)]);
    let theirs = open(&others).await?.locker();
    let (user, hosts) = others.rsplit_once('@').ok_or("the servers want a user")?;
    let connector = zk::Client::connector().with_auth("digest", user.as_bytes());
    let stranger = connector.connect(hosts).await?;
    let program = env::current_exe()?;
    let workers = Workers::new(program, [WORKER], ensemble.server(0));
    // The test runs several rounds, because a ping or a reconnect of the client may extend the
    // session before the connection is cut.
    for round in 0..5 {
        let names: Vec<_> = (0..4)
            .map(|at| format!("standstill-{round}-{at}"))
            .collect();
        if stop_and_continue(&workers, &theirs, &stranger, &names, &proxies).await? {
            return Ok(());
        }
        for proxy in &proxies {
            proxy.pass();
        }
    }
    Err("the line was never cut between two pings".into())
}

/// Stops and continues one client for each name. `false` = this round shows nothing, because the
/// leader learned of every session after its client went on.
async fn stop_and_continue(
    workers: &Workers,
    theirs: &Locker,
    stranger: &zk::Client,
    names: &[String],
    proxies: &[FaultProxy],
) -> Result<bool, Failed> {
    let container = |name: &str| format!("/distlock/locks/{name}");
    let mut stopped = Vec::new();
    for name in names {
        let mut worker = Worker::start(workers).await?;
        let process = worker.id().ok_or("the worker has ended")?;
        let watchdog = Watchdog::over_process(process)?;
        // The worker uses the queue several times, so its session gets a watch on the container.
        for _ in 0..3 {
            worker.acquire(name, SESSION, Duration::ZERO).await?;
            worker.release().await?;
        }
        stopped.push((worker, process, watchdog));
    }
    for (_, process, _) in &stopped {
        signal(*process, Signal::STOP)?;
    }
    SystemClock.sleep(SESSION * 4 / 5).await;
    for (name, (worker, _, _)) in names.iter().zip(&mut stopped) {
        // This write fires the client's watch, so the client receives an event when it goes on.
        // Without an event for so long, the client would reconnect.
        stranger.set_data(&container(name), &[], None).await?;
        let ask = Ask {
            name: name.clone(),
            ttl: SESSION,
            wait: Duration::from_secs(1),
            renew: false,
            fair: false,
            not_before: Duration::ZERO,
        };
        worker.send(&Command::Acquire(ask)).await?;
    }
    for (_, process, _) in &stopped {
        signal(*process, Signal::CONT)?;
    }
    let went_on = SystemClock.now();
    let mut waits = Vec::new();
    for name in names {
        let mut waits_for = false;
        while !waits_for && SystemClock.now().since(went_on) < Duration::from_millis(200) {
            waits_for = !stranger.list_children(&container(name)).await?.is_empty();
        }
        waits.push(waits_for);
    }
    for proxy in proxies {
        proxy.stop(Direction::ToServer);
        proxy.stop(Direction::ToClient);
    }
    let mut shown = false;
    let nexts = names.iter().zip(waits).zip(stopped);
    let nexts = nexts.map(async |((name, waits), (mut worker, _, _watchdog))| {
        let next = theirs
            .lock(name.as_str())
            .wait(SESSION * 4)
            .acquire()
            .await?;
        let soon = SystemClock.now().since(went_on) < SESSION * 4 / 5;
        if matches!(worker.reply().await?, Reply::Acquired { .. }) {
            let state = worker.ask(&Command::State).await?;
            ensure(matches!(state, Reply::State { valid: false, .. }), || {
                format!("two at once: {state:?}")
            })?;
        }
        ensure(next.is_valid(), || "the next holder has lost it".into())?;
        ensure(next.release().await.is_clean(), || "not released".into())?;
        worker.kill().await?;
        Ok::<_, Failed>(waits && soon)
    });
    for next in join_all(nexts).await {
        shown |= next?;
    }
    Ok(shown)
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(otherwise().into())
    }
}
