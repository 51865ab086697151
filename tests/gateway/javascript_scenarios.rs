//! What the JavaScript client does when its session is taken over, its node drains or dies, its
//! network is gone, its machine sleeps, and its acknowledgements are lost.

use std::time::Duration;

use anyhow::{Result, ensure};
use distlock_harness::{Direction, FaultProxy, Signal, eventually_async};
use distlock_kickout::Uid;
use serde_json::{Value, json};

use crate::{
    http::{get, post},
    javascript::{Device, Place},
    world::{SEND_TOKEN, SOON, World, pause},
};

impl World {
    fn front(&self, node: &str) -> String {
        format!("ws://{}/ws", self.node(node).listen)
    }

    /// Sends a message of a server, and returns its outcome.
    async fn server_sends(&self, to: &Uid, id: &str, body: Value) -> String {
        let message = json!({"from": "the shop", "to": to, "id": id, "body": body});
        let admin = self.node("n2").admin;
        let answer = post(admin, "/v1/send", SEND_TOKEN, &message).await;
        answer["outcome"].as_str().unwrap_or_default().to_owned()
    }
}

async fn start_two(world: &mut World) -> Result<()> {
    world.start("n1").await?;
    world.start("n2").await
}

/// The session has made one connection only.
async fn stayed_away(device: &Device<'_>) -> Result<()> {
    let made = device.all("connects").await?;
    ensure!(made.len() == 1, "it came back: {made:?}");
    ensure!(device.all("reconnecting").await?.is_empty(), "{made:?}");
    Ok(())
}

/// The session came back as the session that it was: with `resume`, and on this node.
async fn resumed_on(device: &Device<'_>, node: &str) -> Result<()> {
    let open = device.nth("open", 2).await?;
    ensure!(open["info"]["node"] == node, "{open}");
    let logins = device.frames("out", "login").await?;
    let intents: Vec<_> = logins.iter().map(|it| &it["intent"]).collect();
    ensure!(intents[0] == "login", "{intents:?}");
    ensure!(intents[1..].iter().all(|it| *it == "resume"), "{intents:?}");
    Ok(())
}

/// Sessions that end with the codes 1, 2, 3 and 5, and a login that is denied. The clients know
/// both nodes, and connect to neither again.
pub(crate) async fn takeovers(place: &Place, mut world: World) -> Result<()> {
    start_two(&mut world).await?;
    let anna = world.uid("anna");
    let (first, second) = (world.front("n1"), world.front("n2"));
    let one = [first.clone(), second.clone()];
    let other = [second, first];
    let mut devices = Vec::new();
    for (device, addresses, code) in [
        ("phone", &one, None),
        ("pc", &other, Some(1)),
        ("pc", &one, Some(2)),
    ] {
        let next = place.start(&anna, device, addresses, json!({})).await?;
        next.nth("open", 1).await?;
        if let (Some(code), Some(old)) = (code, devices.last_mut()) {
            let end = Device::ended(old).await?;
            ensure!(end["code"] == code && end["retry"] == "never", "{end}");
            ensure!(end["byDevice"] == "pc", "{end}");
        }
        devices.push(next);
    }
    world.give_order(
        "n2",
        &["kick", "--uid", anna.as_str(), "--reason", "enough"],
    );
    let end = devices.last_mut().expect("three").ended().await?;
    ensure!(end["code"] == 3 && end["reason"] == "enough", "{end}");

    let mut banned = place.start(&anna, "tv", &one, json!({})).await?;
    banned.nth("open", 1).await?;
    world.give_order("n2", &["ban", anna.as_str()]);
    let end = banned.ended().await?;
    ensure!(end["code"] == 5 && end["retry"] == "never", "{end}");
    let mut denied = place.start(&anna, "tv", &one, json!({})).await?;
    let end = denied.ended().await?;
    ensure!(end["code"] == 5, "{end}");
    ensure!(denied.all("open").await?.is_empty(), "it was let in");

    for device in devices.iter().chain([&banned, &denied]) {
        stayed_away(device).await?;
    }
    world.check_nodes().await?;
    Ok(())
}

/// A node drains, and its session goes on at the other node at once.
pub(crate) async fn drained(place: &Place, mut world: World) -> Result<()> {
    start_two(&mut world).await?;
    let anna = world.uid("anna");
    let both = [world.front("n1"), world.front("n2")];
    let device = place.start(&anna, "phone", &both, json!({})).await?;
    device.nth("open", 1).await?;
    world.give_order("n1", &["drain", "--rate", "20"]);
    let why = device.nth("reconnecting", 1).await?;
    ensure!(why["code"] == 6 && why["state"] == "waiting", "{why}");
    resumed_on(&device, "js-drained-n2").await?;
    // A node spreads its clients over 1 s, and the client adds up to half of that.
    ensure!(
        why["delay"].as_f64().is_some_and(|it| it <= 1500.0),
        "{why}"
    );
    world.check_nodes().await?;
    Ok(())
}

/// A node is killed, and its session goes on at the other node.
pub(crate) async fn killed(place: &Place, mut world: World) -> Result<()> {
    start_two(&mut world).await?;
    let anna = world.uid("anna");
    let both = [world.front("n1"), world.front("n2")];
    let device = place.start(&anna, "phone", &both, json!({})).await?;
    device.nth("open", 1).await?;
    world.kill("n1");
    let why = device.nth("reconnecting", 1).await?;
    ensure!(why["code"].is_null(), "{why}");
    resumed_on(&device, "js-killed-n2").await?;
    world.check_nodes().await?;
    Ok(())
}

/// The network is gone for 5 s, and for longer than 60 s, with all times divided by ten: the
/// heartbeat is 6 s instead of 60 s, and the client's patience 1 s instead of 10 s.
pub(crate) async fn gaps(place: &Place, mut world: World) -> Result<()> {
    const SHORT: Duration = Duration::from_millis(500);
    const LONG: Duration = Duration::from_secs(6);
    world.set("heartbeat", "6s");
    start_two(&mut world).await?;
    let (brief, lasting) = (world.uid("brief"), world.uid("lasting"));
    let mut wires = Vec::new();
    let mut devices = Vec::new();
    for uid in [&brief, &lasting] {
        let wire = FaultProxy::start(world.node("n1").listen).await?;
        let through = [format!("ws://{}/ws", wire.address())];
        let options = json!({"timeout": 1000});
        let device = place.start(uid, "phone", &through, options).await?;
        device.nth("open", 1).await?;
        wires.push(wire);
        devices.push(device);
    }

    wires[1].black_hole();
    let gone = tokio::time::Instant::now();
    // TCP sends again what was lost in a short gap: nothing is lost, it comes later.
    for direction in [Direction::ToServer, Direction::ToClient] {
        wires[0].stop(direction);
    }
    let meanwhile = world.server_sends(&brief, "m1", json!({}));
    let (outcome, ()) = tokio::join!(meanwhile, async {
        pause(SHORT).await;
        wires[0].pass();
    });
    // An acknowledgement that takes longer than 300 ms may be too late: then it comes again.
    ensure!(["delivered", "stored"].contains(&&*outcome), "{outcome}");
    devices[0].nth("handled", 1).await?;

    // The node notices the silence after one heartbeat, and the client before that.
    let why = devices[1].nth("reconnecting", 1).await?;
    ensure!(why["code"].is_null() && why["state"] == "waiting", "{why}");
    eventually_async("the node ends the session", SOON, || async {
        let metrics = get(world.node("n1").admin, "/metrics").await;
        let ended = r#"distlock_session_ends_total{code="7"} 1"#;
        metrics.contains(ended).then_some(())
    })
    .await?;
    pause(LONG.saturating_sub(gone.elapsed())).await;
    ensure!(devices[1].all("open").await?.len() == 1, "through the gap");
    wires[1].pass();
    resumed_on(&devices[1], "js-gaps-n1").await?;
    stayed_away(&devices[0]).await?;
    world.check_nodes().await?;
    Ok(())
}

/// The clients' machine sleeps for longer than the heartbeat. Meanwhile another device takes over
/// one of two accounts.
pub(crate) async fn slept(place: &Place, mut world: World) -> Result<()> {
    const HEARTBEAT: Duration = Duration::from_secs(3);
    world.set("heartbeat", "3s");
    start_two(&mut world).await?;
    let (alone, taken) = (world.uid("alone"), world.uid("taken"));
    let both = [world.front("n1"), world.front("n2")];
    let mut devices = Vec::new();
    for uid in [&alone, &taken] {
        let options = json!({"timeout": 500});
        let device = place.start(uid, "laptop", &both, options).await?;
        device.nth("open", 1).await?;
        devices.push(device);
    }
    let all: Vec<_> = devices.iter().collect();
    place.signal(&all, Signal::STOP)?;
    let phone = world.log_in(&taken, "phone", "n2").await;
    // What is buffered meanwhile must not count as a sign of life.
    world.server_sends(&alone, "m1", json!({})).await;
    pause(HEARTBEAT + Duration::from_secs(1)).await;
    place.signal(&all, Signal::CONT)?;

    let woke = devices[0].nth("woke", 1).await?;
    ensure!(woke["state"] != "open", "{woke}");
    let back = devices[0].nth("open", 2).await?;
    ensure!(back["state"] == "open", "{back}");
    devices[0].nth("handled", 1).await?;
    let end = devices[1].ended().await?;
    ensure!(end["code"] == 1, "{end}");
    // If the notice was read first, nothing else has noticed the sleep.
    let woke = devices[1].all("woke").await?;
    ensure!(woke.iter().all(|it| it["state"] != "open"), "{woke:?}");
    ensure!(devices[1].all("open").await?.len() == 1, "{end}");
    phone.leave();
    world.check_nodes().await?;
    Ok(())
}

/// The acknowledgement of a message is lost, with the connection. The node sends the message
/// again, and the client acknowledges it, but does not show it again.
pub(crate) async fn lost_acknowledgement(place: &Place, mut world: World) -> Result<()> {
    start_two(&mut world).await?;
    let anna = world.uid("anna");
    let wire = FaultProxy::start(world.node("n1").listen).await?;
    let through = [format!("ws://{}/ws", wire.address())];
    let device = place.start(&anna, "phone", &through, json!({})).await?;
    device.nth("open", 1).await?;
    let sent = world.server_sends(&anna, "m1", json!({})).await;
    ensure!(sent == "delivered", "{sent}");

    wire.stop(Direction::ToServer);
    let sent = world.server_sends(&anna, "m2", json!({})).await;
    ensure!(sent == "stored", "{sent}");
    ensure!(device.frames("out", "ack").await?.len() == 2, "of m2");
    wire.reset();
    // The acknowledgement is gone with the connection before anything passes again.
    device.nth("reconnecting", 1).await?;
    wire.pass();
    resumed_on(&device, "js-lost_acknowledgement-n1").await?;
    eventually_async("both acknowledgements of m2", SOON, || async {
        (device.frames("out", "ack").await.ok()?.len() == 3).then_some(())
    })
    .await?;
    let sent = world.server_sends(&anna, "m3", json!({})).await;
    ensure!(sent == "delivered", "{sent}");
    let ids = |events: Vec<Value>| -> Vec<String> {
        let ids = events
            .iter()
            .map(|it| it["id"].as_str().unwrap_or_default());
        ids.map(str::to_owned).collect()
    };
    let came = ids(device.frames("in", "message").await?);
    ensure!(came == ["m1", "m2", "m2", "m3"], "{came:?}");
    let shown = ids(device.all("message").await?);
    ensure!(shown == ["m1", "m2", "m3"], "{shown:?}");
    world.check_nodes().await?;
    Ok(())
}

/// A callback that fails acknowledges nothing: the message comes again, before those after it. A
/// session that sends and then closes itself leaves nothing.
pub(crate) async fn failed_callbacks(place: &Place, mut world: World) -> Result<()> {
    start_two(&mut world).await?;
    let anna = world.uid("anna");
    let both = [world.front("n1"), world.front("n2")];
    let mut device = place.start(&anna, "phone", &both, json!({})).await?;
    device.nth("open", 1).await?;
    let first = world.server_sends(&anna, "m1", json!({"fail": 2}));
    let second = world.server_sends(&anna, "m2", json!({}));
    tokio::join!(first, second);
    for number in [1, 2] {
        let why = device.nth("reconnecting", number).await?;
        ensure!(why["reason"] == "onMessage failed", "{why}");
        ensure!(why["error"] == format!("failure {number}"), "{why}");
    }
    device.nth("handled", 2).await?;
    let shown = device.all("handled").await?;
    let mut shown: Vec<_> = shown.iter().filter_map(|it| it["id"].as_str()).collect();
    shown.sort_unstable();
    ensure!(shown == ["m1", "m2"], "{shown:?}");

    let send = json!({"send": {"to": anna, "text": "hello"}});
    world.server_sends(&anna, "m3", send).await;
    let sent = device.nth("sent", 1).await?;
    ensure!(sent["outcome"] == "delivered", "{sent}");
    ensure!(sent["devices"][0]["device"] == "phone", "{sent}");
    world
        .server_sends(&anna, "m5", json!({"close": true}))
        .await;
    let end = device.ended().await?;
    ensure!(end["code"].is_null(), "{end}");
    eventually_async("the logout", SOON, || async {
        let seen = get(world.node("n1").admin, &format!("/v1/users/{anna}")).await;
        seen.contains(r#""slots":{}"#).then_some(())
    })
    .await?;
    world.check_nodes().await?;
    Ok(())
}
