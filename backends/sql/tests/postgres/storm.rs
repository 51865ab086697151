//! Many callers at once.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::*;

/// Sessions that start out with settings that would break us.
const HOSTILE: [&str; 5] = [
    "default_transaction_isolation=serializable",
    "timezone=Pacific/Chatham",
    "datestyle=German",
    "intervalstyle=sql_standard",
    "extra_float_digits=-5",
];

/// What one name's critical sections saw.
#[derive(Default)]
struct Seen {
    inside: AtomicU64,
    /// Changed in two steps, which overlapping sections would mix up.
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
                        *problems
                            .lock()
                            .unwrap()
                            .entry(error.to_string())
                            .or_default() += 1;
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
                    *problems
                        .lock()
                        .unwrap()
                        .entry("unclean".into())
                        .or_default() += 1;
                }
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    let retried: u64 = stores.iter().map(Postgres::retries).sum();
    let problems = problems.lock().unwrap();
    assert!(problems.is_empty(), "{problems:?}, {retried} sent again");
    let total: u64 = seen.iter().map(|it| it.count.load(Ordering::SeqCst)).sum();
    assert_eq!(total, u64::try_from(tasks * rounds).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_on_many_names() {
    let server = PostgresServer::start().unwrap();
    storm(&server.url(), 256, 256, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_on_few_names_in_hostile_sessions() {
    let server = PostgresServer::with(&HOSTILE).unwrap();
    storm(&server.url(), 256, 8, 3).await;
}
