//! Wrong URLs and wrong steps of an operator.

use std::{sync::Arc, time::Duration};

use distlock_conformance::RecordsLayer;
use distlock_core::{Error, ErrorKind, Records, Store};
use distlock_harness::servers::redis::RedisServer;
use distlock_ring::{Terms, add, init, remove};

use crate::common::{LayeredDriver, SHORT, drivers, lock_server, open, url_of};

async fn refused(url: &str) -> Error {
    let error = open(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_urls_are_refused_by_name() {
    for (url, problem) in [
        ("ring:", "needs the URL of its ring store"),
        ("ring:?records=memory:bad", "at least one member"),
        ("ring://host?records=memory:bad", "stand after the `?`"),
        (
            "ring:?records=quorum:&member=a=memory:a",
            "no common records",
        ),
        ("ring:?records=ring:&member=a=memory:a", "no common records"),
        (
            "ring:?records=zookeeper://h&member=a=memory:a",
            "do not tell their age",
        ),
        (
            "ring:?records=redis%2Bsentinel://h/p&member=a=memory:a",
            "unsafe_records=true",
        ),
        (
            "ring:?records=distlock://h&member=a=memory:a",
            "does not tell whether its store may forget",
        ),
        (
            "ring:?records=memory:bad&member=a=zookeeper://h",
            "of another kind",
        ),
        (
            "ring:?records=memory:bad&member=a=ring:",
            "no member of a ring",
        ),
        (
            "ring:?records=memory:bad&member=a=kv%2Bmemory:",
            "leave out `kv+`",
        ),
        (
            "ring:?records=memory:bad&member=memory:a",
            "a member is NAME=URL",
        ),
        (
            "ring:?records=memory:bad&member=a=memory:a&member=a=memory:b",
            "given twice",
        ),
        (
            "ring:?records=memory:bad&member=a=memory:a&member=b=memory:a",
            "are one server",
        ),
        (
            "ring:?records=memory:bad&member=a=memory:a&unsafe_records=1",
            "neither",
        ),
        (
            "ring:?records=memory:bad&member=a=memory:a&max_lease=1s",
            "max_lease",
        ),
        (
            "ring:?records=memory:bad&member=a=memory:a",
            "distlock ring init",
        ),
    ] {
        let error = refused(url).await;
        assert!(error.to_string().contains(problem), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_steps_of_an_operator_change_nothing() {
    let known = drivers();
    let url = url_of("memory:steps", ["memory:steps-a", "memory:steps-b"]);
    let validity = "the validity of a view is 200ms to 10s, and not ";
    let lease = "the longest lease of a ring is 1s to 60s, and not ";
    let wrong_terms = [
        (Duration::ZERO, SHORT.max_lease, validity, "0ns"),
        (Duration::from_secs(11), SHORT.max_lease, validity, "11s"),
        (SHORT.validity, Duration::from_millis(500), lease, "500ms"),
        (SHORT.validity, Duration::from_secs(61), lease, "61s"),
    ];
    for (validity, max_lease, limit, given) in wrong_terms {
        let terms = Terms {
            validity,
            max_lease,
        };
        let error = init(url.as_str(), &known, terms, true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let said = error.to_string();
        assert!(said.contains(&format!("{limit}{given}")), "{said}");
    }
    // Nothing was written so far.
    let made = init(url.as_str(), &known, SHORT, true).await.unwrap();
    assert!(made.pending.is_empty(), "{made:?}");
    assert!(made.members.iter().all(|member| member.active), "{made:?}");
    let again = init(url.as_str(), &known, SHORT, true).await.unwrap_err();
    assert!(again.to_string().contains("the ring exists"), "{again}");
    for (step, problem) in [
        (add(url.as_str(), &known, "a").await, "active already"),
        (add(url.as_str(), &known, "z").await, "no member \"z\""),
        (remove(url.as_str(), &known, "z").await, "not active"),
    ] {
        let error = step.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
    remove(url.as_str(), &known, "a").await.unwrap();
    let last = remove(url.as_str(), &known, "b").await.unwrap_err();
    assert!(last.to_string().contains("the last one"), "{last}");
    // A client without an active member does not start.
    let other = url_of("memory:steps", ["memory:steps-a"]);
    let error = refused(&other).await;
    assert!(error.to_string().contains("\"b\""), "{error}");
}

/// Two names of one server are found by the step that would make them members.
#[tokio::test(flavor = "multi_thread")]
async fn two_members_on_one_server_are_refused() {
    let url = url_of(
        "memory:twice",
        ["memory:one", "memory:one?connect_timeout=4s"],
    );
    let error = init(url.as_str(), &drivers(), SHORT, true)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(
        error.to_string().contains("server of another member"),
        "{error}"
    );
}

/// A ring store that may lose the view would let two clients use two views.
#[tokio::test(flavor = "multi_thread")]
async fn a_ring_store_that_may_forget_is_refused() {
    let forgets = RedisServer::with(&["appendonly no"]).unwrap();
    // The kernel decides when it writes to the disk.
    let unsynced = RedisServer::with(&["appendfsync no"]).unwrap();
    let url = url_of(&forgets.url(), ["memory:forgets"]);
    let of_unsynced = url_of(&unsynced.url(), ["memory:forgets"]);
    let file = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", file.path().join("ring.db").display());
    let of_one_host = url_of(&sqlite, ["memory:forgets"]);
    for (url, problem) in [
        (
            url.as_str(),
            "it may forget the view of the ring (persistence): ",
        ),
        (
            of_unsynced.as_str(),
            "it may forget the view of the ring (persistence): ",
        ),
        (of_one_host.as_str(), "it is a file of one host"),
    ] {
        let made = init(url, &drivers(), SHORT, true).await.unwrap_err();
        for error in [made, refused(url).await] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            let said = error.to_string();
            assert!(said.contains("the ring store"), "{said}");
            assert!(said.contains(problem), "{said}");
            assert!(!said.contains(forgets.password()), "{said}");
        }
    }
    let accepted = format!("{url}&unsafe_records=true");
    init(accepted.as_str(), &drivers(), SHORT, true)
        .await
        .unwrap();
    open(&accepted).await.unwrap().close().await;
    // Without the option, the ring does not open even if it exists.
    refused(&url).await;
}

/// A power cut may take the last two seconds of such a server. With a longest lease of no more, a
/// name that moved may have been granted in them.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_no_longer_than_what_a_crash_takes_is_refused() {
    let server = RedisServer::with(&["appendfsync everysec"]).unwrap();
    let sync = |when| {
        server
            .command(&["CONFIG", "SET", "appendfsync", when])
            .unwrap()
    };
    let url = url_of(&server.url(), ["memory:everysec-a", "memory:everysec-b"]);
    let known = drivers();
    let made = async |max_lease| {
        let terms = Terms { max_lease, ..SHORT };
        init(url.as_str(), &known, terms, true).await
    };
    let short = Duration::from_secs(2);
    let refused_to_make = made(short).await.unwrap_err();
    sync("always");
    made(short).await.unwrap();
    open(&url).await.unwrap().close().await;
    sync("everysec");
    let not_changed = remove(url.as_str(), &known, "b").await.unwrap_err();
    for error in [refused_to_make, not_changed, refused(&url).await] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let said = error.to_string();
        let says = "the longest lease of the ring is 2s, and must be longer than 2s";
        assert!(said.contains("the ring store"), "{said}");
        assert!(said.contains(says), "{said}");
    }
    let accepted = format!("{url}&unsafe_records=true");
    open(&accepted).await.unwrap().close().await;
    server.command(&["FLUSHALL"]).unwrap();
    made(Duration::from_millis(2_001)).await.unwrap();
    open(&url).await.unwrap().close().await;
}

/// Records that tell no ages. Only the opened store says so: a lock server in front of such a store
/// is one.
#[derive(Clone, Debug)]
struct Ageless(Arc<dyn Records>);

impl RecordsLayer for Ageless {
    fn below(&self) -> &Arc<dyn Records> {
        &self.0
    }

    fn tells_ages(&self) -> bool {
        false
    }
}

/// Without an age, nobody knows what is left of a quarantine.
#[tokio::test(flavor = "multi_thread")]
async fn an_opened_ring_store_that_tells_no_ages_is_refused() {
    let known = drivers().with(Arc::new(LayeredDriver {
        schemes: &["ageless"],
        layers: |store| {
            let records = Ageless(store.records()).into_records();
            Store::with_clock(store.backend(), records, store.clock())
        },
    }));
    // The same records, by a driver that tells ages: the ring exists.
    let good = url_of("memory:ageless", ["memory:of-ages"]);
    init(good.as_str(), &known, SHORT, true).await.unwrap();
    let url = url_of("ageless:ageless", ["memory:of-ages"]);
    for url in [url.clone(), format!("{url}&unsafe_records=true")] {
        let opened = known.open(&*url).await.unwrap_err();
        let changed = add(url.as_str(), &known, "a").await.unwrap_err();
        let made = init(url.as_str(), &known, SHORT, true).await.unwrap_err();
        for error in [opened, changed, made] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            let said = error.to_string();
            assert!(said.contains("the ring store"), "{said}");
            assert!(said.contains("does not tell the age"), "{said}");
        }
    }
}

/// A guard would otherwise end earlier than its holder asked for, on one member alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_a_member_does_not_grant_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let short = lock_server(folder.path(), "short", Duration::from_secs(5)).await;
    let url = url_of("memory:longest", ["memory:longest-a", &short]);
    let terms = |seconds| Terms {
        max_lease: Duration::from_secs(seconds),
        ..SHORT
    };
    let known = drivers();
    let refused = init(url.as_str(), &known, terms(6), true)
        .await
        .unwrap_err();
    let alone = url_of("memory:longest", ["memory:longest-a"]);
    init(alone.as_str(), &known, terms(6), true).await.unwrap();
    let not_added = add(url.as_str(), &known, "b").await.unwrap_err();
    for error in [refused, not_added] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let said = error.to_string();
        assert!(said.contains("member \"b\""), "{said}");
        let says = "the longest lease of the ring is 6s, and this member grants 5s at most";
        assert!(said.contains(says), "{said}");
    }
    let fitting = url_of("memory:fitting", ["memory:fitting-a", &short]);
    init(fitting.as_str(), &known, terms(5), true)
        .await
        .unwrap();
}
