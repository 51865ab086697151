//! The scenarios. Each starts its own nodes and ends with the checker's verdict.

use std::time::Duration;

use distlock::LockName;
use distlock_checker::{Invariant, Report, What};
use distlock_harness::{FaultProxy, eventually_async};
use distlock_kickout::{Code, Transition, Uid};

use crate::{
    client::{Client, State},
    settle::TRY_AGAIN,
    world::{SOON, World, now_us, pause},
};

/// The additional delay of each request to the store, for a node that is to be caught in the middle
/// of one.
const STORE_DELAY: Duration = Duration::from_millis(200);

/// Takeovers on one node and across nodes, by other devices and by the same one, with messages in
/// between.
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
    // Nobody is logged in: the message is kept, and delivered later.
    clients[0].leave();
    clients[0]
        .until("gone", |state| *state == State::Closed)
        .await;
    friend.send(&anna, &format!("{}-kept", world.name));
    clients.push(friend);
    let exercised = [Invariant::I6, Invariant::I9, Invariant::I11, Invariant::I18];
    world.verdict(clients, &exercised).await
}

/// Fifty devices of one account at once on every node, beside an unrelated account.
pub(crate) async fn fifty_at_once(mut world: World, nodes: &[&str]) -> Report {
    start(&mut world, nodes).await;
    let (anna, quiet) = (world.uid("anna"), world.uid("quiet"));
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
    // Its logins always succeed. Scenarios that leave it the processor measure their latency.
    let meanwhile = world.comes_and_goes(&quiet, nodes[0], 10);
    let (crowd, ()) = tokio::join!(crowd, meanwhile);
    world.verdict(crowd, &[Invariant::I6, Invariant::I9]).await
}

/// Two sessions of an account may live: the third login ends the oldest, on whichever node it is.
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
    for left in &clients[2..] {
        assert!(matches!(left.state(), State::In(..)), "{:?}", left.stamp);
    }
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// Where the first login wins, a dead node's session keeps others out until its node's lease is
/// over, and no longer.
pub(crate) async fn first_wins(mut world: World) -> Report {
    world.rules.node_lease = Duration::from_secs(4);
    world.rules.deny = true;
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
    let clients = vec![first, second, back, next];
    world.verdict(clients, &[]).await
}

/// Two devices that take over from each other again and again.
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
    let clients = old.into_iter().collect();
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// A node that is stopped for a moment, and for longer than its lease.
pub(crate) async fn stopped_node(mut world: World) -> Report {
    world.rules.node_lease = Duration::from_secs(4);
    world.rules.reachable = false;
    let lease = world.promises().node_lease;
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
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// Strict confirmation: nobody is let in beside a session whose node is stopped, until that node's
/// lease is over.
pub(crate) async fn strict(mut world: World) -> Report {
    let (anna, mut clients) = strictly(&mut world).await;
    let mut old = world.log_in(&anna, "old", "n2").await;
    let newcomer = world
        .while_stopped("n2", world.log_in(&anna, "new", "n1"))
        .await;
    old.told().await;
    clients.extend([old, newcomer]);
    world.verdict(clients, &[Invariant::I8]).await
}

/// As [`strict`], beside a session whose node runs and cannot be reached, until that node has found
/// out by itself.
pub(crate) async fn strict_cut_off(mut world: World) -> Report {
    let (anna, mut clients) = strictly(&mut world).await;
    let mut old = world.log_in(&anna, "old", "n2").await;
    world.node("n2").wire.black_hole();
    let newcomer = world.log_in(&anna, "new", "n1").await;
    assert_eq!(old.told().await, Code::Superseded);
    world.node("n2").wire.pass();
    clients.extend([old, newcomer]);
    world.verdict(clients, &[Invariant::I8]).await
}

async fn strictly(world: &mut World) -> (Uid, Vec<Client>) {
    world.rules.node_lease = Duration::from_secs(4);
    world.rules.reachable = false;
    world.rules.strict = true;
    world.set("confirm", "strict");
    start(world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut clients = vec![world.log_in(&bob, "one", "n1").await];
    clients.push(world.log_in(&bob, "two", "n2").await);
    (anna, clients)
}

/// A node that is killed: its accounts log in elsewhere at once, the others' entries are cleared in
/// time, and it comes back.
pub(crate) async fn killed_node(mut world: World) -> Report {
    world.rules.node_lease = Duration::from_secs(6);
    start(&mut world, &["n1", "n2"]).await;
    let (anna, gone) = (world.uid("anna"), world.uid("gone"));
    let old = world.log_in(&anna, "phone", "n2").await;
    let never_back = world.log_in(&gone, "phone", "n2").await;
    world.kill("n2");
    let killed_us = now_us();
    let mut clients = vec![world.log_in(&anna, "pc", "n1").await, old, never_back];
    // The delay of the process's own first requests does not count.
    let (store, cleanup) = (world.open().await, world.promises().longest_cleanup());
    eventually_async("the dead session's entry to go", SOON, || async {
        let record = world.record(&store, &gone).await?;
        record.slots.is_empty().then_some(())
    })
    .await
    .unwrap();
    let took = Duration::from_micros(now_us() - killed_us);
    assert!(
        took <= cleanup,
        "cleared {took:?} after the crash, {cleanup:?} are allowed"
    );
    store.close().await;
    world.start("n2").await.unwrap();
    clients.push(world.log_in(&anna, "tablet", "n2").await);
    world.verdict(clients, &[]).await
}

/// A node is killed while it holds an account's lock in order to pass on a message: the account
/// logs in again within L.
pub(crate) async fn killed_with_a_lock(mut world: World) -> Report {
    world.set("route", "locked");
    world.rules.lock_ttl = Duration::from_secs(2);
    world.rules.node_lease = Duration::from_secs(6);
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let old = world.log_in(&anna, "phone", "n1").await;
    let friend = world.log_in(&bob, "bobs", "n2").await;
    let store = world.open().await;
    // The node that passes it on waits for n1, and holds the lock.
    world.node("n1").wire.black_hole();
    friend.send(&anna, &format!("{}-m", world.name));
    world.holds(&store, &anna, "n2").await;
    world.kill("n2");
    let killed_us = now_us();
    let holder = world.holder(&store, &anna).await;
    assert!(
        holder.is_some(),
        "{}: the dead node's lock is free",
        world.name
    );
    let next = world.keeps_trying(&anna, "pc", "n1").await;
    let took = Duration::from_micros(now_us() - killed_us);
    let promises = world.promises();
    let allowed =
        promises.longest_lockout() + promises.longest_unlocked_login() + promises.slack + TRY_AGAIN;
    assert!(
        took <= allowed,
        "in again after {took:?}, {allowed:?} are allowed"
    );
    store.close().await;
    world.verdict(vec![old, friend, next], &[]).await
}

/// A client logs out while a router holds its account's lock: its entry goes at once, and none
/// comes back.
pub(crate) async fn logout_beside_a_router(mut world: World) -> Report {
    world.set("route", "locked");
    // The sweep must not remove an entry that the logout left.
    world.rules.sweep = Duration::from_secs(60);
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut clients = vec![world.log_in(&bob, "bobs", "n2").await];
    let store = world.open().await;
    let mut beside = false;
    // The router gives up after a while; a machine that was paused that long shows nothing.
    for at in 0..10 {
        let leaving = world.log_in(&anna, "phone", "n1").await;
        world.node("n1").wire.black_hole();
        clients[0].send(&anna, &format!("{}-m{at}", world.name));
        let held = world.holds(&store, &anna, "n2").await;
        leaving.leave();
        eventually_async("the entry to go", SOON, || async {
            let record = world.record(&store, &anna).await?;
            record.slots.is_empty().then_some(())
        })
        .await
        .unwrap();
        beside = world.holder(&store, &anna).await == Some(held);
        clients.push(leaving);
        world.free(&store, &anna).await;
        world.node("n1").wire.pass();
        if beside {
            break;
        }
    }
    assert!(
        beside,
        "{}: no logout was done before the router was",
        world.name
    );
    let record = world.record(&store, &anna).await.unwrap();
    assert!(record.slots.is_empty(), "{record:?}");
    store.close().await;
    world.verdict(clients, &[Invariant::I18]).await
}

/// A session whose notice got lost logs out after another one took its place: the newcomer's entry
/// stays.
pub(crate) async fn stale_logout(mut world: World) -> Report {
    // Its node must not find out by itself meanwhile.
    world.rules.node_lease = Duration::from_secs(60);
    world.rules.reachable = false;
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let mut old = world.log_in(&anna, "phone", "n1").await;
    world.node("n1").wire.black_hole();
    let newcomer = world.log_in(&anna, "pc", "n2").await;
    assert!(matches!(old.state(), State::In(..)), "{:?}", old.stamp);
    old.leave();
    old.until("gone", |state| *state == State::Closed).await;
    world.node("n1").wire.pass();
    world.verdict(vec![old, newcomer], &[Invariant::I5]).await
}

/// A node is stopped while it holds an account's lock, between its read and its write, until
/// another node has the lock: its write must not happen.
pub(crate) async fn stopped_with_a_lock(mut world: World) -> Report {
    world.rules.lock_ttl = Duration::from_secs(2);
    world.rules.node_lease = Duration::from_secs(20);
    world.rules.reachable = false;
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let store = world.open().await;
    let mut clients = vec![world.log_in(&anna, "phone", "n1").await];
    for at in 0..8 {
        world.node("n2").store_link(|wire| wire.delay(STORE_DELAY));
        let mut late = world.client(&anna, &format!("late{at}"), "n2").await;
        let caught = tokio::select! {
            _ = world.holds(&store, &anna, "n2") => true,
            _ = late.answered() => false,
        };
        if !caught {
            clients.push(late);
            continue;
        }
        // By then the node has its grant, and not yet the answer of its read.
        pause(STORE_DELAY * 2).await;
        let stopped = world.while_stopped("n2", async {
            let newer = world.keeps_trying(&anna, &format!("newer{at}"), "n1").await;
            world.node("n2").store_link(FaultProxy::pass);
            newer
        });
        let newer = stopped.await;
        let State::In(_, meanwhile) = newer.state() else {
            panic!("{:?} is not in: {:?}", newer.stamp, newer.state());
        };
        if let State::In(_, r#gen) = late.answered().await {
            assert!(r#gen > meanwhile, "it wrote under a lock that it had lost");
        }
        clients.push(newer);
        clients.push(late);
        let history = world.history().unwrap();
        // A machine that was paused meanwhile may have stopped the node before or after that point.
        if history
            .nodes
            .iter()
            .any(|it| it.event == Transition::WriteGivenUp)
        {
            break;
        }
    }
    store.close().await;
    world.verdict(clients, &[Invariant::I13]).await
}

/// Other nodes cannot reach a node, or reach it late, or lose its answers and ask twice.
pub(crate) async fn bad_peer_link(mut world: World) -> Report {
    world.rules.node_lease = Duration::from_secs(6);
    world.rules.reachable = false;
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
        // Where the kick got lost, the older session's node finds out by itself.
        assert_eq!(old.told().await, Code::Superseded, "{fault}");
        world.node("n2").wire.pass();
        clients.extend([old, newcomer]);
    }
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// A node reaches the store late, loses its connections, loses an answer, and loses the store for
/// longer than its lease; then it is cut off from everything.
pub(crate) async fn bad_store_link(mut world: World) -> Report {
    world.rules.node_lease = Duration::from_secs(6);
    world.rules.reachable = false;
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
        // A client that was refused because an answer got lost must be able to log in again.
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
        // The other nodes may still reach it with a kick. Nobody else can tell it that its lease is
        // over.
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
    world.verdict(clients, &[Invariant::I9]).await
}

/// Clients that ignore their notice get no further frame, are heard no more, and are cut off.
pub(crate) async fn deaf_clients(mut world: World) -> Report {
    world.deaf = true;
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let friend = world.log_in(&bob, "bobs", "n2").await;
    let mut clients: Vec<Client> = Vec::new();
    for (at, node) in ["n1", "n2", "n2", "n1"].into_iter().enumerate() {
        let next = world.log_in(&anna, &format!("d{at}"), node).await;
        next.ignores_its_notice();
        if let Some(old) = clients.last_mut() {
            assert_eq!(old.told().await, Code::Superseded);
            // One message to the account, and one from its superseded session.
            friend.send(&anna, &format!("{}-to{at}", world.name));
            old.send(&bob, &format!("{}-from{at}", world.name));
            let client = old.stamp.client;
            world
                .has_seen("the refusal", |it| {
                    it.client == client && it.what == What::Refused
                })
                .await;
        }
        clients.push(next);
    }
    for deaf in &clients[..3] {
        let client = deaf.stamp.client;
        world
            .has_seen("the cut", |it| {
                it.client == client && it.what == What::Closed
            })
            .await;
    }
    clients.push(friend);
    let exercised = [Invariant::I8, Invariant::I9, Invariant::I10, Invariant::I11];
    world.verdict(clients, &exercised).await
}

/// One node is stopped, and another account's lock is held: logins of an unrelated account take as
/// long as before.
pub(crate) async fn bystanders(mut world: World) -> Report {
    world.rules.lock_wait = Duration::from_secs(30);
    world.rules.reachable = false;
    start(&mut world, &["n1", "n2"]).await;
    let (quiet, blocked, far) = (world.uid("quiet"), world.uid("blocked"), world.uid("far"));
    let old = world.log_in(&far, "old", "n2").await;
    let store = world.open().await;
    let lock = LockName::new(format!("user/{blocked}")).unwrap();
    let held = store.locker().lock_named(&lock).acquire().await.unwrap();
    let trouble = async {
        let waits = world.client(&blocked, "phone", "n1").await;
        let newcomer = world.client(&far, "new", "n1").await;
        (waits, newcomer)
    };
    let (mut waits, mut newcomer) = world
        .while_stopped("n2", world.beside(&quiet, "n1", trouble))
        .await;
    assert!(held.release().await.is_clean());
    store.close().await;
    waits.is_in().await;
    newcomer.is_in().await;
    world
        .verdict(vec![old, waits, newcomer], &[Invariant::I15])
        .await
}

/// The store goes away and comes back; then each session is live as before, or has had its notice.
pub(crate) async fn store_restarts(
    mut world: World,
    restart: impl FnOnce() -> anyhow::Result<()>,
) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut clients = vec![
        world.log_in(&anna, "phone", "n1").await,
        world.log_in(&bob, "pc", "n2").await,
    ];
    let away = now_us();
    tokio::task::block_in_place(restart).unwrap();
    clients.push(world.keeps_trying(&anna, "tablet", "n2").await);
    // Until the nodes have found the store again.
    world.rules.store_away = Duration::from_micros(now_us() - away);
    clients.push(world.keeps_trying(&bob, "tablet", "n1").await);
    world.verdict(clients, &[]).await
}

pub(crate) async fn start(world: &mut World, nodes: &[&str]) {
    for node in nodes {
        world.start(node).await.unwrap();
    }
}
