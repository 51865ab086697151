//! Wrong members: each error names the member, never its password, and says what to do.

use distlock_backend_kit::Target;
use distlock_core::{Error, ErrorKind};
use distlock_quorum::init;

use crate::common::{drivers, redis_servers, url_of, url_of_servers};

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
    let error = init(url.as_str(), &drivers(), false).await.unwrap_err();
    assert!(
        error.to_string().contains("two members are one server"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_another_list_are_refused() {
    let servers = redis_servers(3);
    let url = url_of_servers(&servers, "60s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    let other = url_of_servers(&servers, "59s");
    let error = refused(&other).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let said = error.to_string();
    assert!(
        said.contains("member \"a\"") && said.contains("max_lease"),
        "{said}"
    );
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
}
