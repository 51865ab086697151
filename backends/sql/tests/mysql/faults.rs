//! Holders and waiters while the server or the network fails.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use distlock_core::{
    Attempt, ErrorKind, Expect, Lease, Locker, LossReason, RecordKey, Released, Renewal, Renewed,
    Ttl, Written,
};
use distlock_harness::{
    FaultProxy, Process, Signal, eventually_async,
    servers::mysql::{MySqlServer, Product},
};

use distlock_sql::{MySql, ServerConfig};
use futures_util::future::join_all;

use crate::{
    behind_a_proxy,
    common::{lease, request, take},
    locker, mysql, on_both,
    servers::{
        Idle, LONG, SOON, a_holder_that_is_cut_off_learns_of_the_loss_first,
        a_locked_row_delays_only_itself, a_wait_for_a_row_is_part_of_the_lease,
        forgotten_connections_cost_half_a_second, hold, locked_rows_delay_nobody_else,
        steady_caller, within,
    },
    sessions, start,
};

on_both! {
    a_crash_keeps_locks_and_tokens => a_crash_keeps_locks_and_tokens;
    the_first_operation_after_a_restart_succeeds => the_first_operation_after_a_restart_succeeds;
    a_paused_server_loses_the_lock_in_time => a_paused_server_loses_the_lock_in_time;
    a_cut_holder_learns_of_the_loss_first => a_cut_holder_learns_of_the_loss_first;
    a_grant_with_a_lost_reply_is_found_again => a_grant_with_a_lost_reply_is_found_again;
    a_batch_that_was_cut_has_an_unknown_outcome => a_batch_that_was_cut_has_an_unknown_outcome;
    a_late_statement_does_not_shorten_a_lease => a_late_statement_does_not_shorten_a_lease;
    killed_sessions_are_replaced => killed_sessions_are_replaced;
    a_read_only_server_is_unavailable => a_read_only_server_is_unavailable;
    a_row_held_by_an_operator_delays_only_itself => a_row_held_by_an_operator_delays_only_itself;
    rows_held_by_an_operator_delay_no_other_row => rows_held_by_an_operator_delay_no_other_row;
    limits_of_the_server_are_switched_off => limits_of_the_server_are_switched_off;
    a_wait_for_a_row_shortens_the_lease => a_wait_for_a_row_shortens_the_lease;
    the_answer_of_an_abandoned_read_is_dropped => the_answer_of_an_abandoned_read_is_dropped;
    forgotten_connections_are_noticed_soon => forgotten_connections_are_noticed_soon;
}

const TTL: Duration = Duration::from_secs(3);

async fn a_crash_keeps_locks_and_tokens(product: Product) {
    let mut server = start(product);
    let (locker, other) = (locker(&server.url()).await, locker(&server.url()).await);
    let guard = hold(&locker, "held", LONG).await;
    let freed = hold(&locker, "freed", LONG).await;
    let token = freed.token();
    assert!(freed.release().await.is_clean());
    server.restart().unwrap();
    // Requests in flight may fail with their connection; later requests open a new connection.
    let shown = eventually_async("the server is found again", SOON, || async {
        other.inspect("held").await.ok()
    })
    .await
    .unwrap();
    assert_eq!(shown.last_token, Some(guard.token()));
    assert!(shown.held.is_some() && guard.is_valid());
    assert_eq!(shown.epoch, Some(guard.epoch()));
    eventually_async("renewed", SOON, || async { guard.extend(LONG).await.ok() })
        .await
        .unwrap();
    let next = within(SOON, "granted", hold(&other, "freed", LONG)).await;
    assert!(next.token() > token);
    assert!(next.release().await.is_clean());
    // The connection that renews may have been idle since the crash.
    assert!(matches!(
        guard.release().await,
        Released::Clean | Released::Unconfirmed(_)
    ));
    let again = within(SOON, "released", hold(&other, "held", LONG)).await;
    assert!(again.release().await.is_clean());
}

/// The server has closed the connection, and the client has not noticed that.
async fn the_first_operation_after_a_restart_succeeds(product: Product) {
    let mut server = start(product);
    let url = format!("{}&connect_timeout=1m&statement_timeout=1m", server.url());
    let locker = locker(&url).await;
    let guard = hold(&locker, "a", LONG).await;
    server.restart().unwrap();
    let released = guard.release().await;
    assert!(released.is_clean(), "{released:?}");
    server.restart().unwrap();
    let again = hold(&locker, "a", LONG).await;
    assert!(again.release().await.is_clean());
}

async fn a_paused_server_loses_the_lock_in_time(product: Product) {
    let server = start(product);
    let url = format!("{}&statement_timeout=1s", server.url());
    let locker = locker(&url).await;
    let guard = hold(&locker, "a", TTL).await;
    server.signal(Signal::STOP).unwrap();
    // Each request ends within a time limit. The first request may still be answered before all
    // threads of the server have stopped.
    let refused = eventually_async("it stands still", SOON, || async {
        let lock = locker.lock("b").ttl(TTL).wait(Duration::ZERO);
        lock.acquire().await.err()
    });
    assert!(refused.await.unwrap().is_retryable());
    assert_eq!(
        within(SOON, "told", guard.lost()).await,
        LossReason::Unreachable
    );
    server.signal(Signal::CONT).unwrap();
    for name in ["a", "b"] {
        let again = within(SOON, name, locker.lock(name).acquire()).await;
        assert!(again.unwrap().release().await.is_clean());
    }
}

/// A server with time limits of a second.
async fn impatient(product: Product) -> (MySqlServer, FaultProxy, String) {
    let (server, proxy, url) = behind_a_proxy(product).await;
    (server, proxy, format!("{url}&statement_timeout=1s"))
}

async fn a_cut_holder_learns_of_the_loss_first(product: Product) {
    let (server, proxy, url) = impatient(product).await;
    let (cut, direct) = (locker(&url).await, locker(&server.url()).await);
    a_holder_that_is_cut_off_learns_of_the_loss_first(&cut, direct, &proxy).await;
}

async fn a_grant_with_a_lost_reply_is_found_again(product: Product) {
    let (server, proxy, url) = impatient(product).await;
    let mysql = mysql(&url).await.unwrap();
    let locker = Locker::new(mysql.lock());
    locker.ready().await.unwrap();
    let (before, deadline) = (mysql.retries(), Instant::now() + SOON);
    // The lost reply may belong to another request.
    while mysql.retries() < before + 2 {
        assert!(Instant::now() < deadline, "not asked again");
        // This first use prepares the statements on the connection, which needs further requests.
        assert!(hold(&locker, "a", LONG).await.release().await.is_clean());
        proxy.swallow_one_reply();
        let guard = within(SOON, "granted", hold(&locker, "a", LONG)).await;
        let shown = locker.inspect("a").await.unwrap();
        assert_eq!(shown.last_token, Some(guard.token()));
        assert!(guard.release().await.is_clean());
    }
    let rows = server.sql("SELECT COUNT(*) FROM distributed_lock");
    assert_eq!(rows.unwrap(), "1");
    // The reply to a release is lost.
    let guard = hold(&locker, "a", LONG).await;
    proxy.swallow_one_reply();
    assert!(matches!(
        guard.release().await,
        Released::Clean | Released::Unconfirmed(_)
    ));
    let free = "SELECT COUNT(*) FROM distributed_lock WHERE HEX(holder_id) = REPEAT('0', 32)";
    assert_eq!(server.sql(free).unwrap(), "1");
}

/// The server is slow with a batch, and continues the batch after the connection was cut. The
/// second send finds the rows locked by the first send. The answer must not say that nothing
/// happened.
async fn a_batch_that_was_cut_has_an_unknown_outcome(product: Product) {
    let (server, proxy, url) = behind_a_proxy(product).await;
    let mysql = mysql(&format!("{url}&pool_size=2&statement_timeout=1m"))
        .await
        .unwrap();
    let lock = mysql.lock();
    let asked = ["first", "one", "other"].map(|name| request(name, LONG));
    for request in &asked[1..] {
        let grant = take(&*lock, request).await;
        lock.release(&lease(request, &grant)).await.unwrap();
    }
    // The batch waits at its last row. All its rows are locked then.
    let held_up = slow_at(&server, "other");
    let cut = async || {
        slowed_down(&server).await;
        proxy.reset();
    };
    // The requests that arrive while the first request is in flight form one batch.
    let (_, one, other, ()) = tokio::join!(
        lock.try_acquire(&asked[0]),
        lock.try_acquire(&asked[1]),
        lock.try_acquire(&asked[2]),
        cut()
    );
    drop(held_up);
    for said in [one, other] {
        let error = said.unwrap_err();
        assert!(!error.did_not_happen(), "{error}");
    }
}

/// A batch changes its rows one after the other, with the time when the batch began. While a slow
/// batch waits at one row, the owner of a later row gets a lease with a later end. The slow batch
/// must not shorten this lease.
async fn a_late_statement_does_not_shorten_a_lease(product: Product) {
    let server = start(product);
    let url = format!("{}&pool_size=2&statement_timeout=1m", server.url());
    let (slow, swift) = (mysql(&url).await.unwrap(), mysql(&url).await.unwrap());
    let (slow, swift) = (slow.lock(), swift.lock());
    let asked = ["first", "one", "other"].map(|name| request(name, LONG));
    for request in &asked {
        let grant = take(&*slow, request).await;
        slow.release(&lease(request, &grant)).await.unwrap();
    }
    let ends = || {
        let ends = "SELECT expires_at FROM distributed_lock WHERE lock_name = 'other'";
        server.sql(ends).unwrap().parse::<i64>().unwrap()
    };

    // The trigger makes the statement lose its report, so that the rows must be read.
    let held_up = slow_at(&server, "one");
    let (.., told) = tokio::join!(
        slow.try_acquire(&asked[0]),
        slow.try_acquire(&asked[1]),
        slow.try_acquire(&asked[2]),
        async {
            slowed_down(&server).await;
            let before = ends();
            let _ = swift.try_acquire(&asked[2]).await;
            let told = ends();
            assert!(told > before, "it was taken");
            drop(held_up);
            told
        }
    );
    let token = swift.inspect(&asked[1].name).await.unwrap();
    assert!(token.held.is_some(), "it came to its end: {token:?}");
    assert!(ends() >= told, "taken: {} of {told}", ends());

    let mut leases = Vec::new();
    for request in &asked {
        let token = swift.inspect(&request.name).await.unwrap().last_token;
        leases.push(Lease::new(request.name.clone(), request.owner, token));
    }
    let renewal = Renewal::plain(Ttl::new(LONG).unwrap());
    let held_up = slow_at(&server, "one");
    let (.., told) = tokio::join!(
        slow.renew(&leases[0], &renewal),
        slow.renew(&leases[1], &renewal),
        slow.renew(&leases[2], &renewal),
        async {
            slowed_down(&server).await;
            let before = ends();
            let _ = swift.renew(&leases[2], &renewal).await;
            let told = ends();
            assert!(told > before, "it was renewed");
            drop(held_up);
            told
        }
    );
    assert!(ends() >= told, "renewed: {} of {told}", ends());
}

/// Every change of this lock's row waits until the result is dropped.
fn slow_at(server: &MySqlServer, name: &str) -> Process {
    // The trigger sleeps for many short times. During a long sleep, the server would notice that
    // its client has disconnected.
    let slow = format!(
        "SET GLOBAL log_bin_trust_function_creators = 1;
         DROP TRIGGER IF EXISTS slow;
         DELIMITER //
         CREATE TRIGGER slow AFTER UPDATE ON distributed_lock FOR EACH ROW
         WHILE NEW.lock_name = '{name}' AND IS_USED_LOCK('slow') IS NOT NULL DO DO SLEEP(0.01); \
             END WHILE//"
    );
    server.sql(&slow).unwrap();
    server.hold_open("SELECT GET_LOCK('slow', 5)").unwrap()
}

/// Waits until a statement sleeps in the trigger of [`slow_at`].
async fn slowed_down(server: &MySqlServer) {
    let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'";
    let waits = async || (server.sql(waits).unwrap() != "0").then_some(());
    eventually_async("it is under way", SOON, waits)
        .await
        .unwrap();
}

async fn killed_sessions_are_replaced(product: Product) {
    let server = start(product);
    let locker = locker(&server.url()).await;
    let guard = hold(&locker, "a", TTL).await;
    let asking = steady_caller(&locker);
    let until = Instant::now() + TTL * 2;
    while Instant::now() < until {
        for session in sessions(&server) {
            // The session may have ended already.
            let _ = server.sql(&format!("KILL {session}"));
        }
        tokio::time::sleep(TTL / 3).await;
    }
    assert!(guard.is_valid(), "every renewal found its way");
    asking.stop().await;
    assert!(matches!(
        guard.release().await,
        Released::Clean | Released::Unconfirmed(_)
    ));
    eventually_async("released all the same", SOON, || async {
        let held = "SELECT COUNT(*) FROM distributed_lock WHERE lock_name = 'a' AND \
            HEX(holder_id) <> REPEAT('0', 32)";
        (server.sql(held).ok()? == "0").then_some(())
    })
    .await
    .unwrap();
}

async fn a_read_only_server_is_unavailable(product: Product) {
    let server = start(product);
    // The variable `read_only` applies only to users without administrator rights.
    server
        .sql(&format!(
            "CREATE USER poor@'127.0.0.1' IDENTIFIED BY '{}'; \
             GRANT ALL ON distlock.* TO poor@'127.0.0.1'",
            server.password()
        ))
        .unwrap();
    let url = server.url_as("poor").unwrap();
    if product == Product::MySql {
        let offline = |value| server.sql(&format!("SET GLOBAL offline_mode = {value}"));
        offline(1).unwrap();
        let error = mysql(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        offline(0).unwrap();
    }
    let locker = locker(&url).await;
    let guard = hold(&locker, "a", LONG).await;
    server.sql("SET GLOBAL read_only = 1").unwrap();
    let refused = locker.lock("b").wait(Duration::ZERO).acquire().await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    let health = locker.health().await.unwrap();
    let found = health.findings.iter().find(|it| it.check == "read_only");
    assert_eq!(found.unwrap().verdict, distlock_core::Verdict::Fail);
    server.sql("SET GLOBAL read_only = 0").unwrap();
    let other = within(SOON, "serves", hold(&locker, "b", LONG)).await;
    assert!(other.release().await.is_clean());
    assert!(guard.release().await.is_clean());
}

async fn a_row_held_by_an_operator_delays_only_itself(product: Product) {
    let server = start(product);
    let locker = locker(&server.url()).await;
    a_locked_row_delays_only_itself(&locker, |names| lock_rows(&server, names)).await;
}

/// Some servers limit the size of joins and the time of queries. The sessions of the store switch
/// these limits off.
async fn limits_of_the_server_are_switched_off(product: Product) {
    let longest = match product {
        Product::MariaDb => "max-statement-time=0.3",
        Product::MySql => "max-execution-time=1",
    };
    let server = MySqlServer::with(product, &["max-join-size=1", longest]).unwrap();
    let lock = mysql(&server.url()).await.unwrap().lock();
    let ttl = Ttl::new(LONG).unwrap();
    let requests = ["a", "b", "c"].map(|name| request(name, LONG));
    let mut leases = Vec::new();
    for request in &requests {
        leases.push(lease(request, &take(&*lock, request).await));
    }
    let _operator = lock_rows(&server, "'b'");
    // The wait for the row is longer than the server's time limit for a statement.
    let renewed = leases
        .iter()
        .map(|it| async { lock.renew(it, &Renewal::plain(ttl)).await });
    let [a, b, c] = join_all(renewed).await.try_into().unwrap();
    assert!(matches!(a, Ok(Renewed::Extended { .. })), "{a:?}");
    assert!(matches!(c, Ok(Renewed::Extended { .. })), "{c:?}");
    let b = b.unwrap_err().to_string();
    assert!(b.contains("another transaction has the row locked"), "{b}");
    assert_eq!(lock.list("", None, 10).await.unwrap().len(), 3);
}

async fn rows_held_by_an_operator_delay_no_other_row(product: Product) {
    let server = start(product);
    let locker = locker(&server.url()).await;
    locked_rows_delay_nobody_else(&locker, |names| lock_rows(&server, names)).await;
}

async fn a_wait_for_a_row_shortens_the_lease(product: Product) {
    let server = start(product);
    let locker = locker(&server.url()).await;
    a_wait_for_a_row_is_part_of_the_lease(
        &locker,
        Duration::from_millis(700),
        |names| lock_rows(&server, names),
        || {
            let waits = server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'");
            !waits.unwrap().ends_with("\t0")
        },
        || {
            let ends = server.sql("SELECT expires_at FROM distributed_lock");
            ends.unwrap().parse().unwrap()
        },
    )
    .await;
}

/// Locks the rows in a transaction that stays open, like an operator who forgets to commit.
fn lock_rows(server: &MySqlServer, names: &str) -> Process {
    let select = "SELECT token FROM distributed_lock WHERE lock_name IN";
    server
        .hold_open(&format!("START TRANSACTION; {select} ({names}) FOR UPDATE"))
        .unwrap()
}

/// The answer to an abandoned request arrives later, and must not count as the answer to the next
/// request.
async fn the_answer_of_an_abandoned_read_is_dropped(product: Product) {
    let server = start(product);
    let other = locker(&server.url()).await;
    let held = hold(&other, "held", LONG).await;
    let idle = Arc::new(Idle::default());
    let config = ServerConfig::from_url(&format!("{}&pool_size=1", server.url())).unwrap();
    let mysql = MySql::open(config, Arc::<Idle>::clone(&idle))
        .await
        .unwrap();
    let (lock, records) = (mysql.lock(), mysql.records());
    let key = RecordKey::new("k").unwrap();
    for value in 0..3 {
        // The connection is tested before it is used again.
        idle.pass(60);
        server.signal(Signal::STOP).unwrap();
        // The first request may still be answered before all threads of the server have stopped.
        eventually_async("it is given up", SOON, || async {
            idle.pass(60);
            let read = records.get(&key);
            let read = tokio::time::timeout(Duration::from_millis(300), read).await;
            read.is_err().then_some(())
        })
        .await
        .unwrap();
        server.signal(Signal::CONT).unwrap();
        let expect = match records.get(&key).await.unwrap() {
            Some(entry) => Expect::Version(entry.version),
            None => Expect::Absent,
        };
        let written = records.put(&key, &[value], expect).await.unwrap();
        assert!(matches!(written, Written::Stored(_)), "{written:?}");
        let refused = lock.try_acquire(&request("held", LONG)).await.unwrap();
        assert!(matches!(refused, Attempt::Busy(_)), "{refused:?}");
        let granted = lock
            .try_acquire(&request(&format!("free-{value}"), LONG))
            .await;
        assert!(matches!(granted.unwrap(), Attempt::Acquired(_)));
        let entry = records.get(&key).await.unwrap().unwrap();
        assert_eq!(entry.value, [value]);
    }
    assert!(held.release().await.is_clean());
}

async fn forgotten_connections_are_noticed_soon(product: Product) {
    let (_server, proxy, url) = behind_a_proxy(product).await;
    let idle = Arc::new(Idle::default());
    let config = ServerConfig::from_url(&url).unwrap();
    let opened = MySql::open(config, Arc::<Idle>::clone(&idle)).await;
    let lock = opened.unwrap().lock();
    forgotten_connections_cost_half_a_second(&*lock, &proxy, &idle).await;
}
