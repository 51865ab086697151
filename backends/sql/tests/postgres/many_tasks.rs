//! Many callers at once.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    task::Poll,
    time::Instant,
};

use distlock_core::{ErrorKind, Renewal, Renewed, Ttl, sync::Mutex};
use distlock_harness::FaultProxy;
use futures_util::{future::join_all, poll};

use super::{
    batches::{ByHand, each_operation_of_a_mixed_batch_has_its_own_answer},
    servers::{a_grant_takes_one_round_trip, few_connections},
    *,
};

/// Defaults of the server's sessions that would break the promises of the locks.
const HOSTILE: [&str; 5] = [
    "default_transaction_isolation=serializable",
    "timezone=Pacific/Chatham",
    "datestyle=German",
    "intervalstyle=sql_standard",
    "extra_float_digits=-5",
];

/// The observations of the critical sections of one lock name.
#[derive(Default)]
struct Seen {
    inside: AtomicU64,
    /// A task reads this count and then writes it. Two overlapping sections would lose a change.
    count: AtomicU64,
    last_token: AtomicU64,
}

/// `tasks` tasks of two processes, each taking and freeing one of `names` names `rounds` times.
async fn storm(url: &str, tasks: usize, names: usize, rounds: usize) {
    let stores = [open(url).await, open(url).await];
    let lockers = [Locker::new(stores[0].lock()), Locker::new(stores[1].lock())];
    let seen: Arc<Vec<Seen>> = Arc::new((0..names).map(|_| Seen::default()).collect());
    let problems = Arc::new(Mutex::new(HashMap::<String, u32>::new()));
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let locker = lockers[task % 2].clone();
        let (seen, problems) = (Arc::clone(&seen), Arc::clone(&problems));
        running.spawn(async move {
            for _ in 0..rounds {
                let name = task % names;
                let asking = locker
                    .lock(format!("storm:{name}"))
                    .ttl(LONG)
                    .wait(LONG)
                    .acquire();
                let guard = match asking.await {
                    Ok(guard) => guard,
                    Err(error) => {
                        *problems.lock().entry(error.to_string()).or_default() += 1;
                        continue;
                    }
                };
                let seen = &seen[name];
                assert_eq!(seen.inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                let token = guard.token().get();
                assert!(seen.last_token.swap(token, Ordering::SeqCst) < token);
                let count = seen.count.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                seen.count.store(count + 1, Ordering::SeqCst);
                seen.inside.fetch_sub(1, Ordering::SeqCst);
                if !guard.release().await.is_clean() {
                    *problems.lock().entry("unclean".into()).or_default() += 1;
                }
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    let retried: u64 = stores.iter().map(Postgres::retries).sum();
    let problems = problems.lock();
    assert!(problems.is_empty(), "{problems:?}, {retried} sent again");
    let total: u64 = seen.iter().map(|it| it.count.load(Ordering::SeqCst)).sum();
    assert_eq!(total, u64::try_from(tasks * rounds).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_on_many_names_exclude_each_other() {
    let server = PostgresServer::start().unwrap();
    storm(&server.url(), 256, 256, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_on_few_names_in_sessions_with_bad_defaults_exclude_each_other() {
    let server = PostgresServer::with(&HOSTILE).unwrap();
    storm(&server.url(), 256, 8, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn few_connections_serve_many_tasks() {
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    // The reaper runs at a random moment. It must not open a connection of its own.
    postgres.reap().await.unwrap();
    // The handle that renews has as many connections. A handle with waiters has two more: for hints
    // and for notifications.
    few_connections(postgres.lock(), 4, 10, || {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'";
        server.sql(sessions).unwrap().parse().unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_operation_of_a_batch_has_its_own_answer() {
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    let by_hand = ByHand {
        sql: &|statement| drop(server.sql(statement).unwrap()),
        free: "holder_id = NULL, expires_at = 'epoch'",
        given_away: "holder_id = gen_random_uuid(), token = token + 5, holder = 'thief'",
        wanted: "hint_id = 1, hint_until = expires_at",
    };
    each_operation_of_a_mixed_batch_has_its_own_answer(&*postgres.lock(), &by_hand).await;
}

/// A caller whose row another transaction has locked gets an error. The other operations of its
/// batch do not wait for that row.
///
/// A first request stays in flight until all other requests are queued. Otherwise the number of
/// operations in the batch would be random.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_is_left_out_of_a_batch() {
    let server = PostgresServer::start().unwrap();
    // One batch at a time.
    let postgres = open(&format!("{}?pool_size=2", server.url())).await;
    let lock = postgres.lock();
    let asked: Vec<_> = (10..70)
        .map(|it| request(&format!("n-{it}"), LONG))
        .collect();
    let grants = join_all(asked.iter().map(|it| take(&*lock, it))).await;
    let leases = asked
        .iter()
        .zip(&grants)
        .map(|(asked, grant)| lease(asked, grant));
    let leases: Vec<_> = leases.collect();
    let _operator = server
        .hold_open("SELECT 1 FROM distributed_lock WHERE lock_name IN ('n-10', 'n-40') FOR UPDATE")
        .unwrap();
    let renewal = Renewal::plain(Ttl::new(LONG).unwrap());
    let deadline = Instant::now() + SOON;
    let spent = loop {
        assert!(Instant::now() < deadline, "they never were queued together");
        let before = postgres.statements();
        let mut renewed: Vec<_> = leases.iter().map(|it| lock.renew(it, &renewal)).collect();
        // The first request waits for its row, and the other requests are queued behind it.
        for renewed in &mut renewed {
            assert!(poll!(renewed).is_pending());
        }
        let first = poll!(&mut renewed[0]);
        let queued = first.is_pending();
        let rest = renewed.split_off(1);
        let mut answers = join_all(rest).await;
        answers.push(match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => renewed.remove(0).await,
        });
        for (renewed, lease) in answers
            .into_iter()
            .zip(leases[1..].iter().chain(&leases[..1]))
        {
            match (lease.name.as_str(), renewed) {
                ("n-10" | "n-40", Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                }
                (name, Ok(Renewed::Extended { token, .. }))
                    if !["n-10", "n-40"].contains(&name) =>
                {
                    assert_eq!(Some(token), lease.token);
                }
                other => panic!("{other:?}"),
            }
        }
        if queued {
            break postgres.statements() - before;
        }
    };
    // If the batch failed as a whole, each operation would be sent alone, in more statements.
    assert!(spent < 40, "{spent}: no batch");
}

/// A transaction that the server rolls back for another transaction is sent again, alone and in a
/// batch. The repetition is counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_transaction_is_sent_again() {
    const MANY: u32 = 60;
    let server = PostgresServer::start().unwrap();
    let postgres = open(&server.url()).await;
    let lock = postgres.lock();
    server
        .sql(
            "CREATE SEQUENCE turns;
             CREATE FUNCTION take_back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 CASE nextval('turns')
                     WHEN 1 THEN RAISE 'a deadlock' USING ERRCODE = '40P01';
                     WHEN 2 THEN RAISE 'not serializable' USING ERRCODE = '40001';
                     ELSE RETURN NULL;
                 END CASE;
             END $$;
             CREATE TRIGGER take_back AFTER INSERT ON distributed_lock FOR EACH STATEMENT EXECUTE \
                 FUNCTION take_back()",
        )
        .unwrap();
    let before = postgres.retries();
    take(&*lock, &request("alone", LONG)).await;
    assert_eq!(postgres.retries(), before + 2);
    server.sql("ALTER SEQUENCE turns RESTART").unwrap();
    let statements = postgres.statements();
    let asked: Vec<_> = (0..MANY).map(|it| request(&it.to_string(), LONG)).collect();
    join_all(asked.iter().map(|it| take(&*lock, it))).await;
    assert_eq!(postgres.retries(), before + 4);
    let spent = postgres.statements() - statements;
    assert!(spent < MANY.into(), "{spent}: no batch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_one_round_trip() {
    let server = PostgresServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let url = format!("{}?pool_size=1", server.url_at(proxy.address()));
    let postgres = open(&url).await;
    a_grant_takes_one_round_trip(&*postgres.lock(), &proxy).await;
}
