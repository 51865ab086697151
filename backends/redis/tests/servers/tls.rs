//! TLS to several servers: to the sentinels and the primary that they name, and to every shard of a
//! cluster.

use std::time::Duration;

use crate::common::{SOON, locker, redis, within};
use distlock_core::{ErrorKind, Expect, RecordKey, Written};
use distlock_harness::{
    Pki,
    servers::redis::{RedisCluster, RedisSentinels},
};

const TTL: Duration = Duration::from_secs(60);

/// Returns the URL with all options that the servers require, including certificates.
fn secured(url: &str, pki: &Pki) -> String {
    let file = |name| pki.path(name).display().to_string();
    let (ca, cert, key) = (file("ca.crt"), file("client.crt"), file("client.key"));
    with(
        url,
        &format!("tls=true&tls_ca={ca}&tls_cert={cert}&tls_key={key}"),
    )
}

/// Returns the URL with these options added.
fn with(url: &str, options: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}{options}")
}

/// Checks that locks, pushes and records work with the required options, and that nothing works
/// without them.
async fn assert_works(url: &str, pki: &Pki) {
    let secured_url = secured(url, pki);
    let (holder, waiter) = (locker(&secured_url).await, locker(&secured_url).await);
    // Each shard has at least one of these locks with high probability.
    for at in 0..6 {
        let name = format!("lock-{at}");
        let guard = holder.lock(&name).ttl(TTL).acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock(&name).wait(SOON).acquire());
        guard.extend(TTL).await.unwrap();
        assert!(guard.release().await.is_clean());
        let next = within(SOON, "the waiter wakes up", waiting)
            .await
            .unwrap()
            .unwrap();
        assert!(next.release().await.is_clean());
    }
    let records = redis(&secured_url).await.unwrap().records();
    let key = RecordKey::new("k").unwrap();
    let written = records.put(&key, b"v", Expect::Absent).await;
    assert!(matches!(written.unwrap(), Written::Stored(_)));

    let other = Pki::new().unwrap();
    for refused in [
        // The client does not use TLS, and the servers accept nothing else.
        url.to_owned(),
        // This machine trusts no authority that signed the servers' certificates.
        with(url, "tls=true"),
        secured(url, &other),
    ] {
        let error = redis(&refused).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_works_with_sentinels() {
    let pki = Pki::new().unwrap();
    let servers = RedisSentinels::with_tls(pki.folder()).unwrap();
    assert_works(&servers.url(), &pki).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_works_in_a_cluster() {
    let pki = Pki::new().unwrap();
    let servers = RedisCluster::with_tls(pki.folder(), 3).unwrap();
    assert_works(&servers.url(), &pki).await;
}
