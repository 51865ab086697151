//! Health, metrics, lists of sessions, and a node whose lease was deleted.

use std::time::Duration;

use distlock_checker::{Fact, Invariant, Report};
use distlock_harness::eventually_async;
use distlock_kickout::Code;
use serde_json::Value;

use crate::{
    client::{Hello, State},
    http::get,
    scenarios::start,
    world::{SOON, World, now_us},
};

/// A node whose lease was deleted by hand ends its sessions. A session whose account has logged in
/// elsewhere gets the code of a takeover, and a resume of that session does not end the new
/// session. The other sessions can be resumed at once.
pub(crate) async fn fenced(mut world: World) -> Report {
    world.rules.node_lease = Duration::from_secs(4);
    world.rules.reachable = false;
    start(&mut world, &["n1", "n2"]).await;
    let (taken, left) = (world.uid("taken"), world.uid("left"));
    let mut old = world.log_in(&taken, "old", "n2").await;
    let mut alone = world.log_in(&left, "old", "n2").await;
    let token = old.resume_token();
    world.node("n2").wire.black_hole();
    let new = world.log_in(&taken, "new", "n1").await;
    let store = world.open().await;
    let locker = store.locker();
    let name = format!("node/{}", world.node_id("n2"));
    let lease = locker.inspect(name.as_str()).await.unwrap();
    let held = lease.held.and_then(|holder| holder.token).unwrap();
    world.fact(Fact::LeaseFreed {
        node: world.node_id("n2"),
        at_us: now_us(),
    });
    locker.force_release(name.as_str(), held).await.unwrap();
    locker.close().await;
    assert_eq!(old.wait_for_notice().await, Code::Superseded);
    assert_eq!(alone.wait_for_notice().await, Code::NodeFenced);
    world.node("n2").wire.pass();
    let back = Hello::resume(&token);
    let mut refused = world.client_with(&taken, "old", "n1", back).await;
    assert_eq!(refused.wait_for_answer().await, State::Out("denied".into()));
    assert!(matches!(new.state(), State::In(..)), "it is still in");
    let back = world.log_in_with_retries(&left, "old", "n2").await;
    let clients = vec![old, alone, new, refused, back];
    world.verdict(clients, &[Invariant::I9]).await
}

/// A frame that follows the login directly waits for the login. A login with an unknown class is
/// refused. A node with another policy than the other nodes logs both policies. Events are counted,
/// and sessions are listed.
pub(crate) async fn seen_from_outside(mut world: World) -> Report {
    world.set("policy", "one_per_class");
    world.rules.limit = 2;
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let phone = Hello::login().class("phone");
    let mut annas = world.client_with(&anna, "phone", "n1", phone).await;
    annas.wait_until_in().await;
    let bobs = world.client_with(&bob, "pc", "n2", Hello::login().class("pc"));
    let mut bobs = bobs.await;
    bobs.send(&anna, &world.id("early"));
    bobs.wait_until_in().await;
    world.expect_outcome("early", "written").await;
    let fridge = Hello::login().class("fridge");
    let mut fridge = world.client_with(&anna, "fridge", "n2", fridge).await;
    assert_eq!(
        fridge.wait_for_answer().await,
        State::Out("bad_value".into())
    );

    world.set("policy", "n_total(3)");
    world.start("n3").await.unwrap();
    let odd = || async {
        let said = world.node("n3").process.output();
        (said.contains("different policies") && said.contains("one_per_class")).then_some(())
    };
    eventually_async("the node that disagrees", SOON, odd)
        .await
        .unwrap();
    world.kill("n3");

    let n2 = world.node("n2");
    assert!(get(n2.listen, "/healthz").await.starts_with("HTTP/1.1 200"));
    let metrics = get(n2.admin, "/metrics").await;
    for line in [
        "# HELP distlock_sessions ",
        "distlock_sessions 1",
        "distlock_messages_total{outcome=\"written\"} 1",
        "distlock_messages_total{outcome=\"failed\"} 0",
        "distlock_session_ends_total{code=\"1\"} 0",
        "distlock_login_total{result=\"admitted\"} 1",
        "distlock_login_lock_hold_seconds_bucket{le=\"+Inf\"} 1",
        "distlock_build_info{version=",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let named = |about| {
        metrics
            .lines()
            .filter_map(move |line| line.strip_prefix(about))
    };
    let helped: Vec<_> = named("# HELP ")
        .filter_map(|line| line.split(' ').next())
        .collect();
    for metric in named("# TYPE ").filter_map(|line| line.split(' ').next()) {
        assert!(
            helped.contains(&metric),
            "{metric} has no help text: {metrics}"
        );
    }
    let mut online = Vec::new();
    let mut path = "/v1/sessions?limit=1".to_owned();
    loop {
        let page = get(n2.admin, &path).await;
        let (_, page) = page.split_once("\r\n\r\n").unwrap();
        let page: Value = serde_json::from_str(page).unwrap();
        let uids = page["sessions"].as_array().unwrap().iter();
        online.extend(uids.map(|it| it["uid"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/sessions?limit=1&after={next}"),
            None => break,
        }
    }
    online.retain(|uid| uid.starts_with(&world.name));
    assert_eq!(online, [anna.as_str(), bob.as_str()]);
    world.verdict(vec![annas, bobs, fridge], &[]).await
}
