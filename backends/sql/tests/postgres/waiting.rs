//! Notifications of waiters in other processes, the costs of waiting, and the removal of idle rows.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use distlock_core::{Attempt, Clock, Expect, Guard, Moment, ReleaseOutcome, Sleep, Written};
use distlock_harness::eventually_async;
use sqlx::postgres::{PgListener, PgPoolOptions};

use super::{servers::stale_rows_are_counted, *};

#[tokio::test(flavor = "multi_thread")]
async fn a_release_notifies_only_if_another_process_waits() {
    let server = PostgresServer::start().unwrap();
    let pool = PgPoolOptions::new().connect(&server.url()).await.unwrap();
    let mut told = PgListener::connect_with(&pool).await.unwrap();
    told.listen("distributed_lock").await.unwrap();
    let (locker, other) = (locker(&server.url()).await, locker(&server.url()).await);

    let alone = hold(&locker, "alone", LONG).await;
    assert!(alone.release().await.is_clean());

    let wanted = hold(&locker, "wanted", LONG).await;
    let waiting = tokio::spawn(async move { hold(&other, "wanted", LONG).await });
    eventually_async("the row is marked", SOON, || async {
        let marked = "SELECT count(*) FROM distributed_lock WHERE lock_name = 'wanted' AND \
            hint_until > now()";
        (server.sql(marked).unwrap() == "1").then_some(())
    })
    .await
    .unwrap();
    assert!(wanted.release().await.is_clean());
    let first = within(SOON, "told", told.recv()).await.unwrap();
    assert_eq!(first.payload(), "wanted", "and nothing before it");
    drop(within(SOON, "served", waiting).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_becomes_that_of_several_processes() {
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    a_hint_of_another_process_becomes_that_of_several(
        &*postgres.lock(),
        async |mark| {
            let marked = format!(
                "UPDATE distributed_lock SET hint_id = {mark}, hint_until = now() + interval \
                    '1 hour'"
            );
            server.sql(&marked).unwrap();
        },
        async || {
            let mark = server.sql("SELECT hint_id FROM distributed_lock");
            mark.unwrap().parse().unwrap()
        },
    )
    .await;
}

/// An attempt that finds a live hint in the row does not set the hint again.
#[tokio::test(flavor = "multi_thread")]
async fn a_hint_is_not_set_twice() {
    let server = PostgresServer::start().unwrap();
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    let holder = request("a", LONG);
    let grant = take(&*one.lock(), &holder).await;
    let mut waiter = other.lock().contend(&request("a", LONG)).await.unwrap();
    let mut least = [u64::MAX; 2];
    for (marked, least) in ["'epoch'", "now() + interval '1 hour'"]
        .iter()
        .zip(&mut least)
    {
        // The reaper sometimes sends statements too, so that the lowest count is used.
        for _ in 0..5 {
            let mark = format!("UPDATE distributed_lock SET hint_id = 0, hint_until = {marked}");
            server.sql(&mark).unwrap();
            let before = other.statements();
            assert!(waiter.attempt().await.unwrap().acquired().is_none());
            *least = (*least).min(other.statements() - before);
        }
    }
    assert_eq!(least, [3, 2]);
    let waiting = tokio::spawn(async move {
        loop {
            if let Some(grant) = waiter.attempt().await.unwrap().acquired() {
                return grant;
            }
            waiter.wait(LONG).await;
        }
    });
    one.lock().release(&lease(&holder, &grant)).await.unwrap();
    let next = within(SOON, "served", waiting).await.unwrap();
    assert!(next.token > grant.token);
}

/// The holder's process may also wait with another handle, or may have set its hint after it took
/// the lock. A holder ignores its own hint, and this hint must not hide the waiters of other
/// processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_with_its_own_hint_still_notifies() {
    let server = PostgresServer::start().unwrap();
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    let pool = PgPoolOptions::new().connect(&server.url()).await.unwrap();
    let mut told = PgListener::connect_with(&pool).await.unwrap();
    told.listen("distributed_lock").await.unwrap();
    let lock = one.lock();
    let holder = request("a", LONG);
    let grant = take(&*lock, &holder).await;
    let mut own = lock.contend(&request("a", LONG)).await.unwrap();
    assert!(own.attempt().await.unwrap().acquired().is_none());
    own.leave().await.unwrap();
    let keep =
        "UPDATE distributed_lock SET hint_until = now() + interval '1 hour' WHERE hint_id > 0";
    server.sql(keep).unwrap();
    // After its attempt, the waiter depends on the notification.
    let mut waiter = other.lock().contend(&request("a", LONG)).await.unwrap();
    assert!(waiter.attempt().await.unwrap().acquired().is_none());
    let released = lock.release(&lease(&holder, &grant)).await.unwrap();
    let says = ReleaseOutcome::Released {
        others_waiting: Some(true),
    };
    assert_eq!(released, says);
    // The channel also carries notifications that a contender has left the queue.
    let told = async { while told.recv().await.unwrap().payload() != "a" {} };
    within(SOON, "told", told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_is_noticed_without_a_notification() {
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    let asked = request("a", Duration::from_secs(3));
    take(&*postgres.lock(), &asked).await;
    let other = locker(&server.url()).await;
    drop(within(SOON, "served", hold(&other, "a", LONG)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_is_one_statement() {
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    a_hand_over_takes_one_statement(&*postgres.lock(), 19, || postgres.statements()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freed_row_keeps_its_token() {
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    a_release_keeps_the_token(&*postgres.lock(), |token| {
        let set = format!("UPDATE distributed_lock SET token = {token}");
        server.sql(&set).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_waiters_cost_no_more_than_one() {
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    // In each second: a poll and an update of the hints. Once: the reaper, the listener, and the
    // connections of both.
    let polls = Polls {
        seconds: 4,
        each: 3,
        once: 40,
    };
    for waiters in [1, 100] {
        polls
            .suffice(&*postgres.lock(), || postgres.statements(), waiters)
            .await;
    }
}

/// A waiter whose notification was lost finds the free lock with its next poll.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_freed_by_hand_is_noticed_long_before_its_lease_ends() {
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    take(&*postgres.lock(), &request("a", SOON * 10)).await;
    let waiting = waiting(&server, "a").await;
    server
        .sql("UPDATE distributed_lock SET holder_id = NULL, expires_at = now()")
        .unwrap();
    drop(within(SOON, "served", waiting).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_whose_session_was_ended_listens_again() {
    const LISTENERS: &str =
        "FROM pg_stat_activity WHERE application_name = 'distlock' AND query ILIKE 'LISTEN%'";
    let server = PostgresServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let guard = hold(&locker, "a", SOON * 10).await;
    let waiting = waiting(&server, "a").await;
    let listener = async || {
        eventually_async("somebody listens", SOON, || async {
            let pid = server.sql(&format!("SELECT pid {LISTENERS}")).unwrap();
            (!pid.is_empty()).then_some(pid)
        })
        .await
        .unwrap()
    };
    let before = listener().await;
    let ended = server.sql(&format!(
        "SELECT pg_terminate_backend(pid, 10000) {LISTENERS}"
    ));
    assert_eq!(ended.unwrap(), "t");
    assert_ne!(listener().await, before);
    assert!(guard.release().await.is_clean());
    drop(within(SOON, "served", waiting).await.unwrap());
}

/// Some servers end idle sessions. The sessions of the store turn this setting off.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_are_idle_for_long_are_kept() {
    let server = PostgresServer::with(&["idle_session_timeout=300ms"]).unwrap();
    let postgres = open(&server.url()).await;
    let (lock, records, held) = (postgres.lock(), postgres.records(), request("a", LONG));
    let grant = take(&*lock, &held).await;
    let waiting = waiting(&server, "a").await;
    let oldest = |what: &str| {
        let oldest = format!(
            "SELECT coalesce(extract(epoch FROM max(now() - state_change)), -1) FROM \
                pg_stat_activity \
             WHERE application_name = 'distlock' AND state = 'idle' AND query {what} 'LISTEN%'"
        );
        server.sql(&oldest).unwrap().parse::<f64>().unwrap()
    };
    for what in ["ILIKE", "NOT ILIKE"] {
        eventually_async("idle for long", SOON, || async {
            let oldest = oldest(what);
            assert!(oldest >= 0.0 || what == "ILIKE", "it was ended");
            (oldest > 1.5).then_some(())
        })
        .await
        .unwrap();
    }
    // The creation of a record is never sent again, so that it fails if its session has ended.
    let key = distlock_core::RecordKey::new("k").unwrap();
    let written = records.put(&key, b"v", Expect::Absent).await.unwrap();
    assert!(matches!(written, Written::Stored(_)), "{written:?}");
    let released = lock.release(&lease(&held, &grant)).await.unwrap();
    assert!(matches!(released, ReleaseOutcome::Released { .. }));
    drop(within(SOON, "served", waiting).await.unwrap());
}

/// A lock that is held at each attempt and free at each read counts as busy, not as a failure of
/// the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_changes_hands_faster_than_its_row_is_read_is_busy() {
    /// This number is larger than the number of failures after which a waiter gets an error.
    const TURNS: u64 = 40;
    let server = PostgresServer::start().unwrap();
    make_sessions_replication_sessions(&server);
    let locker = locker(&server.url()).await;
    let first = hold(&locker, "a", LONG).await;
    let token = first.token();
    assert!(first.release().await.is_clean());
    make_every_acquire_lose_a_race(&server);
    let once = locker.lock("a").ttl(LONG).try_acquire().await;
    assert!(matches!(once, Ok(Attempt::Busy(None))), "{once:?}");
    let waiter = locker.clone();
    let waiting = tokio::spawn(async move { waiter.lock("a").wait(LONG).acquire().await });
    eventually_async("it was overtaken often", LONG, || async {
        let now = server.sql("SELECT token FROM distributed_lock").unwrap();
        (now.parse::<u64>().unwrap() > token.get() + TURNS).then_some(())
    })
    .await
    .unwrap();
    server
        .sql("DROP TRIGGER overtake ON distributed_lock")
        .unwrap();
    let served = within(SOON, "served", waiting).await.unwrap().unwrap();
    assert!(served.token().get() > token.get() + TURNS);
}

/// A contender that loses every race pauses before its next attempt, so that it does not delay
/// faster contenders.
#[tokio::test(flavor = "multi_thread")]
async fn a_contender_that_loses_every_race_backs_off() {
    const TURNS: u64 = 20;
    let server = PostgresServer::start().unwrap();
    make_sessions_replication_sessions(&server);
    let clock = SleepCountingClock::default();
    let opened = Postgres::open(config(&server.url()), Arc::new(clock.clone())).await;
    let lock = opened.unwrap().lock();
    let asked = request("a", LONG);
    let grant = take(&*lock, &asked).await;
    lock.release(&lease(&asked, &grant)).await.unwrap();
    make_every_acquire_lose_a_race(&server);
    let mut contender = lock.contend(&asked).await.unwrap();
    let before = clock.taken();
    for _ in 0..TURNS {
        let attempt = contender.attempt().await.unwrap();
        assert!(matches!(attempt, Attempt::Busy(None)), "{attempt:?}");
        contender.wait(LONG).await;
    }
    // The start of the listener and the poller also wake the contender, so that not every attempt
    // has a pause before it.
    let short_sleeps = clock.taken() - before;
    assert!(short_sleeps > TURNS / 2, "{short_sleeps}");
}

/// The system's clock, with a count of completed sleeps of less than 100 ms.
#[derive(Clone, Debug, Default)]
struct SleepCountingClock(Arc<AtomicU64>);

impl SleepCountingClock {
    fn taken(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clock for SleepCountingClock {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> SystemTime {
        SystemClock.wall()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let taken = Arc::clone(&self.0);
        Box::pin(async move {
            SystemClock.sleep(time).await;
            taken.fetch_add(
                u64::from(time < Duration::from_millis(100)),
                Ordering::Relaxed,
            );
        })
    }
}

/// Creates a trigger with which every acquire seems to lose against another owner. Opening refuses
/// tables whose triggers run in ordinary sessions, and the waiter opens further connections later.
/// So the trigger runs only in replication sessions; see [`make_sessions_replication_sessions`].
fn make_every_acquire_lose_a_race(server: &PostgresServer) {
    server
        .sql(
            "CREATE FUNCTION overtake() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF pg_trigger_depth() = 1 AND NEW.holder_id IS NOT NULL THEN
                     UPDATE distributed_lock SET token = token + 1 WHERE lock_name = NEW.lock_name;
                     RETURN NULL;
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER overtake BEFORE UPDATE ON distributed_lock FOR EACH ROW EXECUTE \
                 FUNCTION overtake();
             ALTER TABLE distributed_lock ENABLE REPLICA TRIGGER overtake",
        )
        .unwrap();
}

/// Makes every session that begins later a replication session.
fn make_sessions_replication_sessions(server: &PostgresServer) {
    let all = "ALTER ROLE ALL SET session_replication_role = replica";
    server.sql(all).unwrap();
}

/// A task that waits for a lock with another store, and has set its hint.
async fn waiting(server: &PostgresServer, name: &'static str) -> tokio::task::JoinHandle<Guard> {
    let other = locker(&server.url()).await;
    let waiting =
        tokio::spawn(async move { other.lock(name).wait(SOON * 5).acquire().await.unwrap() });
    eventually_async("the row is marked", SOON, || async {
        let marked = "SELECT count(*) FROM distributed_lock WHERE hint_until > now()";
        (server.sql(marked).unwrap() == "1").then_some(())
    })
    .await
    .unwrap();
    waiting
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_rows_are_removed_only_by_the_first_reaper() {
    let server = PostgresServer::start().unwrap();
    let url = format!("{}?reap_after=1s", server.url());
    let stores = [open(&url).await, open(&url).await];
    let lock = stores[0].lock();
    let held = request("held", LONG);
    take(&*lock, &held).await;
    let idle = "INSERT INTO distributed_lock (lock_name, token, expires_at, acquired_at, holder)
                SELECT 'idle:' || n, 1, now() - interval '1 hour', now(), '' FROM \
                    generate_series(1, 2500) n";
    // The trigger notes the number of rows that each statement removes.
    server
        .sql(
            "CREATE TABLE removed (rows bigint);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO removed SELECT count(*) FROM gone; RETURN NULL; END $$;
             CREATE TRIGGER note AFTER DELETE ON distributed_lock REFERENCING OLD TABLE AS gone
                 FOR EACH STATEMENT EXECUTE FUNCTION note()",
        )
        .unwrap();
    server.sql(idle).unwrap();
    // The last claim of the reaper has a time in the future: the clock was wrong then.
    server
        .sql("UPDATE distributed_meta SET reaped_at = now() + interval '1 day'")
        .unwrap();
    let key = distlock_core::RecordKey::new("k").unwrap();
    let records = stores[0].records();
    let Written::Stored(version) = records.put(&key, b"v", Expect::Absent).await.unwrap() else {
        panic!("it was absent")
    };
    records.delete(&key, version).await.unwrap();
    let health = lock.health().await.unwrap();
    let rows = health
        .findings
        .iter()
        .find(|it| it.check == "rows")
        .unwrap();
    assert!(rows.detail.contains("1 held, "), "{}", rows.detail);
    eventually_async("only the held one is left", SOON, || async {
        let (one, other) = tokio::join!(Box::pin(stores[0].reap()), Box::pin(stores[1].reap()));
        one.unwrap();
        other.unwrap();
        let left = "SELECT (SELECT count(*) FROM distributed_lock) + (SELECT count(*) FROM \
            distributed_record)";
        (server.sql(left).unwrap() == "1").then_some(())
    })
    .await
    .unwrap();
    let removed = server.sql("SELECT max(rows) <= 1000, sum(rows) FROM removed");
    assert_eq!(removed.unwrap(), "t\t2500");
    // A version is not used twice, even after its tombstone was removed.
    let Written::Stored(next) = records.put(&key, b"w", Expect::Absent).await.unwrap() else {
        panic!("it was absent")
    };
    assert!(next > version);
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_rows_are_shown_to_the_doctor() {
    let server = PostgresServer::start().unwrap();
    let locker = locker(&format!("{}?reap_after=1h", server.url())).await;
    // A fresh claim keeps the background reapers from running.
    server
        .sql("UPDATE distributed_meta SET reaped_at = now()")
        .unwrap();
    stale_rows_are_counted(&locker, |name, seconds| {
        let insert = format!(
            "INSERT INTO distributed_lock (lock_name, holder_id, token, expires_at, acquired_at, \
                holder)
             VALUES ('{name}', gen_random_uuid(), 1, now() - interval '{seconds} s', now(), 'gone')
             ON CONFLICT DO NOTHING"
        );
        server.sql(&insert).unwrap();
    })
    .await;
}
