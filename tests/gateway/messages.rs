//! The outcomes of acknowledged messages, and of messages to accounts with several devices.

use std::collections::BTreeMap;

use distlock_checker::{Invariant, Report, What};
use distlock_harness::eventually_async;
use distlock_kickout::Uid;

use crate::{
    client::{Client, Hello},
    scenarios::start,
    world::{SOON, World},
};

/// A client that does not acknowledge a message may have lost it. Its messages are kept and come
/// again after a resume, and no more after their acknowledgement.
pub(crate) async fn acknowledged(mut world: World) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut sender = world.client_with(&bob, "bobs", "n2", acks()).await;
    sender.wait_until_in().await;
    let mut phone = world.client_with(&anna, "phone", "n1", acks()).await;
    phone.wait_until_in().await;
    world
        .send_and_expect(&sender, &anna, "m1", "delivered", &[("phone", "delivered")])
        .await;
    phone.stop_acknowledging();
    for id in ["m2", "m3"] {
        world
            .send_and_expect(&sender, &anna, id, "stored", &[("phone", "stored")])
            .await;
    }
    // The connection breaks, and the client resumes on another node.
    let resume = phone.resume_token();
    drop(phone);
    let hello = Hello::resume(&resume).acks();
    let mut resumed = world.client_with(&anna, "phone", "n2", hello).await;
    resumed.wait_until_in().await;
    for id in ["m2", "m3"] {
        world.wait_for_copies(id, 2).await;
    }
    world
        .send_and_expect(&sender, &anna, "m4", "delivered", &[("phone", "delivered")])
        .await;
    // Acknowledged messages do not come again. The fifth message is sent after the kept messages.
    resumed.leave();
    let mut again = world.client_with(&anna, "phone", "n1", acks()).await;
    again.wait_until_in().await;
    world
        .send_and_expect(&sender, &anna, "m5", "delivered", &[("phone", "delivered")])
        .await;
    for (id, times) in [("m1", 1), ("m2", 2), ("m3", 2), ("m4", 1)] {
        assert_eq!(world.count_copies(id), times, "{id}");
    }
    let clients = vec![sender, resumed, again];
    world.verdict(clients, &[Invariant::I18]).await
}

/// An account has three devices on two nodes. A message goes to all of them, unless it names a
/// device or a class.
pub(crate) async fn several_devices(mut world: World) -> Report {
    world.set("policy", "n_total(3)");
    world.rules.limit = 3;
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut sender = world.client_with(&bob, "bobs", "n2", acks()).await;
    sender.wait_until_in().await;
    let mut devices = Vec::new();
    for (device, node, hello) in [
        ("phone", "n1", acks().class("mobile")),
        ("pc", "n2", acks()),
        ("tablet", "n2", Hello::login().class("mobile")),
    ] {
        let mut client = world.client_with(&anna, device, node, hello).await;
        client.wait_until_in().await;
        devices.push(client);
    }
    let all = [
        ("phone", "delivered"),
        ("pc", "delivered"),
        ("tablet", "written"),
    ];
    world
        .send_and_expect(&sender, &anna, "m1", "written", &all)
        .await;
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
        world.expect_device_outcomes(id, outcome, told).await;
    }
    // One device hangs. Only that device gets the message again.
    let pc = devices.remove(1);
    pc.stop_acknowledging();
    let told = [
        ("phone", "delivered"),
        ("pc", "stored"),
        ("tablet", "written"),
    ];
    world
        .send_and_expect(&sender, &anna, "m6", "stored", &told)
        .await;
    let resume = pc.resume_token();
    drop(pc);
    let hello = Hello::resume(&resume).acks();
    let mut resumed = world.client_with(&anna, "pc", "n1", hello).await;
    resumed.wait_until_in().await;
    world.wait_for_copies("m6", 4).await;
    world
        .send_and_expect(&sender, &anna, "m7", "written", &all)
        .await;
    assert_eq!(world.count_copies("m5"), 0, "the watch was never there");
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

    async fn send_and_expect(
        &self,
        sender: &Client,
        to: &Uid,
        id: &str,
        outcome: &str,
        devices: &[(&str, &str)],
    ) {
        sender.send(to, &self.id(id));
        self.expect_device_outcomes(id, outcome, devices).await;
    }

    /// Waits until the sender has the outcome of a message, and compares it with the expected one.
    async fn expect_device_outcomes(&self, id: &str, outcome: &str, devices: &[(&str, &str)]) {
        let wanted = self.id(id);
        let heard = eventually_async("the outcome", SOON, || async {
            let seen = self.shared.seen.lock();
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
    async fn wait_for_copies(&self, id: &str, times: usize) {
        let what = format!("message {id} for time {times}");
        let received = || async { (self.count_copies(id) == times).then_some(()) };
        eventually_async(&what, SOON, received).await.unwrap();
    }

    fn count_copies(&self, id: &str) -> usize {
        let wanted = self.id(id);
        let seen = self.shared.seen.lock();
        let it = |what: &What| matches!(what, What::Message { id } if *id == wanted);
        seen.iter().filter(|seen| it(&seen.what)).count()
    }
}
