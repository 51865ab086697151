//! Holders, waiters and other callers while the server or the network fails.

use std::time::Instant;

use distlock_core::{AcquireRequest, Attempt, ErrorKind, Lease, LossReason, ReleaseOutcome};
use distlock_harness::{FaultProxy, Process, eventually_async};

use super::{
    servers::{
        Idle, a_holder_that_is_cut_off_learns_of_the_loss_first, a_locked_row_delays_only_itself,
        a_wait_for_a_row_is_part_of_the_lease, forgotten_connections_cost_half_a_second,
        locked_rows_delay_nobody_else, steady_caller,
    },
    *,
};

const TTL: Duration = Duration::from_secs(3);

/// A server, a proxy before the server, and a URL that leads through the proxy.
async fn behind_a_proxy() -> (PostgresServer, FaultProxy, String) {
    let server = PostgresServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let url = format!("{}?statement_timeout=1s", server.url_at(proxy.address()));
    (server, proxy, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_and_restart_keep_locks_tokens_and_history() {
    let mut server = PostgresServer::with(&["fsync=on"]).unwrap();
    let locker = locker(&server.url()).await;
    let other = super::locker(&server.url()).await;
    let freed = hold(&locker, "b", LONG).await;
    let freed_token = freed.token();
    assert!(freed.release().await.is_clean());
    // The commit of the next grant writes the release to the disk at the latest.
    let guard = hold(&locker, "a", LONG).await;
    let waiting = tokio::spawn({
        let other = other.clone();
        // After a few failures in a row, a waiter gets an error and asks again.
        async move {
            eventually_async("served", LONG, || async {
                other.lock("a").ttl(LONG).wait(LONG).acquire().await.ok()
            })
            .await
        }
    });
    server.restart().unwrap();
    assert!(guard.is_valid());
    // A broken connection may fail the first request.
    let seen = eventually_async("it answers again", SOON, || async {
        locker.inspect("a").await.ok()
    })
    .await
    .unwrap();
    let held = seen.held.expect("the row survived");
    assert_eq!(held.token, Some(guard.token()));
    assert_eq!(seen.epoch, Some(guard.epoch()));
    let again = hold(&locker, "b", LONG).await;
    assert!(again.token() > freed_token);
    let token = guard.token();
    // The connection may break during the release. Then the clean-up releases the lock in the
    // background.
    let _ = guard.release().await;
    let next = within(SOON, "the waiter is served", waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(next.token() > token);
}

/// A release grants nothing, so that its commit does not wait for the disk. The next grant waits
/// for the disk, and its commit includes the release.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_waits_for_the_disk_and_a_release_does_not() {
    const ROUNDS: u32 = 8;
    let server = PostgresServer::with(&["autovacuum=off"]).unwrap();
    let lock = open(&server.url()).await.lock();
    let bytes = |what| -> u64 {
        let bytes = server.sql(&format!("SELECT pg_current_wal_{what}_lsn() - '0/0'"));
        bytes.unwrap().parse().unwrap()
    };
    // The server's WAL writer is stopped. Otherwise this process would soon write every commit to
    // the disk, without any grant.
    let writer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    let writer = server.sql(writer).unwrap().parse().unwrap();
    let _paused = server.pause_one(writer).unwrap();
    let mut not_on_disk = 0;
    for round in 0..ROUNDS {
        let names = ["freed", "next"].map(|name| request(&format!("{name}-{round}"), LONG));
        let grant = take(&*lock, &names[0]).await;
        let granted = bytes("insert");
        let released = lock.release(&lease(&names[0], &grant)).await.unwrap();
        assert!(matches!(released, ReleaseOutcome::Released { .. }));
        let freed = bytes("insert");
        assert!(freed > granted);
        not_on_disk += u32::from(bytes("flush") < freed);
        take(&*lock, &names[1]).await;
        assert!(bytes("flush") >= freed);
    }
    // The server and the reaper sometimes write something too, so that only more than half of the
    // rounds must show the effect.
    assert!(not_on_disk > ROUNDS / 2, "{not_on_disk}");
}

/// A commit waits for its standby without a time limit, even after its client has disconnected.
/// Such sessions must not use up the server's connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_standby_does_not_fill_the_server_with_sessions() {
    const TURNS: i32 = 12;
    let server = PostgresServer::with(&["fsync=on"]).unwrap();
    let url = format!(
        "{}?statement_timeout=300ms&connect_timeout=1m",
        server.url()
    );
    let lock = open(&url).await.lock();
    let standby = |name: &str| {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
        server.sql_in("postgres", &set).unwrap();
        server.sql("SELECT pg_reload_conf()").unwrap();
    };
    standby("gone");
    let waiting = || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        server.sql(waiting).unwrap().parse::<i32>().unwrap()
    };
    let is_waited_for = async || {
        let _ = lock.try_acquire(&request("first", LONG)).await;
        (waiting() > 0).then_some(())
    };
    eventually_async("it is waited for", SOON, is_waited_for)
        .await
        .unwrap();
    for number in 0..TURNS {
        let asked = request(&format!("number {number}"), LONG);
        lock.try_acquire(&asked).await.unwrap_err();
    }
    let left = waiting();
    assert!(left < TURNS / 2, "{left}");
    standby("");
    let served = eventually_async("it serves again", SOON, || async {
        lock.try_acquire(&request("next", LONG)).await.ok()
    });
    assert!(matches!(served.await.unwrap(), Attempt::Acquired(_)));
}

/// The server has closed the connection, and the client has not noticed that.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_operation_after_a_restart_is_carried_out() {
    let mut server = PostgresServer::with(&["fsync=on"]).unwrap();
    let url = format!("{}?connect_timeout=1m&statement_timeout=1m", server.url());
    let locker = locker(&url).await;
    let guard = hold(&locker, "a", LONG).await;
    server.restart().unwrap();
    let released = guard.release().await;
    assert!(released.is_clean(), "{released:?}");
    drop(hold(&locker, "b", LONG).await);
    server.restart().unwrap();
    let again = hold(&locker, "a", LONG).await;
    assert!(again.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_loses_the_lock_in_time_and_serves_again() {
    let server = PostgresServer::start().unwrap();
    let locker = locker(&format!("{}?statement_timeout=1s", server.url())).await;
    let guard = hold(&locker, "a", TTL).await;
    let paused = server.pause().unwrap();
    let start = Instant::now();
    let asked = locker.inspect("a").await.unwrap_err();
    assert_eq!(asked.kind(), ErrorKind::Unavailable, "{asked}");
    let reason = within(TTL + SOON, "told", guard.lost()).await;
    assert_eq!(reason, LossReason::Unreachable);
    assert!(
        start.elapsed() < TTL + Duration::from_secs(2),
        "while it still stands still"
    );
    drop(paused);
    let next = eventually_async("it serves again", SOON, || async {
        locker.lock("a").ttl(TTL).acquire().await.ok()
    })
    .await
    .unwrap();
    assert!(next.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_outlasts_a_cut_connection_survives() {
    let (_server, proxy, url) = behind_a_proxy().await;
    let locker = locker(&url).await;
    let guard = hold(&locker, "a", TTL * 4).await;
    proxy.black_hole();
    let error = locker
        .lock("b")
        .ttl(TTL)
        .wait(Duration::from_secs(2))
        .acquire()
        .await
        .unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown | ErrorKind::Timeout
        ),
        "{error}"
    );
    proxy.pass();
    proxy.reset();
    eventually_async("renewed", SOON, || async {
        (guard.remaining() > TTL * 3).then_some(())
    })
    .await
    .unwrap();
    assert!(guard.is_valid());
    let _taken = eventually_async("taken", SOON, || async {
        locker.lock("b").ttl(TTL).acquire().await.ok()
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_cut_off_is_told_before_the_next_grant() {
    let (server, proxy, url) = behind_a_proxy().await;
    let (cut, direct) = (locker(&url).await, locker(&server.url()).await);
    a_holder_that_is_cut_off_learns_of_the_loss_first(&cut, direct, &proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_with_a_lost_reply_is_found_again() {
    let (_server, proxy, url) = behind_a_proxy().await;
    let postgres = open(&url).await;
    let lock = postgres.lock();
    let asked = request("a", LONG);
    // This first use prepares the statements on the connection, which needs further requests.
    let warm = request("warm", LONG);
    let prepare = async || {
        let grant = take(&*lock, &warm).await;
        lock.release(&lease(&warm, &grant)).await.unwrap();
    };
    prepare().await;
    proxy.swallow_one_reply();
    let before = postgres.retries();
    let grant = take(&*lock, &asked).await;
    assert!(postgres.retries() > before, "asked again");
    let held = lock.inspect(&asked.name).await.unwrap().held;
    assert_eq!(held.and_then(|held| held.token), Some(grant.token));
    prepare().await;
    proxy.swallow_one_reply();
    let error = lock.release(&lease(&asked, &grant)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(lock.inspect(&asked.name).await.unwrap().held.is_none());
}

/// The server is slow to commit, and continues after the connection was cut. The second send finds
/// the rows locked by the first send. The answer must not say that nothing happened. The answer
/// must not report the loss of a lock that the first send freed.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_was_cut_during_its_commit_has_an_unknown_outcome() {
    // With this default of the server, a statement continues after its client has disconnected.
    let server = PostgresServer::with(&["client_connection_check_interval=0"]).unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let url = format!(
        "{}?pool_size=2&statement_timeout=1m",
        server.url_at(proxy.address())
    );
    let postgres = open(&url).await;
    let lock = postgres.lock();
    let slow = "CREATE TABLE slow (slow bool);
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            WHILE EXISTS (SELECT FROM slow) LOOP PERFORM pg_sleep(0.01); END LOOP;
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER wait AFTER UPDATE ON distributed_lock DEFERRABLE INITIALLY \
            DEFERRED
            FOR EACH ROW WHEN (NEW.lock_name <> 'first') EXECUTE FUNCTION wait()";
    server.sql(slow).unwrap();
    let sessions = |what: &str| {
        let count = format!("SELECT count(*) FROM pg_stat_activity WHERE {what}");
        server.sql(&count).unwrap() != "0"
    };
    let cut = async || {
        let committing = async || sessions("wait_event = 'PgSleep'").then_some(());
        eventually_async("it commits", SOON, committing)
            .await
            .unwrap();
        proxy.reset();
    };
    let (first, one, other) = (
        request("first", LONG),
        request("one", LONG),
        request("other", LONG),
    );
    for request in [&one, &other] {
        let grant = take(&*lock, request).await;
        lock.release(&lease(request, &grant)).await.unwrap();
    }

    server.sql("INSERT INTO slow VALUES (true)").unwrap();
    // The requests that arrive while the first request is in flight form one batch.
    let (_, one_said, other_said, ()) = tokio::join!(
        lock.try_acquire(&first),
        lock.try_acquire(&one),
        lock.try_acquire(&other),
        cut()
    );
    for said in [one_said, other_said] {
        let error = said.unwrap_err();
        assert!(!error.did_not_happen(), "{error}");
    }
    server.sql("DELETE FROM slow").unwrap();
    let held = "SELECT count(*) FROM distributed_lock WHERE lock_name <> 'first' AND holder_id IS \
        NOT NULL";
    let held = async || (server.sql(held).unwrap() == "2").then_some(());
    eventually_async("it has happened", SOON, held)
        .await
        .unwrap();

    let lease = |request: &AcquireRequest| Lease::new(request.name.clone(), request.owner, None);
    let (first, one, other) = (lease(&first), lease(&one), lease(&other));
    server.sql("INSERT INTO slow VALUES (true)").unwrap();
    let releases = async {
        let (_, one_said, other_said) = tokio::join!(
            lock.release(&first),
            lock.release(&one),
            lock.release(&other)
        );
        [one_said, other_said]
    };
    let mut releases = std::pin::pin!(releases);
    let said = tokio::select! {
        said = &mut releases => said,
        // A further request for the rows waits for them.
        () = async {
            cut().await;
            let waits = async || sessions("wait_event_type = 'Lock'").then_some(());
            let _ = eventually_async("it waits", SOON, waits).await;
            server.sql("DELETE FROM slow").unwrap();
        } => releases.await,
    };
    for said in said {
        match said {
            // An answer "released" is true, from the first send or from the second: only this
            // batch frees these locks. If the whole machine pauses, the first send may be answered
            // before the connection is cut.
            Ok(outcome) => assert_ne!(outcome, ReleaseOutcome::NotHeld),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_sessions_are_replaced() {
    let server = PostgresServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let ttl = Duration::from_secs(10);
    let guard = hold(&locker, "a", ttl).await;
    let asking = steady_caller(&locker);
    // The loop takes longer than the lease, so that renewals are needed.
    let until = Instant::now() + ttl + ttl / 2;
    while Instant::now() < until {
        server
            .sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = \
                'distlock'",
            )
            .unwrap();
        tokio::time::sleep(ttl / 10).await;
    }
    assert!(guard.is_valid(), "every renewal found its way");
    asking.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_an_operator_keeps_locked_delays_only_itself() {
    let server = PostgresServer::start().unwrap();
    let locker = locker(&server.url()).await;
    a_locked_row_delays_only_itself(&locker, |names| lock_rows(&server, names)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_an_operator_keeps_locked_delay_nobody_else() {
    let server = PostgresServer::start().unwrap();
    let locker = locker(&server.url()).await;
    locked_rows_delay_nobody_else(&locker, |names| lock_rows(&server, names)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_row_shortens_the_lease() {
    let server = PostgresServer::start().unwrap();
    let locker = locker(&server.url()).await;
    a_wait_for_a_row_is_part_of_the_lease(
        &locker,
        // The row is kept for less than the 400 ms for which a statement waits. The end of the
        // operator's transaction takes up to 100 ms.
        Duration::from_millis(200),
        |names| lock_rows(&server, names),
        || {
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            server.sql(waits).unwrap() != "0"
        },
        || {
            let ends =
                "SELECT (extract(epoch FROM expires_at) * 1000000)::int8 FROM distributed_lock";
            server.sql(ends).unwrap().parse().unwrap()
        },
    )
    .await;
}

/// Locks the rows in a transaction that stays open, like an operator who forgets to commit.
fn lock_rows(server: &PostgresServer, names: &str) -> Process {
    let select = "SELECT 1 FROM distributed_lock WHERE lock_name IN";
    server
        .hold_open(&format!("{select} ({names}) FOR UPDATE"))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_unavailable_until_it_takes_writes_again() {
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    let lock = postgres.lock();
    let asked = request("a", LONG);
    take(&*lock, &asked).await;
    let read_only = |value| {
        let alter = format!("ALTER DATABASE distlock SET default_transaction_read_only = {value}");
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name \
            = 'distlock'";
        server.sql_in("postgres", &alter).unwrap();
        server.sql_in("postgres", end).unwrap();
    };
    read_only("on");
    let error = eventually_async("refused", SOON, || async {
        let error = lock.try_acquire(&asked).await.err()?;
        error.to_string().contains("no writes").then_some(error)
    })
    .await
    .unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    read_only("off");
    eventually_async("taken again", SOON, || async {
        lock.try_acquire(&asked).await.ok()
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn forgotten_connections_are_noticed_soon() {
    let server = PostgresServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let idle = Arc::new(Idle::default());
    let config = config(&server.url_at(proxy.address()));
    let opened = Postgres::open(config, Arc::<Idle>::clone(&idle)).await;
    let lock = opened.unwrap().lock();
    forgotten_connections_cost_half_a_second(&*lock, &proxy, &idle).await;
}
