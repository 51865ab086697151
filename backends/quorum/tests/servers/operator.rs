//! The steps of an operator.

use std::time::Duration;

use distlock_core::{Attempt, ErrorKind};
use distlock_harness::{eventually_async, servers::redis::RedisServer};
use distlock_quorum::{init, reconfigure, show};

use crate::common::{drivers, open, redis_servers, url_of, url_of_servers};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_is_made_once_and_shown() {
    let mut servers = redis_servers(3);
    let url = url_of_servers(&servers, "60s");
    let made = init(url.as_str(), &drivers(), false).await.unwrap();
    assert!(
        made.iter().all(distlock_quorum::MemberReport::votes),
        "{made:?}"
    );
    // A second call changes nothing, and a blank member waits.
    servers[1].restart_empty().unwrap();
    let again = init(url.as_str(), &drivers(), false).await.unwrap();
    let votes: Vec<_> = again
        .iter()
        .map(distlock_quorum::MemberReport::votes)
        .collect();
    assert_eq!(votes, [true, false, true], "{again:?}");
    let id = |at: usize| again[at].marker.as_ref().unwrap().as_ref().unwrap().quorum;
    assert_eq!(id(0), id(1));
    // Until the operator says again that the quorum has granted nothing.
    let new = init(url.as_str(), &drivers(), true).await.unwrap();
    assert!(
        new.iter().all(distlock_quorum::MemberReport::votes),
        "{new:?}"
    );
    servers[2].kill();
    let shown = show(url.as_str(), &drivers()).await.unwrap();
    assert!(shown[2].marker.is_err(), "{shown:?}");
    assert!(
        !format!("{shown:?}").contains(servers[0].password()),
        "a password is shown"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_make_one_quorum() {
    let servers = redis_servers(3);
    let url = url_of_servers(&servers, "60s");
    for _ in 0..10 {
        for server in &servers {
            server.command(&["FLUSHALL"]).unwrap();
        }
        let known = drivers();
        let (one, two, client) = tokio::join!(
            init(url.as_str(), &known, false),
            init(url.as_str(), &known, false),
            open(&url),
        );
        let (one, two) = (one.unwrap(), two.unwrap());
        client.unwrap().close().await;
        for member in show(url.as_str(), &known).await.unwrap() {
            let marker = member.marker.unwrap().unwrap();
            assert_eq!(marker.difference, None, "{one:?}\n{two:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_moves_to_other_members_without_two_holders() {
    let servers = redis_servers(5);
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let old = url_of(urls[..3].iter().map(String::as_str), "2s");
    let new = {
        // The third server stays, under its name.
        let named = ["c", "d", "e"].iter().zip(&urls[2..]);
        let member = |(name, url): (&&str, &String)| {
            format!(
                "member={name}={}&",
                distlock_backend_kit::percent_encode(url)
            )
        };
        format!(
            "quorum:?{}max_lease=2s",
            named.map(member).collect::<String>()
        )
    };
    init(old.as_str(), &drivers(), false).await.unwrap();
    let before = open(&old).await.unwrap();
    let lock = before.locker().lock("moved").ttl(Duration::from_secs(2));
    let guard = lock.acquire().await.unwrap();
    reconfigure(old.as_str(), new.as_str(), &drivers(), false)
        .await
        .unwrap();
    // The same call again changes nothing.
    reconfigure(old.as_str(), new.as_str(), &drivers(), false)
        .await
        .unwrap();
    let after = open(&new).await.unwrap();
    let next = eventually_async("the new members vote", SOON, || async {
        match after.locker().lock("moved").try_acquire().await {
            Ok(Attempt::Acquired(next)) => Some(next),
            Ok(Attempt::Busy(_)) => None,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                None
            }
        }
    });
    let next = next.await.unwrap();
    assert!(!guard.is_valid(), "two guards are valid");
    assert!(
        next.token() > guard.token(),
        "the third server knows the earlier token"
    );
    // The old list grants nothing any more.
    let refused = before.locker().lock("other").try_acquire().await;
    assert!(refused.is_err(), "{refused:?}");
    let refused = open(&old).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
    assert!(next.release().await.is_clean());
    // And back, to members that have left.
    reconfigure(new.as_str(), old.as_str(), &drivers(), false)
        .await
        .unwrap();
    before.close().await;
    after.close().await;
}
