//! Messages that get lost or arrive twice, and histories that cannot be checked.

use distlock_checker::{DeviceOutcome, Invariant, Invariant::*, Rules, Seen, What, check};
use distlock_kickout::{Device, Uid};
use serde_json::json;

use crate::builder::{HistoryBuilder, UID, one_login, one_takeover};

#[test]
fn a_reported_success_that_no_node_knows_breaks_i17() {
    let mut built = one_login();
    built.client_saw(3, What::LoginSent).logged_in(3);
    assert!(built.violated().contains(&I17), "{}", built.check());
    let mut built = one_login();
    let id = || "m1".to_owned();
    built
        .client_saw(1, What::Sent { id: id(), to: None })
        .client_saw(
            1,
            What::Outcome {
                id: id(),
                outcome: "written".into(),
                devices: Some(vec![DeviceOutcome {
                    device: Device::new("d1").unwrap(),
                    outcome: "written".into(),
                }]),
            },
        );
    let violated = built.violated();
    assert_eq!(violated, [I17, I18], "delivered to nobody");
}

#[test]
fn a_message_that_arrives_twice_or_gets_lost_breaks_i18() {
    let id = || "m1".to_owned();
    let stored = || What::Outcome {
        id: id(),
        outcome: "stored".into(),
        devices: None,
    };
    let mut built = one_login();
    built
        .client_saw(1, What::Sent { id: id(), to: None })
        .client_saw(1, stored());
    assert!(built.check().is_clean(), "{}", built.check());
    built.client_saw(1, What::Message { id: id() });
    built.client_saw(1, What::Message { id: id() });
    assert_eq!(built.violated(), [I18]);
    let mut built = one_login();
    built.client_saw(1, What::Sent { id: id(), to: None });
    assert_eq!(built.violated(), [I18], "the sender heard nothing");
}

#[test]
fn a_refused_message_that_arrives_breaks_i18() {
    let id = || "m1".to_owned();
    let mut built = one_login();
    built
        .client_saw(1, What::Sent { id: id(), to: None })
        .client_saw(
            1,
            What::Outcome {
                id: id(),
                outcome: "not_allowed".into(),
                devices: None,
            },
        );
    assert!(built.check().is_clean(), "{}", built.check());
    built.client_saw(1, What::Message { id: id() });
    assert_eq!(built.violated(), [I18]);
}

#[test]
fn a_stored_message_may_reach_a_second_session() {
    let got = || What::Message { id: "m".into() };
    let mut built = one_login();
    let kept = json!({"uid": UID, "message": "m"});
    built
        .event("n1", "stored", kept)
        .client_saw(1, got())
        .second_takes_over()
        .client_saw(2, got());
    assert!(built.check().is_clean(), "{}", built.check());
    // A second delivery to the same client is a violation. A second delivery of a message that was
    // not stored is a violation, too.
    built.client_saw(2, got());
    assert_eq!(built.violated(), [I18]);
    let seen = built.history.clients.pop();
    assert!(seen.is_some() && built.check().is_clean());
    built.history.nodes.retain(|event| event.message.is_none());
    assert!(built.violated().contains(&I18), "{}", built.check());
}

#[test]
fn a_stored_message_that_never_arrives_breaks_i18() {
    let id = || "m".to_owned();
    let mut built = one_login();
    built.client_saw(1, What::Sent { id: id(), to: None });
    built.event("n1", "stored", json!({"uid": UID, "message": "m"}));
    let outcome = "stored".into();
    built.client_saw(
        1,
        What::Outcome {
            id: id(),
            outcome,
            devices: None,
        },
    );
    assert!(
        built.check().is_clean(),
        "nobody has come: {}",
        built.check()
    );
    built.second_takes_over();
    assert_eq!(built.violated(), [I18]);
    built.client_saw(2, What::Message { id: id() });
    assert!(built.check().is_clean(), "{}", built.check());
}

/// One of the account's two devices sends a message to the account. `told` has the outcomes that
/// the sender gets. The devices in `told` receive and acknowledge the message.
fn sent_to_both(told: &[(&str, &str)]) -> HistoryBuilder {
    let mut built = one_login();
    let id = || "m".to_owned();
    built.granted("n2", 2).admitted("n2", 2).logged_in(2);
    let to = Some(Uid::new(UID).unwrap());
    built.client_saw(1, What::Sent { id: id(), to });
    for (device, client) in [("d1", 1), ("d2", 2)] {
        if told.iter().any(|(told, _)| *told == device) {
            let node = if client == 1 { "n1" } else { "n2" };
            built.session_event(node, "delivered", client, json!({"message": "m"}));
            built.client_saw(client, What::Message { id: id() });
            built.client_saw(client, What::Acked { id: id() });
        }
    }
    let devices = told.iter().map(|(device, outcome)| DeviceOutcome {
        device: Device::new(*device).unwrap(),
        outcome: (*outcome).to_owned(),
    });
    let devices = Some(devices.collect());
    let outcome = "delivered".into();
    built.client_saw(
        1,
        What::Outcome {
            id: id(),
            outcome,
            devices,
        },
    );
    built
}

/// The invariants that the history violates under a policy that allows two sessions.
fn violated_with_two_devices(built: &HistoryBuilder) -> Vec<Invariant> {
    let mut rules = Rules::default();
    rules.limit = 2;
    check(&built.history, &rules).violated()
}

#[test]
fn a_report_without_a_logged_in_device_breaks_i18() {
    let both = [("d1", "delivered"), ("d2", "delivered")];
    assert_eq!(violated_with_two_devices(&sent_to_both(&both)), []);
    let one = sent_to_both(&both[..1]);
    assert_eq!(
        violated_with_two_devices(&one),
        [I18],
        "the other device was in"
    );
}

#[test]
fn a_delivery_without_an_acknowledgement_breaks_i18() {
    let mut built = sent_to_both(&[("d1", "delivered"), ("d2", "delivered")]);
    let acks = |seen: &Seen| matches!(seen.what, What::Acked { .. });
    let last = built.history.clients.iter().rposition(acks).unwrap();
    built.history.clients.remove(last);
    assert_eq!(violated_with_two_devices(&built), [I18]);
}

#[test]
fn a_missing_node_event_is_reported_as_a_gap_in_the_history() {
    let mut built = one_takeover();
    built.history.nodes.remove(3);
    assert!(built.violated().contains(&Complete));
}

#[test]
fn unreachable_nodes_may_end_a_session_within_a_node_lease() {
    let mut built = one_login();
    built
        .granted("n2", 2)
        .admitted("n2", 2)
        .wait_ms(5000)
        .superseded("n1", 1, 2)
        .closed("n1", 1, "AlreadyGone");
    let mut rules = Rules::default();
    assert_eq!(check(&built.history, &rules).violated(), [I1]);
    rules.reachable = false;
    assert!(check(&built.history, &rules).is_clean());
}
