//! What happens. Each scenario starts its own nodes and ends with the checker's verdict.

use std::time::Duration;

use distlock::LockName;
use distlock_checker::{Fact, Invariant, Report};
use distlock_harness::FaultProxy;
use distlock_kickout::Code;

use crate::{
    client::{Client, State},
    world::{World, now_us, pause},
};

/// Takeovers on one node and across nodes, by other devices and by the same one, with messages in between.
pub(crate) async fn takeovers(mut world: World) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let friend = world.log_in(&bob, "bobs", "n2").await;
    let mut clients = Vec::new();
    let steps = [
        ("phone", "n1", None),
        ("pc", "n1", Some(Code::Superseded)),
        ("tablet", "n2", Some(Code::Superseded)),
        ("tablet", "n2", Some(Code::Replaced)),
        ("phone", "n1", Some(Code::Superseded)),
    ];
    for (at, (device, node, code)) in steps.into_iter().enumerate() {
        let next = world.log_in(&anna, device, node).await;
        if let Some(mut old) = clients.pop() {
            assert_eq!(Some(Client::told(&mut old).await), code);
        }
        friend.send(&anna, &format!("{}-m{at}", world.name));
        clients.push(next);
    }
    // Nobody is in: kept, and delivered later.
    clients[0].leave();
    clients[0]
        .until("gone", |state| *state == State::Closed)
        .await;
    friend.send(&anna, &format!("{}-kept", world.name));
    clients.push(friend);
    let report = world.verdict(clients).await;
    for invariant in [Invariant::I6, Invariant::I9, Invariant::I11, Invariant::I18] {
        assert!(report.looked_at(invariant) > 0, "{report}");
    }
    report
}

/// Fifty devices of one account at once on every node, and an account that has nothing to do with it.
pub(crate) async fn fifty_at_once(mut world: World, nodes: &[&str]) -> Report {
    start(&mut world, nodes).await;
    let (anna, quiet) = (world.uid("anna"), world.uid("quiet"));
    world.fact(Fact::Bystander { uid: quiet.clone() });
    let crowd = async {
        let asking = (0..50).map(|at| {
            let device = format!("d{at}");
            let (world, anna) = (&world, &anna);
            async move { world.client(anna, &device, nodes[at % nodes.len()]).await }
        });
        let mut crowd = futures_util::future::join_all(asking).await;
        for client in &mut crowd {
            client.answered().await;
        }
        crowd
    };
    let meanwhile = world.comes_and_goes(&quiet, nodes[0], 3);
    let (crowd, ()) = tokio::join!(crowd, meanwhile);
    let report = world.verdict(crowd).await;
    assert!(report.looked_at(Invariant::I15) > 0, "{report}");
    report
}

/// Two sessions of an account may live: the third login ends the oldest, on whichever node.
pub(crate) async fn two_of_three(mut world: World) -> Report {
    world.set("policy", "n_total(2)");
    world.rules.limit = 2;
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let mut clients = Vec::new();
    for (device, node) in [
        ("phone", "n1"),
        ("pc", "n2"),
        ("tablet", "n1"),
        ("watch", "n1"),
    ] {
        clients.push(world.log_in(&anna, device, node).await);
    }
    for old in &mut clients[..2] {
        assert_eq!(old.told().await, Code::Superseded);
    }
    world.verdict(clients).await
}

/// Where the first login wins, a dead node's session keeps others out until its node's lease is over, and no longer.
pub(crate) async fn first_wins(mut world: World) -> Report {
    world.lease(Duration::from_secs(4));
    world.set("on_exceed", "deny");
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let first = world.log_in(&anna, "phone", "n2").await;
    let mut second = world.client(&anna, "pc", "n1").await;
    assert_eq!(second.answered().await, State::Out("denied".into()));
    first.leave();
    let back = world.keeps_trying(&anna, "pc", "n2").await;
    world.kill("n2");
    let next = world.keeps_trying(&anna, "tablet", "n1").await;
    next.leave();
    world.verdict(vec![first, second, back, next]).await
}

/// Two devices that throw each other out again and again.
pub(crate) async fn ping_pong(mut world: World) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let mut old: Option<Client> = None;
    for at in 0..16 {
        let (device, node) = [("phone", "n1"), ("pc", "n2")][at % 2];
        let next = world.log_in(&anna, device, node).await;
        if let Some(mut old) = old.replace(next) {
            assert_eq!(old.told().await, Code::Superseded);
        }
    }
    world.verdict(old.into_iter().collect()).await
}

/// A node that is stopped for a moment, and for longer than its lease.
pub(crate) async fn stopped_node(mut world: World) -> Report {
    let lease = Duration::from_secs(4);
    world.lease(lease);
    world.rules.settle = lease + Duration::from_secs(2);
    start(&mut world, &["n1", "n2"]).await;
    let mut clients = Vec::new();
    for (name, stopped) in [("moment", lease / 8), ("long", lease + lease / 2)] {
        let uid = world.uid(name);
        let mut old = world.log_in(&uid, "old", "n2").await;
        let newcomer = world
            .while_stopped("n2", async {
                let newcomer = world.log_in(&uid, "new", "n1").await;
                pause(stopped).await;
                newcomer
            })
            .await;
        let code = old.told().await;
        assert!(
            matches!(code, Code::Superseded | Code::NodeFenced),
            "{code:?}"
        );
        clients.extend([old, newcomer]);
    }
    world.verdict(clients).await
}

/// Strict confirmation: nobody is let in beside a session whose node does not answer, until that node's lease is over.
pub(crate) async fn strict(mut world: World) -> Report {
    let lease = Duration::from_secs(4);
    world.lease(lease);
    world.set("confirm", "strict");
    world.rules.strict = true;
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut old = world.log_in(&anna, "old", "n2").await;
    let mut clients = vec![world.log_in(&bob, "one", "n1").await];
    clients.push(world.log_in(&bob, "two", "n2").await);
    let newcomer = world
        .while_stopped("n2", world.log_in(&anna, "new", "n1"))
        .await;
    old.told().await;
    clients.extend([old, newcomer]);
    world.verdict(clients).await
}

/// A node that is killed: its accounts log in elsewhere at once, the others' entries are cleared, and it comes back.
pub(crate) async fn killed_node(mut world: World) -> Report {
    world.lease(Duration::from_secs(6));
    start(&mut world, &["n1", "n2"]).await;
    let (anna, gone) = (world.uid("anna"), world.uid("gone"));
    let old = world.log_in(&anna, "phone", "n2").await;
    let never_back = world.log_in(&gone, "phone", "n2").await;
    world.kill("n2");
    let mut clients = vec![world.log_in(&anna, "pc", "n1").await, old, never_back];
    world.start("n2").await.unwrap();
    clients.push(world.log_in(&anna, "tablet", "n2").await);
    let report = world.verdict(clients).await;
    assert!(report.looked_at(Invariant::I12) > 0, "{report}");
    report
}

/// Other nodes cannot reach a node, or late, or its answers get lost so that they ask twice.
pub(crate) async fn bad_peer_link(mut world: World) -> Report {
    let lease = Duration::from_secs(6);
    world.lease(lease);
    world.rules.settle = lease + Duration::from_secs(2);
    start(&mut world, &["n1", "n2"]).await;
    let mut clients = Vec::new();
    for fault in ["lost", "delayed", "twice", "reset"] {
        let uid = world.uid(fault);
        let mut old = world.log_in(&uid, "old", "n2").await;
        let wire = &world.node("n2").wire;
        match fault {
            "lost" => wire.black_hole(),
            "delayed" => wire.delay(Duration::from_millis(150)),
            "twice" => wire.swallow_one_reply(),
            _ => wire.reset(),
        }
        let newcomer = world.log_in(&uid, "new", "n1").await;
        // Where the kick got lost the node finds out by itself.
        assert_eq!(old.told().await, Code::Superseded, "{fault}");
        world.node("n2").wire.pass();
        clients.extend([old, newcomer]);
    }
    world.verdict(clients).await
}

/// A node reaches the store late, loses its connections, loses an answer, and loses the store for longer than its lease; then it
/// is cut off from everything.
pub(crate) async fn bad_store_link(mut world: World) -> Report {
    let lease = Duration::from_secs(6);
    world.lease(lease);
    world.rules.settle = lease + Duration::from_secs(2);
    start(&mut world, &["n1", "n2"]).await;
    let mut clients = Vec::new();
    for fault in ["delayed", "reset", "unanswered"] {
        let uid = world.uid(fault);
        let first = world.log_in(&uid, "first", "n2").await;
        world.node("n2").store_link(|wire| match fault {
            "delayed" => wire.delay(Duration::from_millis(50)),
            "reset" => wire.reset(),
            _ => wire.swallow_one_reply(),
        });
        // Whoever is turned away because an answer got lost must be able to come again.
        let second = world.keeps_trying(&uid, "second", "n1").await;
        let third = world.keeps_trying(&uid, "third", "n2").await;
        world.node("n2").store_link(FaultProxy::pass);
        clients.extend([first, second, third]);
    }
    for fault in ["no store", "alone"] {
        let (taken, left) = (
            world.uid(&fault.replace(' ', "-")),
            world.uid(&format!("{}-left", &fault[..2])),
        );
        let mut old = world.keeps_trying(&taken, "old", "n2").await;
        let mut alone = world.keeps_trying(&left, "old", "n2").await;
        let node = world.node("n2");
        node.store_link(FaultProxy::black_hole);
        if fault == "alone" {
            node.wire.black_hole();
        }
        clients.push(world.log_in(&taken, "new", "n1").await);
        // The other nodes can still tell it, unless they cannot; nobody can tell it that its lease is over.
        let code = old.told().await;
        assert!(
            matches!(code, Code::Superseded | Code::NodeFenced),
            "{fault}: {code:?}"
        );
        assert_eq!(alone.told().await, Code::NodeFenced, "{fault}");
        let node = world.node("n2");
        node.store_link(FaultProxy::pass);
        node.wire.pass();
        clients.extend([old, alone]);
        clients.push(world.keeps_trying(&left, "back", "n2").await);
    }
    world.verdict(clients).await
}

/// Clients that do not react to their notice are cut off.
pub(crate) async fn deaf_clients(mut world: World) -> Report {
    world.deaf = true;
    world.set("grace", "500ms");
    world.rules.grace = Duration::from_millis(500);
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let mut clients: Vec<Client> = Vec::new();
    for node in ["n1", "n2", "n2", "n1"] {
        let next = world
            .log_in(&anna, &format!("d{}", clients.len()), node)
            .await;
        next.ignores_its_notice();
        if let Some(old) = clients.last_mut() {
            assert_eq!(old.told().await, Code::Superseded);
        }
        clients.push(next);
    }
    let report = world.verdict(clients).await;
    assert!(report.looked_at(Invariant::I10) > 0, "{report}");
    report
}

/// One node is stopped, and somebody sits on another account's lock: logins of an account that has nothing to do with either
/// take as long as before.
pub(crate) async fn bystanders(mut world: World) -> Report {
    world.set("lock_wait", "30s");
    start(&mut world, &["n1", "n2"]).await;
    let (quiet, blocked, far) = (world.uid("quiet"), world.uid("blocked"), world.uid("far"));
    world.fact(Fact::Bystander { uid: quiet.clone() });
    let old = world.log_in(&far, "old", "n2").await;
    let store = distlock::open(world.url.as_str()).await.unwrap();
    world.comes_and_goes(&quiet, "n1", 10).await;
    let from_us = now_us();
    let lock = LockName::new(format!("user/{blocked}")).unwrap();
    let held = store.locker().lock_named(&lock).acquire().await.unwrap();
    let trouble = async {
        let waits = world.client(&blocked, "phone", "n1").await;
        let newcomer = world.client(&far, "new", "n1").await;
        world.comes_and_goes(&quiet, "n1", 10).await;
        (waits, newcomer)
    };
    let (mut waits, mut newcomer) = world.while_stopped("n2", trouble).await;
    assert!(held.release().await.is_clean());
    store.close().await;
    world.fact(Fact::Trouble {
        from_us,
        to_us: now_us(),
    });
    waits.is_in().await;
    newcomer.is_in().await;
    let report = world.verdict(vec![old, waits, newcomer]).await;
    // Ten and ten logins, and the comparison.
    assert!(report.looked_at(Invariant::I15) > 20, "{report}");
    report
}

/// The store goes away and comes back; then everybody is who they were, or was told.
pub(crate) async fn store_restarts(
    mut world: World,
    restart: impl FnOnce() -> anyhow::Result<()>,
) -> Report {
    world.rules.settle = Duration::from_secs(12);
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut clients = vec![
        world.log_in(&anna, "phone", "n1").await,
        world.log_in(&bob, "pc", "n2").await,
    ];
    tokio::task::block_in_place(restart).unwrap();
    clients.push(world.keeps_trying(&anna, "tablet", "n2").await);
    clients.push(world.keeps_trying(&bob, "tablet", "n1").await);
    world.verdict(clients).await
}

pub(crate) async fn start(world: &mut World, nodes: &[&str]) {
    for node in nodes {
        world.start(node).await.unwrap();
    }
}
