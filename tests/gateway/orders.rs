//! Orders of operators and intents of clients, across nodes.

use std::{process::Command, time::Duration};

use distlock_checker::{Invariant, Report, Seen, What};
use distlock_harness::eventually_async;
use distlock_kickout::{Code, Uid};

use crate::{
    client::{Client, Hello, State},
    scenarios::start,
    world::{ADMIN_TOKEN, SOON, World, pause},
};

/// An administrator bans an account through a node that does not have the account's session. The
/// ban ends the session, and all nodes deny the account until the ban is lifted.
pub(crate) async fn banned(mut world: World) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut old = world.log_in(&anna, "phone", "n2").await;
    let bystander = world.log_in(&bob, "phone", "n2").await;
    world.give_order("n1", &["ban", anna.as_str(), "--reason", "spam"]);
    assert_eq!(old.wait_for_notice().await, Code::Banned);
    let mut clients = vec![old, bystander];
    for node in ["n1", "n2"] {
        let mut refused = world.client(&anna, "pc", node).await;
        assert_eq!(refused.wait_for_answer().await, State::Out("denied".into()));
        clients.push(refused);
    }
    world.give_order("n2", &["ban", anna.as_str(), "--lift"]);
    clients.push(world.log_in_with_retries(&anna, "pc", "n1").await);
    clients.push(world.log_in_with_retries(&anna, "tablet", "n2").await);
    world.verdict(clients, &[Invariant::I9]).await
}

/// A drained node sends its sessions to another node. No session is lost or doubled, and the node
/// admits nobody until the drain ends.
pub(crate) async fn drained(mut world: World) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let uids: Vec<Uid> = (0..12).map(|at| world.uid(&format!("u{at}"))).collect();
    let mut clients = Vec::new();
    for uid in &uids {
        clients.push(world.log_in(uid, "phone", "n2").await);
    }
    world.give_order("n2", &["drain", "--rate", "20"]);
    let mut moved = Vec::new();
    for client in &mut clients {
        assert_eq!(client.wait_for_notice().await, Code::Draining);
        moved.push(
            world
                .log_in_with_retries(&client.stamp.uid, "phone", "n1")
                .await,
        );
    }
    let mut refused = world.client(&uids[0], "pc", "n2").await;
    let answer = refused.wait_for_answer().await;
    assert!(matches!(answer, State::Out(_)), "{answer:?}");
    // The drain has not disturbed the sessions that moved.
    for client in &moved {
        assert!(
            matches!(client.state(), State::In(..)),
            "{:?}",
            client.stamp
        );
    }
    world.give_order("n2", &["drain", "--undo"]);
    clients.push(refused);
    clients.extend(moved);
    clients.push(world.log_in_with_retries(&uids[1], "pc", "n2").await);
    world.verdict(clients, &[Invariant::I9]).await
}

/// A session whose connection broke is resumed on another node. A session that was ended cannot be
/// resumed, and its client can only take over.
pub(crate) async fn resumed(mut world: World) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let mut first = world.log_in(&anna, "phone", "n1").await;
    let token = first.resume_token();
    // The connection breaks without a logout, as with an empty battery.
    drop(first);
    first = world
        .client_with(&anna, "phone", "n2", Hello::resume(&token))
        .await;
    first.wait_until_in().await;
    let token = first.resume_token();
    let mut second = world.log_in(&anna, "pc", "n1").await;
    assert_eq!(first.wait_for_notice().await, Code::Superseded);
    let mut late = world
        .client_with(&anna, "phone", "n2", Hello::resume(&token))
        .await;
    assert_eq!(late.wait_for_answer().await, State::Out("denied".into()));
    assert!(
        matches!(second.state(), State::In(..)),
        "{:?}",
        second.stamp
    );
    let mut third = world
        .client_with(&anna, "phone", "n2", Hello::takeover())
        .await;
    third.wait_until_in().await;
    assert_eq!(second.wait_for_notice().await, Code::Superseded);
    let clients: Vec<Client> = vec![first, second, late, third];
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// Devices on plain TCP and on WebSockets take over from each other on both nodes, and get
/// messages.
pub(crate) async fn two_fronts(mut world: World) -> Report {
    world.set("tcp_listen", "127.0.0.1:0");
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut friend = world.client_with(&bob, "bobs", "n1", Hello::framed()).await;
    friend.wait_until_in().await;
    let mut clients: Vec<Client> = Vec::new();
    let steps = [
        ("phone", "n1", Hello::login()),
        ("watch", "n2", Hello::framed()),
        ("radio", "n1", Hello::framed()),
        ("pc", "n2", Hello::login()),
        ("radio", "n2", Hello::framed()),
    ];
    for (at, (device, node, hello)) in steps.into_iter().enumerate() {
        let mut next = world.client_with(&anna, device, node, hello).await;
        next.wait_until_in().await;
        if let Some(old) = clients.last_mut() {
            assert_eq!(old.wait_for_notice().await, Code::Superseded);
        }
        friend.send(&anna, &format!("{}-m{at}", world.name));
        clients.push(next);
    }
    clients.push(friend);
    let exercised = [Invariant::I6, Invariant::I9, Invariant::I11, Invariant::I18];
    world.verdict(clients, &exercised).await
}

/// With a limit of two sessions, the third login ends the session that was silent longest, even if
/// that session is the newer one.
pub(crate) async fn idle_goes_first(mut world: World) -> Report {
    world.set("policy", "n_total(2)");
    world.set("on_exceed", "evict_idle");
    world.rules.limit = 2;
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let busy = world.log_in(&anna, "phone", "n1").await;
    let mut idle = world.log_in(&anna, "pc", "n2").await;
    pause(Duration::from_secs(1)).await;
    busy.send(&bob, &format!("{}-alive", world.name));
    let sent = |history: &distlock_checker::History| {
        let outcome = |seen: &Seen| matches!(seen.what, What::Outcome { .. });
        history.clients.iter().any(outcome)
    };
    eventually_async("the busy one's answer", SOON, || async {
        sent(&world.history().unwrap()).then_some(())
    })
    .await
    .unwrap();
    let third = world.log_in(&anna, "tablet", "n1").await;
    assert_eq!(idle.wait_for_notice().await, Code::Superseded);
    assert!(matches!(busy.state(), State::In(..)), "{:?}", busy.stamp);
    let clients = vec![busy, idle, third];
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

impl World {
    /// Gives an order to a node with the command-line tool, as an operator does.
    pub(crate) fn give_order(&self, node: &str, words: &[&str]) {
        let admin = format!("http://{}", self.node(node).admin);
        let mut command = Command::new(env!("CARGO_BIN_EXE_distlock"));
        command.arg("gateway").args(words).args(["--admin", &admin]);
        command.env("DISTLOCK_GATEWAY_ADMIN_TOKEN", ADMIN_TOKEN);
        let output = tokio::task::block_in_place(|| command.output()).unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}
