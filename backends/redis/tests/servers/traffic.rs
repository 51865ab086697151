//! The number of commands that clients send, as counted by the server.
#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]

use std::{
    collections::BTreeMap,
    env, fs,
    process::Command,
    time::{Duration, Instant},
};

use crate::common::{SOON, commands_of, locker, redis, request, take, within};
use distlock_core::{ErrorKind, Expect, Guard, Lease, Locker, RecordKey, Written};
use distlock_harness::{
    Process, eventually_async,
    servers::redis::{RedisCluster, RedisMonitor, RedisServer},
};
use tokio::task::JoinSet;

const NAME: &str = "waited-for";

/// The pause after which every process asks without a push. A wake-up within half of this time
/// comes from a push.
const SAFETY_POLL: Duration = Duration::from_secs(10);

/// Acquires the lock for a separate client that holds it for longer than the measured wait.
async fn hold_lock(server: &RedisServer) -> Guard {
    let holder = locker(&server.url()).await;
    let lock = holder.lock(NAME).ttl(Duration::from_secs(30));
    lock.acquire().await.unwrap()
}

/// Starts waiting tasks. None of them may get the lock.
fn start_waiters(tasks: &mut JoinSet<()>, locker: &Locker, waiters: usize, time: Duration) {
    for _ in 0..waiters {
        let locker = locker.clone();
        tasks.spawn(async move {
            let refused = locker.lock(NAME).wait(time).acquire().await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Timeout);
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_waiters_of_one_process_cost_a_handful_of_commands() {
    let server = RedisServer::start().unwrap();
    let guard = hold_lock(&server).await;
    let monitor = server.monitor().unwrap();
    // Every command counts: for connecting, for joining the queue, and for the holder's renewal and
    // the push that follows it.
    let store = redis(&server.url()).await.unwrap();
    let waiting = Locker::new(store.lock());
    waiting.ready().await.unwrap();
    let mut tasks = JoinSet::new();
    start_waiters(&mut tasks, &waiting, 50, Duration::from_secs(10));
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    // The store's own count includes these commands. The monitor may report them a moment later.
    let counted = usize::try_from(commands_of(&store)).unwrap();
    assert!(counted > 5, "{counted}");
    let commands = eventually_async("the monitor tells of all of them", SOON, || async {
        let commands = monitor.commands();
        (commands.len() >= counted).then_some(commands)
    });
    let commands = commands.await.unwrap();
    assert!(guard.is_valid());
    assert!(commands.len() <= 60, "{}: {commands:#?}", commands.len());
}

/// Returns all commands that clients sent before this call. The test sends a marker command after
/// them.
async fn commands_so_far(server: &RedisServer, monitor: &RedisMonitor) -> Vec<String> {
    let last = format!("last-{}", monitor.commands().len());
    server.command(&["ECHO", &last]).unwrap();
    eventually_async("the monitor tells of the last one", SOON, || async {
        let mut commands = monitor.commands();
        let at = commands.iter().rposition(|line| line.contains(&last))?;
        commands.truncate(at);
        Some(commands)
    })
    .await
    .unwrap()
}

/// Each process runs this same test binary.
#[tokio::test(flavor = "multi_thread")]
async fn five_waiters_of_each_of_ten_processes_cost_a_few_commands_each() {
    const URL: &str = "DISTLOCK_TEST_WAITED_FOR_AT";
    const NOTE: &str = "DISTLOCK_TEST_NOTE";
    let time = Duration::from_secs(10);
    if let (Ok(url), Some(note)) = (env::var(URL), env::var_os(NOTE)) {
        let store = redis(&url).await.unwrap();
        let waiting = Locker::new(store.lock());
        waiting.ready().await.unwrap();
        let mut tasks = JoinSet::new();
        start_waiters(&mut tasks, &waiting, 5, time);
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        fs::write(note, commands_of(&store).to_string()).unwrap();
        return;
    }
    let server = RedisServer::start().unwrap();
    let guard = hold_lock(&server).await;
    let monitor = server.monitor().unwrap();
    let this = "traffic::five_waiters_of_each_of_ten_processes_cost_a_few_commands_each";
    let mut processes = Vec::new();
    for at in 0..10 {
        let note = server.folder().join(format!("note-{at}"));
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", this]).env(URL, server.url());
        command.env(NOTE, &note);
        processes.push((Process::spawn(&mut command).unwrap(), note));
    }
    let mut counted = 0;
    for (mut process, note) in processes {
        let status = process.wait(time + SOON).unwrap();
        assert!(status.success(), "{}", process.output());
        let sent: usize = fs::read_to_string(note).unwrap().parse().unwrap();
        assert!(sent > 5, "{sent}");
        counted += sent;
    }
    let commands = commands_so_far(&server, &monitor).await;
    assert!(guard.is_valid());
    assert!(commands.len() >= counted, "{counted}: {commands:#?}");
    // Each process makes two connections and joins the store queue. Then it renews its entry with
    // at most two requests a second.
    let most = 10 * (16 + 2 * 10);
    assert!(commands.len() <= most, "{}: {commands:#?}", commands.len());
}

/// Each renewal changes the lock, so the server pushes to the waiters.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_waiters_ask_once_for_each_renewal_and_are_still_woken() {
    const TIMES: u64 = 10;
    let server = RedisServer::start().unwrap();
    let ttl = Duration::from_secs(600);
    let (holding, waiting) = (
        redis(&server.url()).await.unwrap(),
        redis(&server.url()).await.unwrap(),
    );
    let (holder, waiter) = (Locker::new(holding.lock()), Locker::new(waiting.lock()));
    let guard = holder.lock(NAME).ttl(ttl).acquire().await.unwrap();
    waiter.ready().await.unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let acquire = waiter.lock(NAME).ttl(ttl).wait(SOON * 3).acquire();
        tasks.spawn(async move { acquire.await.unwrap() });
    }
    wait_until_tracked(&server, "1").await;
    let sent = || commands_of(&holding) + commands_of(&waiting);
    let before = sent();
    for _ in 0..TIMES {
        guard.extend(ttl).await.unwrap();
        // After a push the server no longer tracks the key. The server tracks the key again after
        // the waiter's next attempt.
        wait_until_tracked(&server, "1").await;
    }
    let sent = sent() - before;
    assert!(sent <= 5 * TIMES, "{sent} for {TIMES} extensions");
    assert!(guard.release().await.is_clean());
    let next = within(SAFETY_POLL / 2, "the waiter wakes up", tasks.join_next()).await;
    let next = next.unwrap().unwrap();
    assert!(next.is_valid());
}

/// Waits until the server tracks this number of keys.
async fn wait_until_tracked(server: &RedisServer, keys: &str) {
    eventually_async("the server tracks the key", SAFETY_POLL / 2, || async {
        (server.info("tracking_total_keys").unwrap() == keys).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_for_twenty_locks_on_one_connection_wake_only_their_own_waiters() {
    let server = RedisServer::start().unwrap();
    let ttl = Duration::from_secs(600);
    let holder = redis(&server.url()).await.unwrap().lock();
    let waiter = locker(&server.url()).await;
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for at in 0..20 {
        let request = request(&format!("n{at}"), ttl);
        let grant = take(&*holder, &request).await;
        let acquire = waiter.lock(request.name.as_str()).ttl(ttl).wait(SOON * 3);
        waiting.push(tokio::spawn(acquire.acquire()));
        held.push(Lease::new(request.name, request.owner, Some(grant.token)));
    }
    wait_until_tracked(&server, "20").await;
    assert_eq!(server.info("tracking_clients").unwrap(), "1");
    let monitor = server.monitor().unwrap();
    let (released, kept) = held.split_at(10);
    for (lease, waiting) in released.iter().zip(waiting) {
        holder.release(lease).await.unwrap();
        let guard = within(SAFETY_POLL / 2, "the waiter wakes up", waiting)
            .await
            .unwrap();
        guard.unwrap().into_ticket().await.unwrap();
    }
    let commands = commands_so_far(&server, &monitor).await;
    // Each waiter also asks from time to time without a push.
    let patrols = usize::try_from(start.elapsed().as_secs() / SAFETY_POLL.as_secs()).unwrap();
    // The waiter's connection is the only one with tracking.
    let looks = |lease: &Lease| {
        let key = format!(":lock:{}\"", lease.name);
        let looks = commands.iter().filter(|line| line.contains(&key));
        looks.filter(|line| line.contains("600000")).count()
    };
    for lease in released {
        assert!(looks(lease) > 0, "{lease:?}: {commands:#?}");
    }
    for lease in kept {
        assert!(looks(lease) <= patrols, "{lease:?}: {commands:#?}");
    }
    assert_eq!(server.info("tracking_clients").unwrap(), "1");
}

/// In a cluster, each primary pushes over its own connection.
#[tokio::test(flavor = "multi_thread")]
async fn each_primary_pushes_to_a_process_over_one_connection() {
    let servers = RedisCluster::start(3, 0).unwrap();
    let ttl = Duration::from_secs(600);
    let holder = redis(&servers.url()).await.unwrap().lock();
    let waiter = locker(&servers.url()).await;
    let mut waiting = JoinSet::new();
    for at in 0..20 {
        let request = request(&format!("n{at}"), ttl);
        take(&*holder, &request).await;
        let acquire = waiter.lock(request.name.as_str()).wait(SOON * 3).acquire();
        waiting.spawn(acquire);
    }
    let each = |field: &str| {
        let nodes = servers.nodes.iter();
        let each = nodes.map(|node| node.info(field).unwrap().parse::<u32>().unwrap());
        each.collect::<Vec<_>>()
    };
    eventually_async("the server tracks the key", SOON, || async {
        (each("tracking_total_keys").iter().sum::<u32>() == 20).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(each("tracking_clients"), [1; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loaded_script_is_sent_as_its_hash() {
    const CYCLES: u64 = 100;
    let server = RedisServer::start().unwrap();
    let store = redis(&server.url()).await.unwrap();
    let locker = Locker::new(store.lock());
    let records = store.records();
    let cycle = async || {
        let guard = locker.lock(NAME).ttl(SOON * 20).acquire().await.unwrap();
        guard.extend(SOON * 20).await.unwrap();
        assert!(guard.release().await.is_clean());
        let key = RecordKey::new("k").unwrap();
        let written = records.put(&key, b"v", Expect::Absent).await.unwrap();
        let Written::Stored(version) = written else {
            panic!("{written:?}");
        };
        records.delete(&key, version).await.unwrap();
    };
    cycle().await;
    let calls = |command| server.calls(command).unwrap();
    let (texts, hashes) = (calls("eval"), calls("evalsha"));
    assert!(texts >= 5, "{texts}: the server did not know them yet");
    for _ in 0..CYCLES {
        cycle().await;
    }
    assert_eq!(calls("eval"), texts);
    assert_eq!(calls("evalsha") - hashes, 5 * CYCLES);
}

/// A contender that learns of a departure reads its place once, also with others still ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_departure_in_the_middle_of_the_queue_costs_the_next_one_renewal() {
    let server = RedisServer::start().unwrap();
    let guard = hold_lock(&server).await;
    let mut waiting = Vec::new();
    let looking = locker(&server.url()).await;
    for count in 1..=3 {
        let waiter = locker(&server.url()).await;
        waiting.push(tokio::spawn(waiter.lock(NAME).wait(SOON).acquire()));
        eventually_async("it is in the queue", SOON, || async {
            (looking.inspect(NAME).await.unwrap().waiters == Some(count)).then_some(())
        })
        .await
        .unwrap();
    }
    let monitor = server.monitor().unwrap();
    waiting[1].abort();
    eventually_async("the second has left", SOON, || async {
        (looking.inspect(NAME).await.unwrap().waiters == Some(2)).then_some(())
    })
    .await
    .unwrap();
    // The third has learned of it when it has switched tracking on for the first.
    let renewed = eventually_async("the third renews", SOON, || async {
        let commands = commands_so_far(&server, &monitor).await;
        let tracked = commands.iter().any(|line| line.contains("\"EXISTS\""));
        tracked.then_some(())
    });
    renewed.await.unwrap();
    // A second renewal would follow the first within a millisecond. The next one that is due
    // follows after 1.3 s.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for (waiter, times) in renewals(&commands_so_far(&server, &monitor).await) {
        for pair in times.windows(2) {
            let apart = pair[1] - pair[0];
            assert!(apart > 0.5, "{waiter} renewed twice within {apart:.4} s");
        }
    }
    assert!(guard.is_valid());
    for waiter in waiting {
        waiter.abort();
    }
}

/// The times of the renewals of each waiter in the queue, in seconds.
fn renewals(commands: &[String]) -> BTreeMap<String, Vec<f64>> {
    let mut times: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in commands {
        let words: Vec<_> = line.split(' ').collect();
        // `TIME [DB ADDRESS] "EVALSHA" SHA "2" QUEUE ENTRY WAITER LEASE LEAVES LABEL`
        if let [
            time,
            _,
            _,
            "\"EVALSHA\"",
            _,
            "\"2\"",
            queue,
            _,
            waiter,
            _,
            "\"0\"",
            _,
        ] = *words
            && queue.contains(":queue:")
        {
            let at = time.parse().unwrap();
            times.entry(waiter.to_owned()).or_default().push(at);
        }
    }
    times
}
