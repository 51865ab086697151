//! Many tasks at once: nothing is lost, and no deadlock of the server's is anybody's business.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    AcquireRequest, Attempt, FencingToken, Grant, HolderLabel, Lease, LockName, LossReason,
    OwnerId, ReleaseOutcome, Renewal, Renewed, Ttl,
};
use distlock_harness::servers::mysql::{MySqlServer, Product};
use futures_util::future::join_all;

use crate::{
    locker, mysql, on_both,
    servers::{LONG, SOON},
    start,
};

on_both! {
    a_storm => storm;
    batches_of_unequals => unequals;
    batches_of_unequals_as_text => unequals_as_text;
    grants_that_cannot_be_looked_at => unseen;
    idle_rows => reaped;
}

/// Two clients, so that their batches meet in the server.
async fn storm(product: Product) {
    const TASKS: usize = 256;
    let server = start(product);
    let lockers = [locker(&server.url()).await, locker(&server.url()).await];
    for (names, rounds) in [(TASKS, 6), (8, 2)] {
        let counters: Arc<Vec<AtomicU64>> =
            Arc::new((0..names).map(|_| AtomicU64::new(0)).collect());
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let locker = lockers[task % 2].clone();
                let counters = Arc::clone(&counters);
                tokio::spawn(async move {
                    for round in 0..rounds {
                        let number = (task + round * 7) % names;
                        let lock = locker.lock(format!("storm-{number}"));
                        let guard = lock.ttl(LONG).wait(LONG).acquire().await.unwrap();
                        // Exact only if nobody else is here.
                        let before = counters[number].load(Ordering::Relaxed);
                        tokio::task::yield_now().await;
                        counters[number].store(before + 1, Ordering::Relaxed);
                        assert!(guard.release().await.is_clean());
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let sum: u64 = counters.iter().map(|it| it.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, (TASKS * rounds) as u64, "{names} names");
    }
}

async fn unequals(product: Product) {
    mixed(start(product)).await;
}

/// By a server that remembers no statements.
async fn unequals_as_text(product: Product) {
    mixed(MySqlServer::with(product, &["max-prepared-stmt-count=0"]).unwrap()).await;
}

/// One batch, of which some is granted, kept and freed, and some is not.
async fn mixed(server: MySqlServer) {
    let mysql = mysql(&server.url()).await.unwrap();
    let lock = mysql.lock();
    let (lock, ttl) = (&*lock, Ttl::new(LONG).unwrap());
    let names: Vec<_> = (10..50)
        .map(|number| LockName::new(format!("n-{number}")).unwrap())
        .collect();
    let request = |name: &LockName| {
        let holder = HolderLabel::new("tester").unwrap();
        AcquireRequest::new(name.clone(), OwnerId::new(), ttl, holder)
    };
    let acquired = async |requests: &[AcquireRequest]| {
        let asked = requests.iter().map(|it| lock.try_acquire(it));
        let answers = join_all(asked).await.into_iter();
        let token = |answer: Attempt<Grant>| match answer {
            Attempt::Acquired(grant) => Ok(grant.token),
            Attempt::Busy(holder) => Err(holder.unwrap().holder),
        };
        let tokens = answers.map(|answer| token(answer.unwrap()));
        tokens.collect::<Vec<_>>()
    };
    let lease = |(request, token): (&AcquireRequest, &Result<FencingToken, _>)| {
        let token = Some(*token.as_ref().ok()?);
        Some(Lease::new(request.name.clone(), request.owner, token))
    };
    let requests: Vec<_> = names.iter().map(request).collect();
    let first = acquired(&requests).await;
    let leases: Vec<_> = requests.iter().zip(&first).filter_map(lease).collect();
    assert_eq!(leases.len(), 40, "{first:?}");
    let renewal = Renewal::plain(ttl);
    // The last ones go alone, so that those whose tokens differ share a batch.
    let renewed = join_all(leases.iter().rev().map(|it| lock.renew(it, &renewal))).await;
    for (renewed, lease) in renewed.into_iter().zip(leases.iter().rev()) {
        match renewed.unwrap() {
            Renewed::Extended { token, .. } => assert_eq!(Some(token), lease.token),
            other => panic!("{other:?}"),
        }
    }

    // Ten were freed by hand, and ten given to somebody else.
    server
        .sql(
            "UPDATE distributed_lock SET holder_id = NULL, expires_at = 1 WHERE lock_name < 'n-20'; \
             UPDATE distributed_lock SET holder_id = REPEAT('x', 16), token = token + 5, holder = 'thief' \
             WHERE lock_name >= 'n-40'",
        )
        .unwrap();
    let others: Vec<_> = names.iter().map(request).collect();
    let second = acquired(&others).await;
    for (at, (before, now)) in first.iter().zip(&second).enumerate() {
        match (at, now) {
            (..10, Ok(token)) => assert!(token > before.as_ref().unwrap()),
            (10..30, Err(holder)) => assert_eq!(holder, "tester"),
            (30.., Err(holder)) => assert_eq!(holder, "thief"),
            other => panic!("{other:?}"),
        }
    }
    let renewed = join_all(leases.iter().map(|it| lock.renew(it, &renewal))).await;
    for (at, (renewed, lease)) in renewed.into_iter().zip(&leases).enumerate() {
        match (at, renewed.unwrap()) {
            (10..30, Renewed::Extended { token, .. }) => assert_eq!(Some(token), lease.token),
            (..10 | 30.., Renewed::NotHeld(LossReason::TakenOver)) => {}
            other => panic!("{other:?}"),
        }
    }
    let released = join_all(leases.iter().map(|it| lock.release(it))).await;
    for (at, released) in released.into_iter().enumerate() {
        let ours = matches!(released.unwrap(), ReleaseOutcome::Released { .. });
        assert_eq!(ours, (10..30).contains(&at), "{at}");
    }
    // Another process waits for one of them.
    server
        .sql(
            "UPDATE distributed_lock SET wanted_by = 1, wanted_until = expires_at WHERE lock_name = 'n-15'",
        )
        .unwrap();
    let leases: Vec<_> = others.iter().zip(&second).filter_map(lease).collect();
    let released = join_all(leases.iter().map(|it| lock.release(it))).await;
    for (lease, released) in leases.iter().zip(released) {
        let ReleaseOutcome::Released { others_waiting } = released.unwrap() else {
            panic!("{lease:?} was held");
        };
        let wanted = lease.name.as_str() == "n-15";
        assert!(!wanted || others_waiting != Some(false), "{lease:?}");
    }
    // One has expired, and then one has another token, although nobody else was there.
    let requests: Vec<_> = names.iter().map(request).collect();
    server.sql("DELETE FROM distributed_lock").unwrap();
    let third = acquired(&requests).await;
    let leases: Vec<_> = requests.iter().zip(&third).filter_map(lease).collect();
    assert_eq!(leases.len(), 40, "{third:?}");
    let change = |set: &str, name: &str| {
        server.sql(&format!(
            "UPDATE distributed_lock SET {set} WHERE lock_name = '{name}'"
        ))
    };
    change("expires_at = acquired_at", "n-20").unwrap();
    let renewed = join_all(leases.iter().map(|it| lock.renew(it, &renewal))).await;
    for (renewed, lease) in renewed.into_iter().zip(&leases) {
        match (lease.name.as_str(), renewed.unwrap()) {
            ("n-20", Renewed::NotHeld(LossReason::Expired)) => {}
            (name, Renewed::Extended { .. }) if name != "n-20" => {}
            other => panic!("{other:?}"),
        }
    }
    change("token = token + 1", "n-30").unwrap();
    let released = join_all(leases.iter().map(|it| lock.release(it))).await;
    for (released, lease) in released.into_iter().zip(&leases) {
        let ours = matches!(released.unwrap(), ReleaseOutcome::Released { .. });
        assert_eq!(ours, lease.name.as_str() != "n-30", "{lease:?}");
    }
}

/// What was granted, and cannot be looked at, may have been granted.
async fn unseen(product: Product) {
    let server = start(product);
    let root = server.url();
    mysql(&root).await.unwrap();
    let grants = |on: &str| {
        format!(
            "GRANT {on} INSERT, UPDATE, DELETE ON distlock.distributed_lock TO poor@'127.0.0.1'"
        )
    };
    server
        .sql(&format!(
            "CREATE USER poor@'127.0.0.1'; {}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.distributed_record TO poor@'127.0.0.1'; \
             GRANT SELECT, UPDATE ON distlock.distributed_meta TO poor@'127.0.0.1'",
            grants("SELECT,")
        ))
        .unwrap();
    let mysql = mysql(&root.replace("root@", "poor@")).await.unwrap();
    let lock = mysql.lock();
    let ttl = Ttl::new(LONG).unwrap();
    let requests = || {
        (0..40).map(|number| {
            let name = LockName::new(format!("n-{number}")).unwrap();
            AcquireRequest::new(
                name,
                OwnerId::new(),
                ttl,
                HolderLabel::new("tester").unwrap(),
            )
        })
    };
    for request in join_all(requests().map(async |it| lock.try_acquire(&it).await)).await {
        assert!(matches!(request.unwrap(), Attempt::Acquired(_)));
    }
    // Tokens that are ahead of the clock: their successors must be looked at.
    server
        .sql(&format!(
            "UPDATE distributed_lock SET holder_id = NULL, expires_at = 1, token = token + 1000000000; \
             REVOKE SELECT ON distlock.distributed_lock FROM poor@'127.0.0.1'; {}",
            grants(
                "SELECT (holder_id, token, acquired_at, expires_at, holder, meta, nonce, wanted_by, wanted_until),"
            )
        ))
        .unwrap();
    let answers = join_all(requests().map(async |it| lock.try_acquire(&it).await)).await;
    let held =
        server.sql("SELECT COUNT(*) FROM distributed_lock WHERE HEX(holder_id) <> REPEAT('0', 32)");
    assert_eq!(held.unwrap(), "40");
    let refused = answers.into_iter().filter_map(Result::err);
    let refused: Vec<_> = refused.collect();
    assert!(refused.len() > 20, "{}", refused.len());
    for error in refused {
        assert!(!error.did_not_happen(), "{error:?}");
    }
}

async fn reaped(product: Product) {
    let server = start(product);
    let url = format!("{}&reap_after=1s", server.url());
    let mysql = mysql(&url).await.unwrap();
    let locker = distlock_core::Locker::new(mysql.lock());
    let kept = locker.lock("kept").ttl(LONG).acquire().await.unwrap();
    let freed = locker.lock("freed").ttl(LONG).acquire().await.unwrap();
    let token = freed.token();
    assert!(freed.release().await.is_clean());
    // A thousand that somebody left behind, one of them locked by an operator.
    server
        .sql(
            "INSERT INTO distributed_lock (lock_name, holder_id, token, acquired_at, expires_at, holder) \
             SELECT CONCAT('stale-', seq), REPEAT('x', 16), 1, 1, 1, 'gone' FROM \
             (WITH RECURSIVE s (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM s WHERE seq < 1000) \
             SELECT seq FROM s) AS numbers",
        )
        .unwrap();
    // Unless a reaper was there first.
    let stale = "SELECT token FROM distributed_lock WHERE lock_name = 'stale-7'";
    let operator = loop {
        server
            .sql(
                "INSERT IGNORE INTO distributed_lock (lock_name, holder_id, token, acquired_at, expires_at, holder) \
                 VALUES ('stale-7', REPEAT('x', 16), 1, 1, 1, 'gone')",
            )
            .unwrap();
        let operator = server
            .hold_open(&format!("START TRANSACTION; {stale} FOR UPDATE"))
            .unwrap();
        if server.sql(stale).unwrap() == "1" {
            break operator;
        }
    };
    let names = || server.sql("SELECT lock_name FROM distributed_lock ORDER BY lock_name");
    distlock_harness::eventually_async("all but two are gone", SOON, || async {
        // Turns are taken by whoever comes first; both are harmless.
        let _ = mysql.reap().await;
        (names().ok()? == "kept\nstale-7").then_some(())
    })
    .await
    .unwrap();
    drop(operator);
    distlock_harness::eventually_async("the last one too", SOON, || async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let _ = mysql.reap().await;
        (names().ok()? == "kept").then_some(())
    })
    .await
    .unwrap();
    let again = locker.lock("freed").ttl(LONG).acquire().await.unwrap();
    assert!(again.token() > token, "also after reaping");
    assert!(kept.is_valid());
    let health = locker.health().await.unwrap();
    let rows = health.findings.iter().find(|it| it.check == "rows");
    assert!(rows.unwrap().detail.contains("2 held"), "{rows:?}");
}
