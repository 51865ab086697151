//! A pooler between us and the server.

use distlock_core::{ErrorKind, Verdict};
use distlock_harness::servers::pgbouncer::{PgBouncer, PoolMode};

use super::*;

/// Until we disconnect, the session is ours: everything works as without.
#[tokio::test(flavor = "multi_thread")]
async fn in_session_mode_it_makes_no_difference() {
    let server = PostgresServer::start().unwrap();
    let pooler = PgBouncer::start(&server, PoolMode::Session).unwrap();
    let (ours, theirs) = (locker(&pooler.url()).await, locker(&pooler.url()).await);
    let first = hold(&ours, "a", LONG).await;
    let waiting = tokio::spawn(theirs.lock("a").ttl(LONG).wait(SOON).acquire());
    let second = async {
        assert!(first.release().await.is_clean());
        waiting.await.unwrap().unwrap()
    };
    let second = within(SOON, "passed on", second).await;
    assert!(second.release().await.is_clean());
    let health = ours.health().await.unwrap();
    let session = health.findings.iter().find(|it| it.check == "session");
    assert_eq!(session.unwrap().verdict, Verdict::Pass, "{health:?}");
    // What was ours is lent to others now, and they to us.
    ours.close().await;
    theirs.close().await;
    let again = locker(&pooler.url()).await;
    assert!(hold(&again, "a", LONG).await.release().await.is_clean());
}

/// What we set in a session would be others', and what others set, ours: refused, by whoever notices first.
#[tokio::test(flavor = "multi_thread")]
async fn in_transaction_mode_it_is_refused() {
    let server = PostgresServer::start().unwrap();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction).unwrap();
    let error = match try_open(&pooler.url()).await {
        // While nobody else asks for anything, one connection alone cannot tell.
        Ok(postgres) => Locker::new(postgres.lock()).ready().await.unwrap_err(),
        Err(error) => error,
    };
    let mut all = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        all = format!("{all}: {cause}");
        source = cause.source();
    }
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{all}");
    assert!(all.contains("a pooler in transaction mode"), "{all}");
    assert!(!all.contains("distlock migrate"), "{all}");
    // Another process finds the session as the first has left it.
    let error = try_open(&pooler.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("session"), "{error}");
}
