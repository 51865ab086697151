//! The outcomes of messages: acknowledged ones, and those to accounts with several devices.

use std::collections::BTreeMap;

use distlock_checker::{Invariant, Report, What};
use distlock_harness::eventually_async;
use distlock_kickout::Uid;

use crate::{
    client::{Client, Hello},
    scenarios::start,
    world::{SOON, World},
};

/// A client that reads and does not acknowledge has no message for certain: its messages are kept,
/// come again after a resume, and no more after their acknowledgement.
pub(crate) async fn acknowledged(mut world: World) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut sender = world.client_with(&bob, "bobs", "n2", acks()).await;
    sender.is_in().await;
    let mut phone = world.client_with(&anna, "phone", "n1", acks()).await;
    phone.is_in().await;
    world
        .sends(&sender, &anna, "m1", "delivered", &[("phone", "delivered")])
        .await;
    phone.holds();
    for id in ["m2", "m3"] {
        world
            .sends(&sender, &anna, id, "stored", &[("phone", "stored")])
            .await;
    }
    // The network is gone, and the client comes back elsewhere.
    let resume = phone.resume_token();
    drop(phone);
    let hello = Hello::resume(&resume).acks();
    let mut resumed = world.client_with(&anna, "phone", "n2", hello).await;
    resumed.is_in().await;
    for id in ["m2", "m3"] {
        world.received(id, 2).await;
    }
    world
        .sends(&sender, &anna, "m4", "delivered", &[("phone", "delivered")])
        .await;
    // Acknowledged messages do not come again. The fifth message comes after the kept ones.
    resumed.leave();
    let mut again = world.client_with(&anna, "phone", "n1", acks()).await;
    again.is_in().await;
    world
        .sends(&sender, &anna, "m5", "delivered", &[("phone", "delivered")])
        .await;
    for (id, times) in [("m1", 1), ("m2", 2), ("m3", 2), ("m4", 1)] {
        assert_eq!(world.times(id), times, "{id}");
    }
    let clients = vec![sender, resumed, again];
    world.verdict(clients, &[Invariant::I18]).await
}

/// Three devices of an account on two nodes: a message is for all of them, unless it names one or a
/// class.
pub(crate) async fn several_devices(mut world: World) -> Report {
    world.set("policy", "n_total(3)");
    world.rules.limit = 3;
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut sender = world.client_with(&bob, "bobs", "n2", acks()).await;
    sender.is_in().await;
    let mut devices = Vec::new();
    for (device, node, hello) in [
        ("phone", "n1", acks().class("mobile")),
        ("pc", "n2", acks()),
        ("tablet", "n2", Hello::login().class("mobile")),
    ] {
        let mut client = world.client_with(&anna, device, node, hello).await;
        client.is_in().await;
        devices.push(client);
    }
    let all = [
        ("phone", "delivered"),
        ("pc", "delivered"),
        ("tablet", "written"),
    ];
    world.sends(&sender, &anna, "m1", "written", &all).await;
    for (id, only, outcome, told) in [
        ("m2", ("to_device", "pc"), "delivered", &all[1..2]),
        ("m3", ("to_device", "tablet"), "written", &all[2..]),
        (
            "m4",
            ("to_class", "mobile"),
            "written",
            &[all[0], all[2]][..],
        ),
        ("m5", ("to_device", "watch"), "stored", &[]),
    ] {
        sender.send_only(&anna, only, &world.id(id));
        world.heard(id, outcome, told).await;
    }
    // One of them hangs: it alone gets the message again.
    let pc = devices.remove(1);
    pc.holds();
    let told = [
        ("phone", "delivered"),
        ("pc", "stored"),
        ("tablet", "written"),
    ];
    world.sends(&sender, &anna, "m6", "stored", &told).await;
    let resume = pc.resume_token();
    drop(pc);
    let hello = Hello::resume(&resume).acks();
    let mut resumed = world.client_with(&anna, "pc", "n1", hello).await;
    resumed.is_in().await;
    world.received("m6", 4).await;
    world.sends(&sender, &anna, "m7", "written", &all).await;
    assert_eq!(world.times("m5"), 0, "the watch was never there");
    devices.extend([resumed, sender]);
    world.verdict(devices, &[Invariant::I18]).await
}

fn acks() -> Hello {
    Hello::login().acks()
}

impl World {
    pub(crate) fn id(&self, id: &str) -> String {
        format!("{}-{id}", self.name)
    }

    async fn sends(
        &self,
        sender: &Client,
        to: &Uid,
        id: &str,
        outcome: &str,
        devices: &[(&str, &str)],
    ) {
        sender.send(to, &self.id(id));
        self.heard(id, outcome, devices).await;
    }

    /// Waits until the sender has the outcome of a message, and compares it with the expected one.
    async fn heard(&self, id: &str, outcome: &str, devices: &[(&str, &str)]) {
        let wanted = self.id(id);
        let heard = eventually_async("the outcome", SOON, || async {
            let seen = self.shared.seen.lock().unwrap();
            seen.iter().find_map(|seen| match &seen.what {
                What::Outcome {
                    id,
                    outcome,
                    devices,
                } if *id == wanted => Some((outcome.clone(), devices.clone().unwrap())),
                _ => None,
            })
        });
        let (heard, each) = heard.await.unwrap();
        let each: BTreeMap<_, _> = each
            .into_iter()
            .map(|it| (it.device.to_string(), it.outcome))
            .collect();
        let devices = devices
            .iter()
            .map(|(device, outcome)| ((*device).to_owned(), (*outcome).to_owned()))
            .collect();
        assert_eq!((heard.as_str(), each), (outcome, devices), "{id}");
    }

    /// Waits until a message was received this many times.
    async fn received(&self, id: &str, times: usize) {
        let what = format!("message {id} for time {times}");
        let received = || async { (self.times(id) == times).then_some(()) };
        eventually_async(&what, SOON, received).await.unwrap();
    }

    fn times(&self, id: &str) -> usize {
        let wanted = self.id(id);
        let seen = self.shared.seen.lock().unwrap();
        let it = |what: &What| matches!(what, What::Message { id } if *id == wanted);
        seen.iter().filter(|seen| it(&seen.what)).count()
    }
}
