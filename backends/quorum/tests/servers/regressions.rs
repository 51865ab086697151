//! What users of Redlock libraries met. Each test names the report that it repeats.

use std::{process::Command, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Clock as _, ErrorKind, FencingToken, Forced, Guard, HolderLabel,
    Lease, LockName, LossReason, OwnerId, ReleaseOutcome, Released, Renew, Renewal, Renewed,
    Result, Store, SystemClock, Ttl, at_most, margin,
};
use distlock_harness::{
    FaultProxy, LogCapture, Process, Signal, distlock_binary, eventually_async,
    servers::redis::RedisServer,
};
use distlock_quorum::init;
use tokio::task::JoinSet;
use tracing::Level;

use crate::common::{drivers, open, redis_servers, url_of, url_of_servers};

/// The limit for steps that do not depend on a lease.
const SOON: Duration = Duration::from_secs(20);

const SECOND: Duration = Duration::from_secs(1);

/// Three servers and the URL of a quorum of them, whose members vote.
async fn quorum(max_lease: &str) -> (Vec<RedisServer>, String) {
    let servers = redis_servers(3);
    let url = url_of_servers(&servers, max_lease);
    init(url.as_str(), &drivers(), false).await.unwrap();
    (servers, url)
}

/// As [`quorum`], with a proxy in front of each server.
async fn quorum_behind_proxies() -> (Vec<RedisServer>, Vec<FaultProxy>, String) {
    let servers = redis_servers(3);
    let (mut proxies, mut urls) = (Vec::new(), Vec::new());
    for server in &servers {
        let proxy = FaultProxy::start(server.address()).await.unwrap();
        urls.push(server.url_at(proxy.address()));
        proxies.push(proxy);
    }
    let url = url_of(urls.iter().map(String::as_str), "30s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    (servers, proxies, url)
}

async fn hold(store: &Store, name: &str, ttl: Duration) -> Guard {
    store.locker().lock(name).ttl(ttl).acquire().await.unwrap()
}

/// Takes and releases a lock that must be free.
async fn assert_free_at_once(store: &Store, name: &str) {
    let since = SystemClock.now();
    let guard = store
        .locker()
        .lock(name)
        .wait(SOON)
        .acquire()
        .await
        .unwrap();
    let took = SystemClock.now().since(since);
    assert!(took < 2 * SECOND, "{name} was free after {took:?}");
    assert!(guard.release().await.is_clean());
}

/// Whether this one server holds the lock, as a client without the quorum sees it. A server that
/// was just started may not answer yet.
async fn is_held_at(server: &RedisServer, name: &str) -> Result<bool> {
    let store = drivers().open(server.url().as_str()).await?;
    let info = store.locker().inspect(name).await;
    store.close().await;
    Ok(info?.held.is_some())
}

/// node-redlock#166, #274: the time of the wait was taken off the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_eats_no_lease() {
    const TTL: Duration = Duration::from_secs(4);
    let (_servers, url) = quorum("30s").await;
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let held = hold(&one, "a", TTL).await;
    let waiter = two.locker().lock("a").ttl(TTL).renew(Renew::Manual);
    let waiting = tokio::spawn(waiter.wait(SOON).acquire());
    // Twice as long as the lease of the waiter.
    SystemClock.sleep(2 * TTL).await;
    assert!(!waiting.is_finished());
    assert!(held.release().await.is_clean());
    let guard = waiting.await.unwrap().unwrap();
    let left = guard.remaining();
    assert!(left > TTL / 2, "{left:?} are left of {TTL:?}");
    // The members keep the lease for at least that time.
    let next = one.locker().lock("a").wait(SOON).acquire().await.unwrap();
    assert!(!guard.is_valid(), "two guards are valid");
    assert!(next.token() > guard.token());
    assert!(next.release().await.is_clean());
    one.close().await;
    two.close().await;
}

/// The counterpart: the lease counts from the sending of its round, not from the last answer.
#[tokio::test(flavor = "multi_thread")]
async fn slow_answers_are_a_part_of_the_lease() {
    const TTL: Duration = Duration::from_secs(10);
    const WAY: Duration = Duration::from_millis(150);
    let (_servers, proxies, url) = quorum_behind_proxies().await;
    let store = open(&url).await.unwrap();
    for proxy in &proxies {
        proxy.delay(WAY);
    }
    let guard = hold(&store, "a", TTL).await;
    let left = guard.remaining();
    // Two trips: the grant, then the raise beside the reading of the marker.
    assert!(left <= TTL - margin(TTL) - 4 * WAY, "{left:?} are left");
    assert!(left > TTL / 2, "{left:?} are left");
    assert!(guard.release().await.is_clean());
    store.close().await;
}

/// redsync#149: a member that came back empty did not get the lock again, so the loss of a second
/// one ended it.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_came_back_empty_is_joined_again_so_that_losing_another_costs_nothing() {
    const TTL: Duration = Duration::from_secs(2);
    let (mut servers, url) = quorum("30s").await;
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let guard = hold(&one, "held", TTL).await;
    servers[0].restart_empty().unwrap();
    // No other client asks meanwhile, so only the holder can join the member again.
    eventually_async("the member has the lock again", SOON, || async {
        is_held_at(&servers[0], "held").await.ok()?.then_some(())
    })
    .await
    .unwrap();
    // The member counts from the next renewal on.
    SystemClock.sleep(TTL).await;
    servers[1].kill();
    let since = SystemClock.now();
    while SystemClock.now().since(since) < 3 * TTL {
        assert!(guard.is_valid(), "lost: {:?}", guard.watch().loss());
        let attempt = two.locker().lock("held").try_acquire().await;
        assert!(matches!(attempt, Ok(Attempt::Busy(_))), "{attempt:?}");
    }
    assert!(guard.release().await.is_clean());
    one.close().await;
    two.close().await;
}

/// RedLock.net#93: a lock whose majority was gone looked acquired for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_without_a_majority_says_so_at_its_deadline() {
    const TTL: Duration = Duration::from_secs(3);
    let (mut servers, url) = quorum("30s").await;
    let store = open(&url).await.unwrap();
    let guard = hold(&store, "held", TTL).await;
    servers[0].kill();
    SystemClock.sleep(TTL).await;
    assert!(guard.is_valid(), "one of three is no loss");
    servers[1].kill();
    let killed = SystemClock.now();
    let before = guard.watch().deadline();
    let extended = guard.extend(TTL).await.unwrap_err();
    assert_ne!(extended.kind(), ErrorKind::Lost, "{extended}");
    assert!(guard.watch().deadline() <= before, "nobody confirmed it");
    let told = async { (guard.lost().await, SystemClock.now()) };
    let (reason, told) = at_most(&SystemClock, 2 * TTL, told).await.unwrap();
    assert_eq!(reason, LossReason::Unreachable);
    assert!(
        told.since(killed) <= TTL,
        "told after {:?}",
        told.since(killed)
    );
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    let released = guard.release().await;
    assert!(
        matches!(released, Released::AlreadyLost(LossReason::Unreachable)),
        "{released:?}"
    );
    store.close().await;
}

/// The same with members that answer, and have forgotten the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_whose_majority_forgot_it_says_so_before_its_deadline() {
    const TTL: Duration = Duration::from_secs(9);
    let (servers, url) = quorum("30s").await;
    let store = open(&url).await.unwrap();
    let guard = hold(&store, "held", TTL).await;
    for server in &servers[..2] {
        assert_eq!(server.command(&["FLUSHALL"]).unwrap(), "OK");
    }
    let deadline = guard.watch().deadline();
    let reason = at_most(&SystemClock, TTL, guard.lost()).await.unwrap();
    assert_ne!(reason, LossReason::Unreachable);
    assert!(SystemClock.now() < deadline, "a renewal has told it");
    assert!(!guard.is_valid());
    store.close().await;
}

fn request(name: &str, ttl: Duration) -> AcquireRequest {
    let holder = HolderLabel::new("tester").unwrap();
    let (name, ttl) = (LockName::new(name).unwrap(), Ttl::new(ttl).unwrap());
    AcquireRequest::new(name, OwnerId::new(), ttl, holder)
}

/// node-redlock#169, #283: the extension of a lock that had ended hung or ended the program.
#[tokio::test(flavor = "multi_thread")]
async fn extending_what_has_ended_is_an_answer() {
    const TTL: Duration = Duration::from_secs(1);
    let (mut servers, url) = quorum("30s").await;
    let store = open(&url).await.unwrap();
    let lock = store.locker().lock("by hand").ttl(TTL).renew(Renew::Manual);
    let guard = lock.acquire().await.unwrap();
    guard.lost().await;
    let extended = at_most(&SystemClock, SECOND, guard.extend(TTL)).await;
    assert_eq!(extended.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    // The same below the guard: with all members, with a minority, and with nobody left.
    let backend = store.backend();
    let asked = request("direct", TTL);
    let grant = backend.try_acquire(&asked).await.unwrap();
    let grant = grant.acquired().expect("granted");
    let owner = grant.owner_after(&asked);
    let lease = Lease::new(asked.name.clone(), owner, Some(grant.token));
    let renewal = Renewal::plain(Ttl::new(TTL).unwrap());
    let renewed = async || at_most(&SystemClock, SOON, backend.renew(&lease, &renewal)).await;
    let extended = renewed().await.unwrap().unwrap();
    assert!(matches!(extended, Renewed::Extended { .. }), "{extended:?}");
    SystemClock.sleep(2 * TTL).await;
    for _ in 0..2 {
        let ended = renewed().await.unwrap().unwrap();
        assert!(matches!(ended, Renewed::NotHeld(_)), "{ended:?}");
    }
    let released = backend.release(&lease).await.unwrap();
    assert_eq!(released, ReleaseOutcome::NotHeld);
    // A lease that ends while a majority is away: no answer is no extension.
    let asked = request("direct", TTL);
    let grant = backend.try_acquire(&asked).await.unwrap();
    let grant = grant.acquired().expect("granted");
    let owner = grant.owner_after(&asked);
    let lease = Lease::new(asked.name.clone(), owner, Some(grant.token));
    servers[0].kill();
    servers[1].kill();
    SystemClock.sleep(2 * TTL).await;
    let failed = at_most(&SystemClock, SOON, backend.renew(&lease, &renewal)).await;
    let failed = failed.expect("no renewal hangs");
    assert!(
        !matches!(failed, Ok(Renewed::Extended { .. })),
        "{failed:?}"
    );
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_is_cancelled_in_the_middle_leaves_nothing_behind() {
    let (_servers, proxies, url) = quorum_behind_proxies().await;
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    assert_free_at_once(&one, "warm").await;
    for proxy in &proxies {
        proxy.delay(Duration::from_millis(15));
    }
    // A grant takes two trips of 30 ms. So the cancels fall before the first request, between the
    // trips, and after the grant.
    let (mut cancelled, mut granted) = (0, 0);
    for millis in (0..160).step_by(8) {
        let lock = one.locker().lock("a").ttl(Duration::from_secs(20));
        match at_most(&SystemClock, Duration::from_millis(millis), lock.acquire()).await {
            Some(guard) => {
                granted += 1;
                drop(guard);
            }
            None => cancelled += 1,
        }
        assert_free_at_once(&two, "a").await;
    }
    assert!(
        cancelled >= 5,
        "{cancelled} were cancelled, {granted} granted"
    );
    one.close().await;
    two.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_is_timely_while_a_minority_swallows_all_requests() {
    const TTL: Duration = Duration::from_secs(3);
    let (_servers, proxies, url) = quorum_behind_proxies().await;
    let store = open(&url).await.unwrap();
    let guard = hold(&store, "held", TTL).await;
    proxies[1].black_hole();
    let since = SystemClock.now();
    let mut longest = Duration::ZERO;
    while SystemClock.now().since(since) < 4 * TTL {
        let sent = SystemClock.now();
        guard.extend(TTL).await.unwrap();
        longest = longest.max(SystemClock.now().since(sent));
        assert!(guard.remaining() > TTL / 2);
        SystemClock.sleep(TTL / 30).await;
    }
    assert!(longest < SECOND, "a renewal took {longest:?}");
    assert!(guard.release().await.is_clean());
    proxies[1].pass();
    store.close().await;
}

#[tokio::test]
async fn a_forced_release_frees_a_majority_and_says_how_many() {
    let (mut servers, url) = quorum("30s").await;
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let guard = hold(&one, "held", Duration::from_secs(9)).await;
    servers[2].kill();
    let log = LogCapture::new(Level::INFO);
    let watching = log.watch();
    let shown = token_shown(&two, "held").await;
    let wrong = FencingToken::new(shown.get() + 1).unwrap();
    let forced = two.locker().force_release("held", wrong).await.unwrap();
    assert_eq!(forced, Forced::OtherToken(shown));
    let forced = two.locker().force_release("held", shown).await;
    assert_eq!(forced.unwrap(), Forced::Released);
    let lines = log.lines();
    let said = lines.iter().any(|it| it.contains("members=2"));
    assert!(said, "{lines:#?}");
    drop(watching);
    assert_free_at_once(&two, "held").await;
    let reason = at_most(&SystemClock, SOON, guard.lost()).await;
    assert_ne!(reason.unwrap(), LossReason::Unreachable);
    let forced = two.locker().force_release("held", shown).await;
    assert_eq!(forced.unwrap(), Forced::NotHeld);
    one.close().await;
    two.close().await;
}

/// The token that an operator sees.
async fn token_shown(store: &Store, name: &str) -> FencingToken {
    let info = store.locker().inspect(name).await.unwrap();
    info.held.and_then(|held| held.token).expect("it is held")
}

/// A member that the holder has won back has another token than the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_frees_members_that_were_won_back() {
    let (mut servers, url) = quorum("30s").await;
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let guard = hold(&one, "held", Duration::from_secs(2)).await;
    for server in &mut servers[..2] {
        server.restart_empty().unwrap();
        eventually_async("the member has the lock again", SOON, || async {
            is_held_at(server, "held").await.ok()?.then_some(())
        })
        .await
        .unwrap();
        SystemClock.sleep(2 * SECOND).await;
    }
    assert!(guard.is_valid(), "lost: {:?}", guard.watch().loss());
    let shown = token_shown(&two, "held").await;
    let forced = two.locker().force_release("held", shown).await;
    assert_eq!(forced.unwrap(), Forced::Released);
    for server in &servers {
        let is_held = is_held_at(server, "held").await.unwrap();
        assert!(!is_held, "each member is free");
    }
    at_most(&SystemClock, SOON, guard.lost())
        .await
        .expect("told");
    one.close().await;
    two.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_stopped_and_resumed_sees_its_lock_lost() {
    let (_servers, url) = quorum("30s").await;
    let store = open(&url).await.unwrap();
    let mut tool = Command::new(distlock_binary().unwrap());
    tool.args(["run", "held", "--ttl", "2s", "--", "sh", "-c"])
        .arg("echo started; exec sleep 600")
        .env("DISTLOCK_BACKEND", &url);
    let mut holder = Process::spawn(&mut tool).unwrap();
    // The members show a holder while its round is still going on. A tool that is stopped then
    // would wait for the lock after it is resumed.
    holder
        .wait_for_line(SOON, |line| line == "started")
        .unwrap();
    let info = store.locker().inspect("held").await.unwrap();
    let first = info.held.and_then(|held| held.token).unwrap();
    holder.signal(Signal::STOP).unwrap();
    let lock = store.locker().lock("held").wait(SOON);
    let guard = lock.acquire().await.unwrap();
    assert!(guard.token() > first);
    holder.signal(Signal::CONT).unwrap();
    let ended = holder.wait(SOON).unwrap();
    assert_eq!(ended.code(), Some(76), "{}", holder.output());
    assert!(guard.is_valid());
    assert!(guard.release().await.is_clean());
    store.close().await;
}

/// The scripts that a server has run: each is a request for a lock.
fn scripts(server: &RedisServer) -> u64 {
    server.calls("evalsha").unwrap() + server.calls("eval").unwrap()
}

/// Redlock libraries ask all servers in a loop, so waiters load all of them.
#[tokio::test(flavor = "multi_thread")]
async fn many_waiters_wait_at_the_queue_of_one_member_only() {
    const STORES: usize = 12;
    const TASKS: usize = 24;
    let (servers, url) = quorum("60s").await;
    let holder = open(&url).await.unwrap();
    let lock = holder.locker().lock("a").ttl(Duration::from_secs(60));
    let held = lock.renew(Renew::Manual).acquire().await.unwrap();
    let mut stores = Vec::new();
    for _ in 0..STORES {
        stores.push(open(&url).await.unwrap());
    }
    let mut waiting = JoinSet::new();
    for task in 0..TASKS {
        let locker = stores[task % STORES].locker();
        waiting.spawn(async move {
            let guard = locker.lock("a").wait_forever().acquire().await.unwrap();
            let token = guard.token();
            assert!(guard.release().await.is_clean());
            token
        });
    }
    let entries = |server: &RedisServer| {
        let keys = server.command(&["KEYS", "*:queue-entry:*"]).unwrap();
        keys.lines().count()
    };
    eventually_async("all stores are in the queue", SOON, || async {
        (servers.iter().map(entries).sum::<usize>() >= STORES).then_some(())
    })
    .await
    .unwrap();
    // The attempts from before the wait are over by then.
    SystemClock.sleep(SECOND).await;
    let with_a_queue: Vec<_> = servers.iter().map(entries).collect();
    let others: Vec<_> = servers.iter().filter(|it| entries(it) == 0).collect();
    assert_eq!(others.len(), 2, "entries: {with_a_queue:?}");
    let before: Vec<_> = others.iter().map(|it| scripts(it)).collect();
    let since = SystemClock.now();
    SystemClock.sleep(Duration::from_secs(5)).await;
    let seconds = SystemClock.now().since(since).as_secs() + 1;
    for (server, before) in others.iter().zip(&before) {
        // Only the first of the waiters asks, twice a second.
        let asked = scripts(server) - before;
        assert!(asked <= 4 * seconds, "{asked} in {seconds} s");
    }
    // Each of them gets the lock, one after the other.
    assert!(held.release().await.is_clean());
    let all = at_most(&SystemClock, Duration::from_secs(60), waiting.join_all());
    let mut tokens = all.await.expect("all get the lock");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), TASKS, "each grant has a token of its own");
    for store in stores {
        store.close().await;
    }
    holder.close().await;
}
