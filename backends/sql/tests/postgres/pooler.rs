//! A pooler between client and server.

use distlock_core::{ErrorKind, Verdict};
use distlock_harness::{
    eventually_async,
    servers::pgbouncer::{PgBouncer, PoolMode},
};

use super::*;

/// In session mode, a client has one session until it disconnects. So a store works in the same way
/// as without a pooler.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_session_mode_is_accepted() {
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
    // The pooler now lends the sessions of the closed store to other clients, and their sessions to
    // the next store.
    ours.close().await;
    theirs.close().await;
    let again = locker(&pooler.url()).await;
    assert!(hold(&again, "a", LONG).await.release().await.is_clean());
}

/// In transaction mode, the session settings of each client would apply to other clients. The first
/// connection that notices such a pooler refuses it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_transaction_mode_is_refused() {
    let server = PostgresServer::start().unwrap();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction).unwrap();
    // Without other clients, one connection cannot notice the pooler. A second connection gets the
    // same session, unless that session is in use at that moment.
    let first = try_open(&pooler.url()).await;
    let error = match &first {
        Ok(postgres) => eventually_async("noticed", SOON, || async {
            Locker::new(postgres.lock()).ready().await.err()
        })
        .await
        .unwrap(),
        Err(error) => error.clone(),
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
    // Another process gets the session with the first process's settings.
    let error = eventually_async("noticed", SOON, || async {
        try_open(&pooler.url()).await.err()
    })
    .await
    .unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("session"), "{error}");
}
