//! Wrong URLs and wrong steps of an operator.

use std::time::Duration;

use distlock_core::{Error, ErrorKind};
use distlock_ring::{Terms, add, init, remove};

use crate::common::{SHORT, drivers, open, url_of};

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
    let wrong_terms = [
        (Duration::ZERO, SHORT.max_lease),
        (Duration::from_secs(11), SHORT.max_lease),
        (SHORT.validity, Duration::from_millis(500)),
        (SHORT.validity, Duration::from_secs(61)),
    ];
    for (validity, max_lease) in wrong_terms {
        let terms = Terms {
            validity,
            max_lease,
        };
        let error = init(url.as_str(), &known, terms, true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
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
