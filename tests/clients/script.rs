//! The script: what every client of the lock server must do.
//!
//! A scenario has a server of its own and one client or more of the same program. Scenarios run
//! beside each other, since most of their time is waiting for leases.

use std::{path::Path, pin::Pin, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock::{Clock as _, SystemClock};
use distlock_harness::{Direction, FaultProxy, Signal, eventually_async};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::{
    client::{Client, Program, SOON, Tried, acquire, ms},
    server::{LockServer, MAX_LEASE, WallClock, url_through, write_number},
};

/// The lease of most scenarios: long enough for a busy machine, and short enough to wait for.
const TTL: Duration = Duration::from_secs(2);
/// A lease that does not end during a scenario.
const LONG: Duration = Duration::from_secs(3600);
/// Scenarios at a time.
const AT_A_TIME: usize = 8;

type Played<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;
type Scenario = (&'static str, fn(&Program) -> Played<'_>);

/// Makes the table of the scenarios from their functions.
macro_rules! scenarios {
    ($($name:ident,)*) => {
        [$((stringify!($name), |program| Box::pin($name(program)))),*]
    };
}

/// Everything that a client can do, and `cancelled_*`, which needs a form that can be cancelled.
const SCENARIOS: [Scenario; 29] = scenarios![
    a_lock_is_taken_and_given_back,
    a_held_lock_is_busy,
    a_wait_ends_in_time_and_names_the_holder,
    a_release_wakes_a_waiter,
    tokens_rise,
    a_lock_is_renewed_in_the_background,
    the_lock_of_a_killed_holder_is_free_after_its_lease,
    a_stopped_holder_learns_that_its_lock_is_lost,
    a_force_release_is_noticed,
    a_late_release_ends_no_other_lease,
    a_block_ends_with_its_lock,
    a_close_gives_locks_back,
    waiters_are_served_in_their_order,
    many_tasks_of_two_processes_exclude_each_other,
    errors_have_their_kinds,
    a_token_allows_what_it_names,
    a_server_that_is_absent_is_told_and_found_later,
    a_stop_of_the_server_loses_no_lock_and_no_waiter,
    a_holder_proves_its_lock_after_a_crash,
    nobody_new_is_granted_a_lock_during_a_recovery,
    the_lost_answer_of_an_acquire_is_asked_for_again,
    the_lost_answer_of_a_release_frees_the_lock_once,
    lost_answers_of_renewals_keep_the_lock,
    a_holder_that_is_cut_off_stops_before_the_next_one_starts,
    a_lease_counts_from_the_sending,
    a_grant_that_comes_too_late_is_not_used,
    a_new_date_does_not_move_a_deadline,
    cancelled_waits_leave_the_queue,
    cancelled_acquires_leave_no_lock,
];

/// Plays all scenarios with each of these clients.
pub(crate) fn play(programs: &[Program]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()?;
    let played = programs.iter().flat_map(|program| {
        let able = |(name, _): &&Scenario| program.cancels || !name.starts_with("cancelled_");
        SCENARIOS
            .iter()
            .filter(able)
            .map(move |&(name, scenario)| async move {
                let played = scenario(program).await;
                played
                    .err()
                    .map(|error| format!("{}: {name}: {error:#}", program.name))
            })
    });
    let all = stream::iter(played).buffer_unordered(AT_A_TIME);
    let failed: Vec<_> = runtime.block_on(all.filter_map(async |it| it).collect());
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

async fn pause(time: Duration) {
    SystemClock.sleep(time).await;
}

/// Waits until the server has granted the lock, and returns the token. The observer is not behind
/// the fault.
async fn granted(observer: &Client, name: &str) -> Result<u64> {
    let seen = || async { observer.token_of(name).await.ok().flatten() };
    eventually_async("the server has granted the lock", SOON, seen).await
}

async fn two(program: &Program, server: &LockServer) -> Result<(Client, Client)> {
    let url = server.url();
    Ok((program.open(&url).await?, program.open(&url).await?))
}

/// Two clients, the first behind a proxy.
async fn one_behind_a_proxy(
    program: &Program,
    server: &LockServer,
) -> Result<(FaultProxy, Client, Client)> {
    let proxy = server.proxy().await?;
    let a = program.open(&url_through(&proxy)).await?;
    let b = program.open(&server.url()).await?;
    Ok((proxy, a, b))
}

async fn a_lock_is_taken_and_given_back(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    ensure!(lease.token > 0 && lease.remaining <= TTL, "{lease:?}");
    a.expect_valid(&lease).await?;
    ensure!(b.token_of("nightly").await? == Some(lease.token));
    a.release_held(&lease).await?;
    ensure!(b.token_of("nightly").await?.is_none());
    ensure!(!a.state(&lease).await?.is_valid);
    Ok(())
}

async fn a_held_lock_is_busy(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.take("nightly", TTL).await?;
    b.expect_busy("nightly").await?;
    a.expect_busy("nightly").await?;
    let other = b.take("weekly", TTL).await?;
    b.release_held(&other).await?;
    a.release_held(&lease).await?;
    let next = b.take("nightly", TTL).await?;
    b.release_held(&next).await
}

async fn a_wait_ends_in_time_and_names_the_holder(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    let wait = Duration::from_millis(700);
    let asked = SystemClock.now();
    let answer = b
        .begin(acquire("nightly", TTL, wait))
        .await?
        .answer()
        .await?;
    let took = SystemClock.now().since(asked);
    ensure!(answer["error"] == "timeout", "{answer}");
    let holder = answer["holder"].as_str().context("the holder is named")?;
    ensure!(holder.contains('@'), "{answer}");
    ensure!(took >= wait && took < SOON / 2, "{took:?}");
    a.release_held(&lease).await?;
    b.take("nightly", TTL).await?;
    Ok(())
}

async fn a_release_wakes_a_waiter(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", LONG).await?;
    let mut waiting = b.begin(acquire("nightly", LONG, SOON)).await?;
    pause(Duration::from_millis(500)).await;
    waiting.expect_none()?;
    a.release_held(&lease).await?;
    let released = SystemClock.now();
    let next = waiting.granted().await?;
    // Neither the end of the lease nor the end of the wait woke it.
    let took = SystemClock.now().since(released);
    ensure!(took < SOON / 4, "{took:?}");
    ensure!(next.token > lease.token);
    b.release_held(&next).await
}

async fn tokens_rise(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let mut last = 0;
    for round in 0..20 {
        let client = if round % 2 == 0 { &a } else { &b };
        let lease = client.acquire("nightly", TTL).await?;
        ensure!(lease.token > last, "{} after {last}", lease.token);
        last = lease.token;
        client.release_held(&lease).await?;
    }
    Ok(())
}

async fn a_lock_is_renewed_in_the_background(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    for _ in 0..15 {
        pause(TTL / 5).await;
        a.expect_valid(&lease).await?;
        b.expect_busy("nightly").await?;
    }
    ensure!(b.token_of("nightly").await? == Some(lease.token));
    a.release_held(&lease).await
}

async fn the_lock_of_a_killed_holder_is_free_after_its_lease(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    pause(TTL).await;
    let waiting = b.begin(acquire("nightly", TTL, SOON)).await?;
    a.signal(Signal::KILL)?;
    let killed = SystemClock.now();
    let next = waiting.granted().await?;
    let took = SystemClock.now().since(killed);
    ensure!(took < TTL + SOON / 4, "{took:?}");
    ensure!(next.token > lease.token);
    b.release_held(&next).await
}

async fn a_stopped_holder_learns_that_its_lock_is_lost(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    a.signal(Signal::STOP)?;
    let next = b.acquire("nightly", TTL).await?;
    a.signal(Signal::CONT)?;
    // The first look after the stop already says so, without a word of the server.
    let state = a.state(&lease).await?;
    ensure!(!state.is_valid && state.loss.is_some(), "{state:?}");
    a.loss(&lease).await?;
    ensure!(a.release(&lease).await? == "already_lost");
    b.expect_valid(&next).await?;
    ensure!(next.token > lease.token);
    b.release_held(&next).await
}

async fn a_force_release_is_noticed(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    b.force_release("nightly", &lease).await?;
    let loss = a.loss(&lease).await?;
    ensure!(loss.reason == "force_released", "{loss:?}");
    ensure!(!a.state(&lease).await?.is_valid);
    let order = json!({"do": "force", "name": "nightly", "token": lease.token});
    ensure!(b.ask(order).await?["forced"] == false);
    Ok(())
}

async fn a_late_release_ends_no_other_lease(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    b.force_release("nightly", &lease).await?;
    let next = b.acquire("nightly", TTL).await?;
    a.loss(&lease).await?;
    ensure!(a.release(&lease).await? == "already_lost");
    a.expect_busy("nightly").await?;
    b.release_held(&next).await
}

async fn a_block_ends_with_its_lock(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let block = |hold: Duration| {
        let mut order = acquire("nightly", TTL, SOON);
        order["do"] = "block".into();
        order["hold_ms"] = ms(hold).into();
        order
    };
    let ended = a.ask(block(Duration::from_millis(100))).await?;
    ensure!(ended["block"] == "ended", "{ended}");
    let held = a.begin(block(TTL * 2)).await?;
    let token = granted(&b, "nightly").await?;
    b.ask(json!({"do": "force", "name": "nightly", "token": token}))
        .await?;
    let ended = held.answer().await?;
    ensure!(ended["error"] == "lost", "{ended}");
    Ok(())
}

async fn a_close_gives_locks_back(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    for name in ["one", "two"] {
        a.acquire(name, LONG).await?;
    }
    a.ask(json!({"do": "close"})).await?;
    for name in ["one", "two"] {
        b.take(name, TTL).await?;
    }
    Ok(())
}

async fn waiters_are_served_in_their_order(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let a = program.open(&server.url()).await?;
    let lease = a.acquire("nightly", LONG).await?;
    // Each in a process of its own: tasks of one process may have an order of their own.
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let client = program.open(&server.url()).await?;
        let waits = client.begin(acquire("nightly", LONG, SOON)).await?;
        waiting.push((client, waits));
        pause(Duration::from_millis(300)).await;
    }
    a.release_held(&lease).await?;
    let mut last = lease.token;
    while !waiting.is_empty() {
        let (client, waits) = waiting.remove(0);
        let lease = waits.granted().await?;
        ensure!(lease.token > last, "{last} {lease:?}");
        last = lease.token;
        for (_, later) in &mut waiting {
            later.expect_none()?;
        }
        client.release_held(&lease).await?;
    }
    Ok(())
}

async fn many_tasks_of_two_processes_exclude_each_other(program: &Program) -> Result<()> {
    const TASKS: u64 = 8;
    const TIMES: u64 = 12;
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("counter");
    write_number(&file, 0)?;
    let order = || {
        let mut order = acquire("counter", Duration::from_secs(10), SOON);
        order["do"] = "count".into();
        order["file"] = file.to_string_lossy().into();
        order["tasks"] = TASKS.into();
        order["times"] = TIMES.into();
        order
    };
    let (one, other) = tokio::join!(a.ask(order()), b.ask(order()));
    one?;
    other?;
    let counted: u64 = std::fs::read_to_string(Path::new(&file))?.parse()?;
    ensure!(counted == 2 * TASKS * TIMES, "{counted}");
    Ok(())
}

async fn errors_have_their_kinds(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let client = program.open(&server.url()).await?;
    for (name, ttl, kind) in [
        ("", TTL, "invalid_name"),
        ("a\nb", TTL, "invalid_name"),
        (
            "nightly",
            Duration::from_secs(100 * 3600),
            "invalid_argument",
        ),
    ] {
        let refused = client.refused(acquire(name, ttl, SOON)).await?;
        ensure!(refused == kind, "{name:?} {ttl:?}: {refused}");
    }
    let lease = client.acquire("nightly", TTL).await?;
    client.release_held(&lease).await?;
    for url in [
        "distlock://",
        "distlock://127.0.0.1:x",
        "distlock://u:p@127.0.0.1",
    ] {
        let other = program.start()?;
        let refused = other.refused(json!({"do": "open", "url": url})).await?;
        ensure!(refused == "invalid_config", "{url}: {refused}");
    }
    Ok(())
}

async fn a_token_allows_what_it_names(program: &Program) -> Result<()> {
    let (server, token) = LockServer::start_with_tokens()?;
    let folder = tempfile::tempdir()?;
    let wrong = folder.path().join("wrong");
    std::fs::write(&wrong, "no.token.at.all")?;
    let with = |file: &Path| format!("{}?token_file={}", server.url(), file.display());
    for url in [server.url(), with(&wrong)] {
        let client = program.start()?;
        // A client may connect here, or with its first request.
        let opened = client.begin(json!({"do": "open", "url": url})).await?;
        opened.answer().await?;
        let tried = client.try_acquire("app/nightly", TTL).await?;
        ensure!(
            matches!(&tried, Tried::Failed(kind) if kind == "access_denied"),
            "{tried:?}"
        );
    }
    let client = program.open(&with(&token)).await?;
    let lease = client.acquire("app/nightly", TTL).await?;
    pause(TTL).await;
    client.expect_valid(&lease).await?;
    let tried = client.try_acquire("nightly", TTL).await?;
    ensure!(
        matches!(&tried, Tried::Failed(kind) if kind == "access_denied"),
        "{tried:?}"
    );
    client.release_held(&lease).await
}

async fn a_server_that_is_absent_is_told_and_found_later(program: &Program) -> Result<()> {
    let mut server = LockServer::absent()?;
    let client = program.start()?;
    // A client may connect here, or with its first request.
    let opened = client
        .begin(json!({"do": "open", "url": server.url()}))
        .await?;
    let opened = opened.answer().await?;
    ensure!(
        matches!(opened["error"].as_str(), None | Some("unavailable")),
        "{opened}"
    );
    let tried = client.try_acquire("nightly", TTL).await?;
    ensure!(
        matches!(&tried, Tried::Failed(kind) if kind == "unavailable"),
        "{tried:?}"
    );
    server.start_with(&["--init"])?;
    let found = || async {
        match client.try_acquire("nightly", TTL).await {
            Ok(Tried::Taken(lease)) => Some(lease),
            _ => None,
        }
    };
    let lease = eventually_async("the server is found", SOON, found).await?;
    client.release_held(&lease).await
}

async fn a_stop_of_the_server_loses_no_lock_and_no_waiter(program: &Program) -> Result<()> {
    let mut server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    let mut waiting = b.begin(acquire("nightly", TTL, SOON)).await?;
    pause(Duration::from_millis(300)).await;
    server.stop()?;
    server.start_again()?;
    for _ in 0..8 {
        pause(TTL / 4).await;
        a.expect_valid(&lease).await?;
        waiting.expect_none()?;
    }
    a.release_held(&lease).await?;
    let next = waiting.granted().await?;
    ensure!(next.token > lease.token);
    b.release_held(&next).await
}

async fn a_holder_proves_its_lock_after_a_crash(program: &Program) -> Result<()> {
    let mut server = LockServer::start_brief()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    server.crash()?;
    server.start_again()?;
    let started = SystemClock.now();
    // Longer than the recovery, so the lock is a lock like any other by then.
    while SystemClock.now().since(started) < MAX_LEASE + TTL {
        pause(TTL / 4).await;
        a.expect_valid(&lease).await?;
        let tried = b.try_acquire("nightly", TTL).await?;
        ensure!(!matches!(tried, Tried::Taken(_)), "{tried:?}");
    }
    b.expect_busy("nightly").await?;
    ensure!(b.token_of("nightly").await? == Some(lease.token));
    a.release_held(&lease).await?;
    let next = b.acquire("nightly", TTL).await?;
    ensure!(next.token > lease.token);
    b.release_held(&next).await
}

async fn nobody_new_is_granted_a_lock_during_a_recovery(program: &Program) -> Result<()> {
    let mut server = LockServer::start_brief()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    server.crash()?;
    a.signal(Signal::KILL)?;
    let crashed = SystemClock.now();
    server.start_again()?;
    let tried = b.try_acquire("weekly", TTL).await?;
    ensure!(
        matches!(&tried, Tried::Failed(kind) if kind == "unavailable"),
        "{tried:?}"
    );
    let next = b.acquire("nightly", TTL).await?;
    let took = SystemClock.now().since(crashed);
    ensure!(took >= MAX_LEASE, "{took:?}");
    ensure!(next.token > lease.token);
    b.release_held(&next).await
}

async fn the_lost_answer_of_an_acquire_is_asked_for_again(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (proxy, a, b) = one_behind_a_proxy(program, &server).await?;
    let first = a.acquire("warm", TTL).await?;
    a.release_held(&first).await?;
    proxy.stop(Direction::ToClient);
    let waiting = a.begin(acquire("nightly", LONG, SOON)).await?;
    let token = granted(&b, "nightly").await?;
    proxy.reset();
    proxy.pass();
    let lease = waiting.granted().await?;
    a.expect_valid(&lease).await?;
    ensure!(
        b.token_of("nightly").await? == Some(lease.token),
        "{token} {lease:?}"
    );
    b.expect_busy("nightly").await?;
    a.release_held(&lease).await?;
    b.take("nightly", TTL).await?;
    Ok(())
}

async fn the_lost_answer_of_a_release_frees_the_lock_once(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (proxy, a, b) = one_behind_a_proxy(program, &server).await?;
    let lease = a.acquire("nightly", LONG).await?;
    proxy.stop(Direction::ToClient);
    let order = json!({"do": "release", "lease": lease.number()});
    let releasing = a.begin(order).await?;
    let next = b.acquire("nightly", TTL).await?;
    proxy.reset();
    proxy.pass();
    let released = releasing.answer().await?;
    ensure!(released["released"] != "already_lost", "{released}");
    pause(TTL).await;
    b.expect_valid(&next).await?;
    a.expect_busy("nightly").await?;
    b.release_held(&next).await
}

async fn lost_answers_of_renewals_keep_the_lock(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (proxy, a, b) = one_behind_a_proxy(program, &server).await?;
    let lease = a.acquire("nightly", TTL * 2).await?;
    for _ in 0..12 {
        // Whatever is in flight is lost.
        proxy.swallow_one_reply();
        pause(TTL / 4).await;
        proxy.reset();
        pause(TTL / 4).await;
        a.expect_valid(&lease).await?;
        b.expect_busy("nightly").await?;
    }
    proxy.pass();
    a.release_held(&lease).await
}

async fn a_holder_that_is_cut_off_stops_before_the_next_one_starts(
    program: &Program,
) -> Result<()> {
    let server = LockServer::start()?;
    let (proxy, a, b) = one_behind_a_proxy(program, &server).await?;
    let lease = a.acquire("nightly", TTL).await?;
    proxy.black_hole();
    let next = b.acquire("nightly", TTL).await?;
    let loss = a.loss(&lease).await?;
    ensure!(loss.reason == "unreachable", "{loss:?}");
    ensure!(loss.at_us <= next.at_us, "{loss:?} {next:?}");
    proxy.pass();
    ensure!(a.release(&lease).await? == "already_lost");
    b.expect_valid(&next).await?;
    b.release_held(&next).await?;
    // The client goes on afterwards.
    let lease = a.acquire("nightly", TTL).await?;
    a.release_held(&lease).await
}

async fn a_lease_counts_from_the_sending(program: &Program) -> Result<()> {
    let ttl = MAX_LEASE;
    let server = LockServer::start()?;
    let (proxy, a, b) = one_behind_a_proxy(program, &server).await?;
    let first = a.acquire("warm", TTL).await?;
    a.release_held(&first).await?;
    proxy.stop(Direction::ToClient);
    let waiting = a.begin(acquire("nightly", ttl, SOON)).await?;
    let token = granted(&b, "nightly").await?;
    let delay = Duration::from_millis(1200);
    pause(delay).await;
    proxy.pass();
    let lease = waiting.granted().await?;
    // Otherwise the first answer was given up, and this is another one.
    ensure!(lease.token == token, "{token} {lease:?}");
    ensure!(lease.remaining <= ttl - delay, "{lease:?}");
    a.release_held(&lease).await
}

async fn a_grant_that_comes_too_late_is_not_used(program: &Program) -> Result<()> {
    let ttl = Duration::from_secs(1);
    let server = LockServer::start()?;
    let (proxy, a, b) = one_behind_a_proxy(program, &server).await?;
    let first = a.acquire("warm", TTL).await?;
    a.release_held(&first).await?;
    proxy.stop(Direction::ToClient);
    let waiting = a.begin(acquire("nightly", ttl, SOON)).await?;
    let late = granted(&b, "nightly").await?;
    pause(ttl + ttl / 2).await;
    let other = b.take("nightly", ttl).await?;
    proxy.pass();
    pause(ttl).await;
    b.expect_valid(&other).await?;
    b.release_held(&other).await?;
    let lease = waiting.granted().await?;
    ensure!(
        lease.token > other.token && other.token > late,
        "{late} {other:?} {lease:?}"
    );
    a.expect_valid(&lease).await?;
    a.release_held(&lease).await
}

async fn a_new_date_does_not_move_a_deadline(program: &Program) -> Result<()> {
    const DAY: i64 = 24 * 60 * 60;
    let server = LockServer::start()?;
    let date = WallClock::new()?;
    let moved = program.with_variables(date.variables());
    let (a, b) = (
        moved.open(&server.url()).await?,
        program.open(&server.url()).await?,
    );
    let lease = a.acquire("nightly", TTL).await?;
    for seconds in [DAY, -DAY, 0] {
        date.set(seconds)?;
        for _ in 0..6 {
            pause(TTL / 4).await;
            a.expect_valid(&lease).await?;
            b.expect_busy("nightly").await?;
        }
    }
    a.release_held(&lease).await?;
    let next = a.acquire("nightly", TTL).await?;
    ensure!(
        next.token > lease.token && next.remaining <= TTL,
        "{next:?}"
    );
    a.release_held(&next).await
}

async fn cancelled_waits_leave_the_queue(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (a, b) = two(program, &server).await?;
    let lease = a.acquire("nightly", LONG).await?;
    let waiting = b.begin(acquire("nightly", LONG, SOON)).await?;
    pause(Duration::from_millis(300)).await;
    b.ask(json!({"do": "cancel", "task": waiting.id})).await?;
    let answer = waiting.answer().await?;
    ensure!(answer["error"] == "cancelled", "{answer}");
    a.release_held(&lease).await?;
    let next = a.acquire("nightly", LONG).await?;
    a.release_held(&next).await
}

async fn cancelled_acquires_leave_no_lock(program: &Program) -> Result<()> {
    let server = LockServer::start()?;
    let (proxy, a, b) = one_behind_a_proxy(program, &server).await?;
    let first = a.acquire("warm", TTL).await?;
    a.release_held(&first).await?;
    proxy.stop(Direction::ToClient);
    let waiting = a.begin(acquire("nightly", LONG, SOON)).await?;
    granted(&b, "nightly").await?;
    a.ask(json!({"do": "cancel", "task": waiting.id})).await?;
    let answer = waiting.answer().await?;
    ensure!(answer["error"] == "cancelled", "{answer}");
    proxy.pass();
    // The lease would be far longer than this wait.
    let lease = b.acquire("nightly", TTL).await?;
    b.release_held(&lease).await
}
