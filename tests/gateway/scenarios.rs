//! The scenarios. Each scenario starts its own nodes and ends with the checker's verdict.

use std::time::Duration;

use distlock::{LockName, Store};
use distlock_checker::{Invariant, Report, What};
use distlock_harness::{FaultProxy, Process, Signal, eventually_async};
use distlock_kickout::{Code, Transition, Uid};

use crate::{
    client::{Client, State},
    verdict::TRY_AGAIN,
    world::{SOON, World, now_us, pause},
};

/// The additional delay of each request to the store and of each answer, so that a node can be
/// stopped or killed in the middle of a login. Meanwhile the node must still be able to open a
/// connection: on Postgres this takes twelve round trips, each with two delays, and 5 s are
/// allowed.
const STORE_DELAY: Duration = Duration::from_millis(100);

/// Logins for one whose node is caught between its read and its write. A pause of the whole machine
/// can make a test miss that moment.
const ATTEMPTS: usize = 8;

/// Takeovers on one node and across nodes, by other devices and by the same device, with messages
/// between them.
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
            assert_eq!(Some(Client::wait_for_notice(&mut old).await), code);
        }
        friend.send(&anna, &format!("{}-m{at}", world.name));
        clients.push(next);
    }
    // Nobody is logged in now: the store keeps the next message, and a later login delivers it.
    clients[0].leave();
    clients[0]
        .wait_for_state("gone", |state| *state == State::Closed)
        .await;
    friend.send(&anna, &format!("{}-kept", world.name));
    clients.push(friend);
    let exercised = [Invariant::I6, Invariant::I9, Invariant::I11, Invariant::I18];
    world.verdict(clients, &exercised).await
}

/// Fifty devices of one account log in on all nodes at the same time. An unrelated account logs in
/// meanwhile.
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
            client.wait_for_answer().await;
        }
        crowd
    };
    // The logins of this account must succeed. Their latency is not measured here, because the
    // fifty devices use the whole processor.
    let meanwhile = world.log_in_and_out(&quiet, nodes[0], 10);
    let (crowd, ()) = tokio::join!(crowd, meanwhile);
    world.verdict(crowd, &[Invariant::I6, Invariant::I9]).await
}

/// With a limit of two sessions, the third login ends the oldest session, on any node.
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
        assert_eq!(old.wait_for_notice().await, Code::Superseded);
    }
    for left in &clients[2..] {
        assert!(matches!(left.state(), State::In(..)), "{:?}", left.stamp);
    }
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// Where the first login wins, a dead node's session denies further logins until the lease of that
/// node ends, and no longer.
pub(crate) async fn first_wins(mut world: World) -> Report {
    world.rules.node_lease = Duration::from_secs(4);
    world.rules.deny = true;
    world.set("on_exceed", "deny");
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let first = world.log_in(&anna, "phone", "n2").await;
    let mut second = world.client(&anna, "pc", "n1").await;
    assert_eq!(second.wait_for_answer().await, State::Out("denied".into()));
    first.leave();
    let back = world.log_in_with_retries(&anna, "pc", "n2").await;
    world.kill("n2");
    let next = world.log_in_with_retries(&anna, "tablet", "n1").await;
    next.leave();
    let clients = vec![first, second, back, next];
    world.verdict(clients, &[]).await
}

/// Two devices take over from each other again and again.
pub(crate) async fn ping_pong(mut world: World) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let mut old: Option<Client> = None;
    for at in 0..16 {
        let (device, node) = [("phone", "n1"), ("pc", "n2")][at % 2];
        let next = world.log_in(&anna, device, node).await;
        if let Some(mut old) = old.replace(next) {
            assert_eq!(old.wait_for_notice().await, Code::Superseded);
        }
    }
    let clients = old.into_iter().collect();
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// A node is stopped for a moment, and then for longer than its lease.
pub(crate) async fn stopped_node(mut world: World) -> Report {
    world.rules.node_lease = Duration::from_secs(4);
    world.rules.reachable = false;
    let lease = world.promises().node_lease;
    start(&mut world, &["n1", "n2"]).await;
    let mut clients = Vec::new();
    for (name, stopped) in [("moment", lease / 8), ("long", lease + lease / 2)] {
        let uid = world.uid(name);
        // On a busy machine, the stop for a moment may outlast the lease. Then the node is fenced.
        world.until_up("n2").await;
        let mut old = world.log_in(&uid, "old", "n2").await;
        let newcomer = world
            .while_stopped("n2", async {
                let newcomer = world.log_in(&uid, "new", "n1").await;
                pause(stopped).await;
                newcomer
            })
            .await;
        let code = old.wait_for_notice().await;
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

/// With strict confirmation, no login is confirmed while the older session's node is stopped, until
/// the lease of that node ends.
pub(crate) async fn strict(mut world: World) -> Report {
    let (anna, mut clients) = start_strict_nodes(&mut world).await;
    let mut old = world.log_in(&anna, "old", "n2").await;
    let newcomer = world
        .while_stopped("n2", world.log_in(&anna, "new", "n1"))
        .await;
    old.wait_for_notice().await;
    clients.extend([old, newcomer]);
    world.verdict(clients, &[Invariant::I8]).await
}

/// As [`strict`], but the older session's node runs and is unreachable for other nodes. The login
/// waits until that node has found the takeover by itself.
pub(crate) async fn strict_cut_off(mut world: World) -> Report {
    let (anna, mut clients) = start_strict_nodes(&mut world).await;
    let mut old = world.log_in(&anna, "old", "n2").await;
    world.node("n2").wire.black_hole();
    let newcomer = world.log_in(&anna, "new", "n1").await;
    assert_eq!(old.wait_for_notice().await, Code::Superseded);
    world.node("n2").wire.pass();
    clients.extend([old, newcomer]);
    world.verdict(clients, &[Invariant::I8]).await
}

async fn start_strict_nodes(world: &mut World) -> (Uid, Vec<Client>) {
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

/// A node is killed: its accounts log in elsewhere at once, the records of its other accounts are
/// cleared in time, and the node starts again.
pub(crate) async fn killed_node(mut world: World) -> Report {
    world.rules.node_lease = Duration::from_secs(6);
    start(&mut world, &["n1", "n2"]).await;
    let (anna, gone) = (world.uid("anna"), world.uid("gone"));
    let old = world.log_in(&anna, "phone", "n2").await;
    let never_back = world.log_in(&gone, "phone", "n2").await;
    world.kill("n2");
    let killed_us = now_us();
    let mut clients = vec![world.log_in(&anna, "pc", "n1").await, old, never_back];
    // The delay of the first requests of this process does not count.
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

/// A node is killed while it holds an account's lock, between its read and its write. The account
/// can log in on another node within the documented time L, with a higher generation.
pub(crate) async fn killed_with_a_lock(mut world: World) -> Report {
    world.rules.lock_ttl = Duration::from_secs(2);
    world.rules.reachable = false;
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let store = world.open().await;
    let mut clients = Vec::new();
    for at in 0..ATTEMPTS {
        // After a missed attempt, this login also waits until the dead node's lock has ended.
        let phone = format!("phone{at}");
        let mut phone = world.log_in_with_retries(&anna, &phone, "n1").await;
        let (_, before) = phone.wait_until_in().await;
        clients.push(phone);
        let (late, caught) = log_in_slowly(&world, &store, &anna, &format!("late{at}")).await;
        clients.push(late);
        if !caught {
            continue;
        }
        let dying = world.node("n2").name.clone();
        world.kill("n2");
        let killed_us = now_us();
        let holder = world.holder(&store, &anna).await;
        let record = world.record(&store, &anna).await.unwrap();
        let in_time = holder.is_some_and(|(holder, _)| holder == dying) && record.r#gen == before;
        if in_time {
            let mut next = world.log_in_with_retries(&anna, "pc", "n1").await;
            assert_logged_in_soon(&world, killed_us);
            let (_, after) = next.wait_until_in().await;
            assert!(after > before, "{after} after {before}");
            clients.push(next);
            store.close().await;
            return world.verdict(clients, &[]).await;
        }
        world.start("n2").await.unwrap();
    }
    panic!(
        "{}: no kill came between the grant and the write",
        world.name
    );
}

/// The tool is killed while it holds an account's lock, in place of a node: a store without a
/// server has no link that could be delayed. The account can log in again within the documented
/// time L.
pub(crate) async fn killed_holder(mut world: World) -> Report {
    world.rules.lock_ttl = Duration::from_secs(2);
    start(&mut world, &["n1"]).await;
    let anna = world.uid("anna");
    let old = world.log_in(&anna, "phone", "n1").await;
    let store = world.open().await;
    let mut command = world.tool(&world.url);
    let name = format!("user/{anna}");
    command.args(["run", &name, "--ttl", "2s", "--", "sleep", "60"]);
    let mut dying = Process::spawn(&mut command).unwrap();
    let held = eventually_async("the process to hold the lock", SOON, || {
        world.holder(&store, &anna)
    });
    held.await.unwrap();
    dying.signal(Signal::KILL).unwrap();
    tokio::task::block_in_place(|| dying.wait(SOON)).unwrap();
    let killed_us = now_us();
    let holder = world.holder(&store, &anna).await;
    assert!(
        holder.is_some(),
        "{}: the dead process's lock is free",
        world.name
    );
    let next = world.log_in_with_retries(&anna, "pc", "n1").await;
    assert_logged_in_soon(&world, killed_us);
    store.close().await;
    world.verdict(vec![old, next], &[]).await
}

/// Checks that an account has logged in again within the documented time after a holder of its lock
/// was killed.
fn assert_logged_in_soon(world: &World, killed_us: u64) {
    let took = Duration::from_micros(now_us() - killed_us);
    let promises = world.promises();
    let allowed =
        promises.longest_lockout() + promises.longest_unlocked_login() + promises.slack + TRY_AGAIN;
    assert!(
        took <= allowed,
        "{}: in again after {took:?}, {allowed:?} are allowed",
        world.name
    );
}

/// A client logs out while its account's lock is held. The session's entry is removed at once, and
/// is not written again.
pub(crate) async fn logout_beside_a_lock(mut world: World) -> Report {
    // The sweep must not remove an entry that the logout left, because the test looks for it.
    world.rules.sweep = Duration::from_secs(60);
    start(&mut world, &["n1"]).await;
    let anna = world.uid("anna");
    let store = world.open().await;
    let leaving = world.log_in(&anna, "phone", "n1").await;
    let lock = LockName::new(format!("user/{anna}")).unwrap();
    let held = store.locker().lock_named(&lock).acquire().await.unwrap();
    leaving.leave();
    eventually_async("the entry to go", SOON, || async {
        let record = world.record(&store, &anna).await?;
        record.slots.is_empty().then_some(())
    })
    .await
    .unwrap();
    assert!(held.is_valid(), "the logout was not beside the lock");
    assert!(held.release().await.is_clean());
    let record = world.record(&store, &anna).await.unwrap();
    assert!(record.slots.is_empty(), "{record:?}");
    store.close().await;
    world.verdict(vec![leaving], &[]).await
}

/// The notice of a session got lost, and the session logs out after another session took its place.
/// The entry of the newer session stays.
pub(crate) async fn stale_logout(mut world: World) -> Report {
    // The node of the older session must not find the takeover by itself meanwhile.
    world.rules.node_lease = Duration::from_secs(60);
    world.rules.reachable = false;
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let mut old = world.log_in(&anna, "phone", "n1").await;
    world.node("n1").wire.black_hole();
    let newcomer = world.log_in(&anna, "pc", "n2").await;
    assert!(matches!(old.state(), State::In(..)), "{:?}", old.stamp);
    old.leave();
    old.wait_for_state("gone", |state| *state == State::Closed)
        .await;
    world.node("n1").wire.pass();
    world.verdict(vec![old, newcomer], &[Invariant::I5]).await
}

/// A node that holds an account's lock is stopped between its read and its write, until another
/// node has the lock. The write of the stopped node must not happen.
pub(crate) async fn stopped_with_a_lock(mut world: World) -> Report {
    world.rules.lock_ttl = Duration::from_secs(2);
    world.rules.node_lease = Duration::from_secs(20);
    world.rules.reachable = false;
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let store = world.open().await;
    let mut clients = vec![world.log_in(&anna, "phone", "n1").await];
    for at in 0..ATTEMPTS {
        let (mut late, caught) = log_in_slowly(&world, &store, &anna, &format!("late{at}")).await;
        if !caught {
            clients.push(late);
            continue;
        }
        let stopped = world.while_stopped("n2", async {
            let newer = world
                .log_in_with_retries(&anna, &format!("newer{at}"), "n1")
                .await;
            world.node("n2").store_link(FaultProxy::pass);
            newer
        });
        let newer = stopped.await;
        let State::In(_, meanwhile) = newer.state() else {
            panic!("{:?} is not in: {:?}", newer.stamp, newer.state());
        };
        if let State::In(_, r#gen) = late.wait_for_answer().await {
            assert!(r#gen > meanwhile, "it wrote under a lock that it had lost");
        }
        clients.push(newer);
        clients.push(late);
        let history = world.history().unwrap();
        // A pause of the whole machine may have stopped the node before or after that point. Then
        // the attempt is repeated.
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

/// Delays the link between `n2` and its store, and logs a device in on that node. Returns the
/// client, and `true` while the node has its grant and waits for the answer to its read. If that
/// moment was missed, returns `false`, and the link is as before.
async fn log_in_slowly(world: &World, store: &Store, uid: &Uid, device: &str) -> (Client, bool) {
    let node = world.node("n2");
    node.store_link(|wire| wire.delay(STORE_DELAY));
    let mut late = world.client(uid, device, "n2").await;
    let caught = tokio::select! {
        _ = world.wait_for_holder(store, uid, "n2") => true,
        _ = late.wait_for_answer() => false,
    };
    if caught {
        // The answer with the grant and the request of the read are on their way for this time.
        pause(STORE_DELAY * 2).await;
    } else {
        node.store_link(FaultProxy::pass);
    }
    (late, caught)
}

/// Faults between nodes: a node is unreachable for others, or answers late; an answer is lost, and
/// the other node asks again; connections break.
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
        // Where the kick got lost, the node of the older session finds the takeover by itself.
        assert_eq!(old.wait_for_notice().await, Code::Superseded, "{fault}");
        world.node("n2").wire.pass();
        clients.extend([old, newcomer]);
    }
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// Faults between a node and its store: late answers, broken connections, a lost answer, and a
/// store that is unreachable for longer than the node's lease. At the end the node is cut off from
/// its store and from the other node.
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
        let second = world.log_in_with_retries(&uid, "second", "n1").await;
        let third = world.log_in_with_retries(&uid, "third", "n2").await;
        world.node("n2").store_link(FaultProxy::pass);
        clients.extend([first, second, third]);
    }
    for fault in ["no store", "alone"] {
        let (taken, left) = (
            world.uid(&fault.replace(' ', "-")),
            world.uid(&format!("{}-left", &fault[..2])),
        );
        let mut old = world.log_in_with_retries(&taken, "old", "n2").await;
        let mut alone = world.log_in_with_retries(&left, "old", "n2").await;
        let node = world.node("n2");
        node.store_link(FaultProxy::black_hole);
        if fault == "alone" {
            node.wire.black_hole();
        }
        clients.push(world.log_in(&taken, "new", "n1").await);
        // The other node may still kick this session. Otherwise the node itself must notice that
        // its lease has ended.
        let code = old.wait_for_notice().await;
        assert!(
            matches!(code, Code::Superseded | Code::NodeFenced),
            "{fault}: {code:?}"
        );
        assert_eq!(alone.wait_for_notice().await, Code::NodeFenced, "{fault}");
        let node = world.node("n2");
        node.store_link(FaultProxy::pass);
        node.wire.pass();
        clients.extend([old, alone]);
        clients.push(world.log_in_with_retries(&left, "back", "n2").await);
    }
    world.verdict(clients, &[Invariant::I9]).await
}

/// Clients that ignore their notice get no further frame, their frames are refused, and their
/// connections are closed by the node.
pub(crate) async fn deaf_clients(mut world: World) -> Report {
    world.deaf = true;
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let friend = world.log_in(&bob, "bobs", "n2").await;
    let mut clients: Vec<Client> = Vec::new();
    for (at, node) in ["n1", "n2", "n2", "n1"].into_iter().enumerate() {
        let next = world.log_in(&anna, &format!("d{at}"), node).await;
        next.ignore_notice();
        if let Some(old) = clients.last_mut() {
            assert_eq!(old.wait_for_notice().await, Code::Superseded);
            // Sends one message to the account, and one message from its superseded session.
            friend.send(&anna, &format!("{}-to{at}", world.name));
            old.send(&bob, &format!("{}-from{at}", world.name));
            let client = old.stamp.client;
            world
                .wait_until_seen("the refusal", |it| {
                    it.client == client && it.what == What::Refused
                })
                .await;
        }
        clients.push(next);
    }
    for deaf in &clients[..3] {
        let client = deaf.stamp.client;
        world
            .wait_until_seen("the cut", |it| {
                it.client == client && it.what == What::Closed
            })
            .await;
    }
    clients.push(friend);
    let exercised = [Invariant::I8, Invariant::I9, Invariant::I10, Invariant::I11];
    world.verdict(clients, &exercised).await
}

/// One node is stopped, and the lock of another account is held. Logins of an unrelated account
/// take as long as before.
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
        .while_stopped("n2", world.compare_bystander_logins(&quiet, "n1", trouble))
        .await;
    assert!(held.release().await.is_clean());
    store.close().await;
    waits.wait_until_in().await;
    newcomer.wait_until_in().await;
    world
        .verdict(vec![old, waits, newcomer], &[Invariant::I15])
        .await
}

/// The store is restarted. Afterwards each session is live as before, or has got its notice.
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
    clients.push(world.log_in_with_retries(&anna, "tablet", "n2").await);
    // The outage ends when the nodes have found the store again.
    world.rules.store_away = Duration::from_micros(now_us() - away);
    clients.push(world.log_in_with_retries(&bob, "tablet", "n1").await);
    world.verdict(clients, &[]).await
}

pub(crate) async fn start(world: &mut World, nodes: &[&str]) {
    for node in nodes {
        world.start(node).await.unwrap();
    }
}
