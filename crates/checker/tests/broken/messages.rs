//! Messages that get lost or arrive twice, and histories that cannot be checked.

use distlock_checker::{DeviceOutcome, Invariant, Invariant::*, Rules, Seen, What, check};
use distlock_kickout::{Device, Uid};
use serde_json::json;

use crate::play::{Play, UID, first, honest};

#[test]
fn a_success_that_was_none() {
    let mut play = first();
    play.client(3, What::LoginSent).in_(3);
    assert!(play.violated().contains(&I17), "{}", play.check());
    let mut play = first();
    let id = || "m1".to_owned();
    play.client(1, What::Sent { id: id(), to: None }).client(
        1,
        What::Outcome {
            id: id(),
            outcome: "delivered".into(),
            devices: None,
        },
    );
    let violated = play.violated();
    assert_eq!(violated, [I17, I18], "delivered to nobody");
}

#[test]
fn a_message_that_comes_twice_or_gets_lost() {
    let id = || "m1".to_owned();
    let stored = || What::Outcome {
        id: id(),
        outcome: "stored".into(),
        devices: None,
    };
    let mut play = first();
    play.client(1, What::Sent { id: id(), to: None })
        .client(1, stored());
    assert!(play.check().is_clean(), "{}", play.check());
    play.client(1, What::Message { id: id() });
    play.client(1, What::Message { id: id() });
    assert_eq!(play.violated(), [I18]);
    let mut play = first();
    play.client(1, What::Sent { id: id(), to: None });
    assert_eq!(play.violated(), [I18], "the sender heard nothing");
}

#[test]
fn a_refused_message_that_goes_somewhere() {
    let id = || "m1".to_owned();
    let mut play = first();
    play.client(1, What::Sent { id: id(), to: None }).client(
        1,
        What::Outcome {
            id: id(),
            outcome: "not_allowed".into(),
            devices: None,
        },
    );
    assert!(play.check().is_clean(), "{}", play.check());
    play.client(1, What::Message { id: id() });
    assert_eq!(play.violated(), [I18]);
}

#[test]
fn a_kept_message_that_is_handed_out_again() {
    let got = || What::Message { id: "m".into() };
    let mut play = first();
    let kept = json!({"uid": UID, "message": "m"});
    play.event("n1", "stored", kept)
        .client(1, got())
        .second_takes_over()
        .client(2, got());
    assert!(play.check().is_clean(), "{}", play.check());
    // A second delivery to one client is a violation, and so is one of a message that was never
    // stored.
    play.client(2, got());
    assert_eq!(play.violated(), [I18]);
    let seen = play.history.clients.pop();
    assert!(seen.is_some() && play.check().is_clean());
    play.history.nodes.retain(|event| event.message.is_none());
    assert!(play.violated().contains(&I18), "{}", play.check());
}

#[test]
fn a_kept_message_that_never_comes() {
    let id = || "m".to_owned();
    let mut play = first();
    play.client(1, What::Sent { id: id(), to: None });
    play.event("n1", "stored", json!({"uid": UID, "message": "m"}));
    let outcome = "stored".into();
    play.client(
        1,
        What::Outcome {
            id: id(),
            outcome,
            devices: None,
        },
    );
    assert!(play.check().is_clean(), "nobody has come: {}", play.check());
    play.second_takes_over();
    assert_eq!(play.violated(), [I18]);
    play.client(2, What::Message { id: id() });
    assert!(play.check().is_clean(), "{}", play.check());
}

/// A message to the account that one of its two devices has sent.
fn sent_to_both(told: &[(&str, &str)]) -> Play {
    let mut play = first();
    let id = || "m".to_owned();
    play.granted("n2", 2).admitted("n2", 2).in_(2);
    let to = Some(Uid::new(UID).unwrap());
    play.client(1, What::Sent { id: id(), to });
    for (device, client) in [("d1", 1), ("d2", 2)] {
        if told.iter().any(|(told, _)| *told == device) {
            let node = if client == 1 { "n1" } else { "n2" };
            play.of(node, "delivered", client, json!({"message": "m"}));
            play.client(client, What::Message { id: id() });
            play.client(client, What::Acked { id: id() });
        }
    }
    let devices = told.iter().map(|(device, outcome)| DeviceOutcome {
        device: Device::new(*device).unwrap(),
        outcome: (*outcome).to_owned(),
    });
    let devices = Some(devices.collect());
    let outcome = "delivered".into();
    play.client(
        1,
        What::Outcome {
            id: id(),
            outcome,
            devices,
        },
    );
    play
}

/// The violations of two sessions of one account, under a policy that allows several.
fn violated(play: &Play) -> Vec<Invariant> {
    let mut rules = Rules::default();
    rules.limit = 2;
    check(&play.history, &rules).violated()
}

#[test]
fn a_message_that_not_every_device_gets() {
    let both = [("d1", "delivered"), ("d2", "delivered")];
    assert_eq!(violated(&sent_to_both(&both)), []);
    let one = sent_to_both(&both[..1]);
    assert_eq!(violated(&one), [I18], "the other device was in");
}

#[test]
fn a_message_that_nobody_acknowledged() {
    let mut play = sent_to_both(&[("d1", "delivered"), ("d2", "delivered")]);
    let acks = |seen: &Seen| matches!(seen.what, What::Acked { .. });
    let last = play.history.clients.iter().rposition(acks).unwrap();
    play.history.clients.remove(last);
    assert_eq!(violated(&play), [I18]);
}

#[test]
fn a_history_with_a_gap() {
    let mut play = honest();
    play.history.nodes.remove(3);
    assert!(play.violated().contains(&Complete));
}

#[test]
fn the_rules_give_time_where_nodes_cannot_reach_each_other() {
    let mut play = first();
    play.granted("n2", 2)
        .admitted("n2", 2)
        .after(5000)
        .superseded("n1", 1, 2)
        .closed("n1", 1, "AlreadyGone");
    let mut rules = Rules::default();
    assert_eq!(check(&play.history, &rules).violated(), [I1]);
    rules.reachable = false;
    assert!(check(&play.history, &rules).is_clean());
}
