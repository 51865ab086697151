//! Wrong members: each error names the member, never its password, and says what to do.

use std::time::Duration;

use distlock_backend_kit::Target;
use distlock_core::{Error, ErrorKind, Remedy, Verdict};
use distlock_harness::{
    eventually,
    servers::{
        mysql::{MySqlServer, Product},
        postgres::PostgresServer,
        redis::RedisServer,
    },
};
use distlock_quorum::init;

use crate::common::{drivers, open, redis_servers, url_of, url_of_servers};

const SOON: Duration = Duration::from_secs(20);

async fn refused(url: &str) -> Error {
    let error = drivers().open(Target::new(url)).await.unwrap_err();
    let said = error.to_string();
    assert!(!said.contains("hunter2"), "{said}");
    error
}

#[tokio::test]
async fn wrong_lists_of_members_are_refused() {
    let member = |name: &str, url: &str| format!("member={name}={url}");
    let three = |third: &str| {
        let (a, b) = (member("a", "memory:a"), member("b", "memory:b"));
        format!("quorum:?{a}&{b}&{third}")
    };
    for (url, says) in [
        ("quorum:".to_owned(), "0 are given"),
        (
            format!(
                "quorum:?{}&{}",
                member("a", "memory:a"),
                member("b", "memory:b")
            ),
            "2 are given",
        ),
        (
            format!(
                "{}&{}",
                three(&member("c", "memory:c")),
                member("d", "memory:d")
            ),
            "4 are given",
        ),
        (
            three(&member("c", "memory:a")),
            "members \"a\" and \"c\" are one server",
        ),
        (
            three(&member("a", "memory:c")),
            "the name \"a\" is given twice",
        ),
        (three("member=memory:c"), "a member is NAME=URL"),
        (
            three(&member("c c", "memory:c")),
            "the name of a member has",
        ),
        (
            three(&member("c", "zookeeper://u:hunter2@h")),
            "member \"c\": an ensemble of ZooKeeper",
        ),
        (
            three(&member("c", "redis%2Bcluster://u:hunter2@h")),
            "member \"c\": a marker is on one",
        ),
        (
            three(&member("c", "kv%2Bmemory:c")),
            "member \"c\": a lock over records",
        ),
        (
            three(&member("c", "quorum:")),
            "member \"c\": a quorum can be no member",
        ),
        (three(&member("c", "etcd://h")), "member \"c\""),
        (
            format!("{}&max_lease=999ms", three(&member("c", "memory:c"))),
            "max_lease",
        ),
        (
            format!("{}&max_lease=25h", three(&member("c", "memory:c"))),
            "max_lease",
        ),
        (
            format!("{}&max_leas=25h", three(&member("c", "memory:c"))),
            "did you mean `max_lease`?",
        ),
        (
            "quorum:x?member=a=memory:a".to_owned(),
            "stand after the `?`",
        ),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_under_two_names_is_refused() {
    let servers = redis_servers(2);
    // The same server by another spelling of its address.
    let again = servers[0].url().replace("127.0.0.1", "localhost");
    let urls = [servers[0].url(), servers[1].url(), again];
    let url = url_of(urls.iter().map(String::as_str), "60s");
    // For the operator, and for a first client.
    let made = init(url.as_str(), &drivers(), false).await.unwrap_err();
    for error in [made, refused(&url).await] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let said = error.to_string();
        assert!(said.contains("two members are one server"), "{said}");
        assert!(
            said.contains("member \"a\"") || said.contains("member \"c\""),
            "{said}"
        );
        assert!(!said.contains(servers[0].password()), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_another_list_are_refused() {
    let servers = redis_servers(3);
    let url = url_of_servers(&servers, "60s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    let renamed = url.replace("member=a=", "member=x=");
    for other in [url_of_servers(&servers, "59s"), renamed] {
        let error = refused(&other).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let said = error.to_string();
        assert!(
            said.contains("member \"") && said.contains("other members or another max_lease"),
            "{said}"
        );
        assert!(said.contains("`distlock quorum show`"), "{said}");
        assert!(!said.contains(servers[0].password()), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_another_quorum_is_refused() {
    let servers = redis_servers(6);
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    for three in urls.chunks(3) {
        let url = url_of(three.iter().map(String::as_str), "60s");
        init(url.as_str(), &drivers(), false).await.unwrap();
    }
    let mixed = url_of([0, 1, 5].map(|at| urls[at].as_str()), "60s");
    let made = init(mixed.as_str(), &drivers(), false).await.unwrap_err();
    for error in [made, refused(&mixed).await] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let said = error.to_string();
        assert!(said.contains("member \"c\""), "{said}");
        assert!(said.contains("it belongs to another quorum"), "{said}");
        assert!(!said.contains(servers[5].password()), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mariadb_that_does_not_flush_is_refused() {
    let servers = redis_servers(2);
    let settings = ["log-bin=log", "server-id=1", "sync-binlog=1"];
    let server = MySqlServer::with(Product::MariaDb, &settings).unwrap();
    let urls = [servers[0].url(), servers[1].url(), server.url()];
    let url = url_of(urls.iter().map(String::as_str), "60s");
    for setting in ["innodb_flush_log_at_trx_commit", "sync_binlog"] {
        server.sql(&format!("SET GLOBAL {setting} = 0")).unwrap();
        let made = init(url.as_str(), &drivers(), false).await.unwrap_err();
        for error in [made, refused(&url).await] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            let said = error.to_string();
            assert!(said.contains("member \"c\""), "{said}");
            assert!(said.contains(&format!("{setting} is 0: ")), "{said}");
            assert!(said.contains("set it to 1"), "{said}");
            assert!(!said.contains(server.password()), "{said}");
        }
        server.sql(&format!("SET GLOBAL {setting} = 1")).unwrap();
    }
    init(url.as_str(), &drivers(), false).await.unwrap();
    open(&url).await.unwrap().close().await;
    // Also in a quorum that works without this member.
    server.sql("SET GLOBAL sync_binlog = 100").unwrap();
    let error = refused(&url).await;
    assert!(
        error.to_string().contains("sync_binlog is 100: "),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_locks_is_refused() {
    let mut servers = redis_servers(2);
    let evicting = ["maxmemory 100mb", "maxmemory-policy allkeys-lru"];
    servers.push(RedisServer::with(&evicting).unwrap());
    let url = url_of_servers(&servers, "60s");
    let error = init(url.as_str(), &drivers(), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let said = error.to_string();
    assert!(
        said.contains("member \"c\"") && said.contains("eviction"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_does_not_flush_is_refused() {
    let servers = redis_servers(2);
    let refuse = async |database: &str, says: &str| {
        let urls = [&servers[0].url(), database, &servers[1].url()];
        let url = url_of(urls, "60s");
        let made = init(url.as_str(), &drivers(), false).await.unwrap_err();
        for error in [made, refused(&url).await] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            let said = error.to_string();
            assert!(said.contains("member \"b\""), "{said}");
            assert!(said.contains(says), "{said}");
        }
        url
    };
    // The harness starts its servers without syncs.
    let server = PostgresServer::start().unwrap();
    refuse(&server.url(), "fsync is off: a power cut").await;
    let server = PostgresServer::with(&["fsync=on"]).unwrap();
    let set = |value: &str| {
        server
            .sql(&format!("ALTER SYSTEM SET full_page_writes = {value}"))
            .unwrap();
        server.sql("SELECT pg_reload_conf()").unwrap();
        eventually("the setting is read", SOON, || {
            server.sql("SHOW full_page_writes").unwrap() == value
        })
        .unwrap();
    };
    set("off");
    let url = refuse(&server.url(), "full_page_writes is off: a power cut").await;
    set("on");
    init(url.as_str(), &drivers(), false).await.unwrap();
    open(&url).await.unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_tables_is_refused_until_it_is_migrated() {
    let servers = redis_servers(2);
    let server = PostgresServer::with(&["fsync=on"]).unwrap();
    let database = format!("{}?migrate=false", server.url());
    let urls = [servers[0].url(), servers[1].url(), database];
    let url = url_of(urls.iter().map(String::as_str), "60s");
    let made = init(url.as_str(), &drivers(), false).await.unwrap_err();
    for error in [made, refused(&url).await] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let said = error.to_string();
        assert!(said.contains("member \"c\""), "{said}");
        assert!(said.contains("run `distlock migrate --backend "), "{said}");
        assert!(
            matches!(error.remedy(), Some(Remedy::Migrate { .. })),
            "{said}"
        );
    }
    drivers().migrate(Target::new(url.as_str())).await.unwrap();
    init(url.as_str(), &drivers(), false).await.unwrap();
    open(&url).await.unwrap().close().await;
}

/// One wrong clock does not vote. When it would be needed, the error names both clocks.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_are_apart_are_refused() {
    let mut servers = redis_servers(2);
    let server = MySqlServer::with_clock(Product::MariaDb).unwrap();
    let urls = [servers[0].url(), servers[1].url(), server.url()];
    let url = url_of(urls.iter().map(String::as_str), "60s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    let store = open(&url).await.unwrap();
    server.put_clock_forward(Duration::from_secs(3600)).unwrap();
    let locker = store.locker();
    let guard = locker.lock("a").acquire().await;
    assert!(guard.unwrap().release().await.is_clean());
    let health = store.backend().health().await.unwrap();
    let clocks = health
        .findings
        .iter()
        .find(|it| it.check == "clocks")
        .unwrap();
    assert_eq!(clocks.verdict, Verdict::Fail, "{clocks:?}");
    assert!(
        clocks.detail.starts_with("the clock of c is 3"),
        "{clocks:?}"
    );
    servers[0].kill();
    let error = locker.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = error.to_string();
    for says in [
        "the clock of member \"c\" is 3",
        "that of member \"b\"",
        "set the clock that is wrong",
    ] {
        assert!(said.contains(says), "{said}");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_quorum_without_an_operator_waits() {
    let servers = redis_servers(3);
    let store = drivers()
        .open(Target::new(url_of_servers(&servers, "60s")))
        .await
        .unwrap();
    let error = store.locker().lock("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = error.to_string();
    assert!(
        said.contains("the next may in 7") && said.contains("quorum init"),
        "{said}"
    );
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_of_blank_members_is_refused() {
    let mut servers = redis_servers(3);
    let url = url_of_servers(&servers, "60s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    servers[0].restart_empty().unwrap();
    servers[1].restart_empty().unwrap();
    servers[2].kill();
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.to_string().contains("0 of 3 members have a marker"),
        "{error}"
    );
    assert!(
        error.to_string().contains("none is at \"a\", \"b\""),
        "{error}"
    );
}
