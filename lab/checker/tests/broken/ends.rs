//! Sessions that do not end, end twice, or end without a notice; dead sessions and bystanders.

use distlock_checker::{Fact, Invariant::*, Rules, What, check};
use distlock_kickout::{NodeId, Uid};
use serde_json::json;

use crate::builder::{HistoryBuilder, UID, kick_id, one_login, one_takeover, session_id};

#[test]
fn a_superseded_session_that_still_receives_breaks_i8() {
    let id = || "m".to_owned();
    let outcome = || What::Outcome {
        id: id(),
        outcome: "stored".into(),
        devices: None,
    };
    for got in [What::Message { id: id() }, outcome()] {
        let mut built = one_takeover();
        built.client_saw(1, got);
        assert!(built.violated().contains(&I8), "{}", built.check());
    }
    let mut built = one_takeover();
    built.logged_in(1);
    assert!(built.violated().contains(&I8), "{}", built.check());
    // The client gets no notice. A frame that was written before the session's end may arrive a
    // little later, but not much later.
    for (later, violated) in [(100, vec![]), (5000, vec![I8])] {
        let mut built = one_login();
        built
            .client_saw(1, What::Sent { id: id(), to: None })
            .granted("n2", 2)
            .superseded("n1", 1, 2)
            .admitted("n2", 2)
            .closed("n1", 1, "AlreadyGone")
            .wait_ms(later)
            .client_saw(1, outcome());
        assert_eq!(built.violated(), violated, "{}", built.check());
        built.history.facts.push(Fact::Paused {
            node: NodeId::new("n1").unwrap(),
            from_us: 0,
            to_us: built.at,
        });
        assert!(built.check().is_clean(), "{}", built.check());
    }
    let mut built = one_takeover();
    let late = json!({"uid": UID, "session": session_id(1), "result": "message m delivered"});
    built.wait_ms(5000).event("n2", "delivered", late);
    assert_eq!(built.violated(), [I8]);
    // With strict confirmation, this login is admitted while the older session is still active.
    let mut built = one_login();
    built
        .granted("n2", 2)
        .admitted("n2", 2)
        .superseded("n1", 1, 2)
        .closed("n1", 1, "AlreadyGone");
    let mut rules = Rules::default();
    assert!(check(&built.history, &rules).is_clean());
    rules.strict = true;
    assert_eq!(check(&built.history, &rules).violated(), [I8]);
}

#[test]
fn connections_with_a_wrong_end_break_i9_to_i11() {
    let mut built = one_login();
    built.client_saw(1, What::Closed).closed("n1", 1, "Deleted");
    assert_eq!(built.violated(), [I9]);
    built.history.facts.push(Fact::Cut { client: 1 });
    assert!(built.check().is_clean());
    let mut built = one_login();
    built
        .granted("n2", 2)
        .superseded("n1", 1, 2)
        .admitted("n2", 2)
        .got_notice(1)
        .wait_ms(20_000)
        .client_saw(1, What::Closed)
        .closed("n1", 1, "AlreadyGone");
    assert_eq!(built.violated(), [I11]);
    let mut built = one_takeover();
    built.history.facts.push(Fact::Lingering {
        node: NodeId::new("n1").unwrap(),
        sockets: 2,
    });
    assert_eq!(built.violated(), [I10]);
}

#[test]
fn a_dead_session_that_stays_in_the_directory_breaks_i12() {
    let mut built = one_login();
    let at_us = built.at;
    built.history.facts.push(Fact::Killed {
        node: NodeId::new("n1").unwrap(),
        at_us,
    });
    built.directory_names(1, 1);
    assert!(built.check().is_clean(), "{}", built.check());
    let cleanup = u64::try_from(Rules::default().longest_cleanup().as_millis()).unwrap();
    built.wait_ms(cleanup + 1000).event("n2", "busy", json!({}));
    assert_eq!(built.violated(), [I12]);
}

#[test]
fn a_login_without_an_answer_breaks_i14() {
    let mut built = one_login();
    built.client_saw(2, What::LoginSent);
    assert_eq!(built.violated(), [I14]);
    let mut built = one_takeover();
    built.granted("n2", 7);
    assert!(built.violated().contains(&I14), "{}", built.check());
}

#[test]
fn a_session_that_stays_active_without_its_slot_breaks_i11() {
    let mut built = one_login();
    built.granted("n2", 2).revoked("n2", 1, 2).wait_ms(5000);
    built.event("n2", "busy", json!({}));
    assert!(built.violated().contains(&I11), "{}", built.check());
    built.history.facts.push(Fact::Paused {
        node: NodeId::new("n1").unwrap(),
        from_us: 0,
        to_us: built.at,
    });
    assert!(!built.violated().contains(&I11));
}

#[test]
fn a_logout_that_deletes_after_a_revocation_breaks_i5() {
    let mut built = one_login();
    built
        .client_saw(1, What::Leaves)
        .event_about_session("n1", "deleted", 1)
        .closed("n1", 1, "Deleted");
    assert!(built.check().is_clean(), "{}", built.check());
    built
        .granted("n2", 2)
        .admitted("n2", 2)
        .revoked("n2", 1, 2)
        .directory_names(2, 2);
    assert_eq!(built.violated(), [I5]);
    // The second removal is allowed if the store has lost the first removal.
    for (to_us, forgotten) in [(1, false), (built.at, true)] {
        let from_us = 0;
        let fact = Fact::Forgotten { from_us, to_us };
        built.history.facts.push(fact);
        assert_eq!(built.check().is_clean(), forgotten, "{}", built.check());
    }
    // A session that is still active was removed from the directory.
    let mut built = one_login();
    built.event_about_session("n2", "deleted", 1);
    assert_eq!(built.violated(), [I5]);
}

#[test]
fn a_sweep_of_a_living_node_breaks_i5() {
    let mut built = one_login();
    let before = built.at;
    built
        .event_about_session("n2", "slot_swept", 1)
        .wait_ms(5000);
    built.event("n1", "node_fenced", json!({}));
    assert_eq!(built.violated(), [I5]);
    // The sweep is allowed if the lease was freed by hand during the session.
    for (at_us, freed) in [(built.at, false), (before, true)] {
        let node = NodeId::new("n1").unwrap();
        built.history.facts.push(Fact::LeaseFreed { node, at_us });
        assert_eq!(built.check().is_clean(), freed, "{}", built.check());
    }
}

#[test]
fn a_settled_session_that_is_still_active_breaks_i17() {
    let mut built = one_login();
    built
        .granted("n2", 2)
        .revoked("n2", 1, 2)
        .event_about_session("n2", "settled", 1)
        .admitted("n2", 2)
        .wait_ms(1000)
        .superseded("n1", 1, 2)
        .got_notice(1)
        .client_saw(1, What::Leaves)
        .closed("n1", 1, "AlreadyGone");
    assert_eq!(built.violated(), [I17]);
}

#[test]
fn a_kick_that_names_two_sessions_breaks_i6() {
    let mut built = one_takeover();
    built
        .granted("n1", 3)
        .revoked("n1", 2, 3)
        .superseded("n2", 2, 3)
        .got_notice(2)
        .client_saw(2, What::Leaves)
        .closed("n2", 2, "AlreadyGone")
        .admitted("n1", 3)
        .directory_names(3, 3);
    assert!(built.check().is_clean(), "{}", built.check());
    let fields = json!({
        "uid": UID, "session": session_id(1), "kick_id": kick_id(2),
        "peer": "n1", "result": "AlreadyGone",
    });
    built.event("n2", "kick_received", fields);
    assert!(built.violated().contains(&I6), "{}", built.check());
}

#[test]
fn a_connection_that_is_cut_without_a_notice_breaks_i9() {
    let mut built = one_login();
    built
        .granted("n2", 2)
        .superseded("n1", 1, 2)
        .admitted("n2", 2)
        .session_event("n1", "told", 1, json!({}))
        .got_notice(1)
        .session_event("n1", "cut", 1, json!({}))
        .client_saw(1, What::Closed)
        .closed("n1", 1, "AlreadyGone");
    assert!(built.check().is_clean(), "{}", built.check());
    built
        .history
        .nodes
        .retain(|event| event.event != distlock_kickout::Transition::Told);
    assert!(built.violated().contains(&I9), "{}", built.check());
}

#[test]
fn a_bystander_that_waits_for_others_breaks_i15() {
    let mut built = HistoryBuilder::default();
    let uid = Uid::new(UID).unwrap();
    built.history.facts.push(Fact::Bystander { uid });
    let login = |built: &mut HistoryBuilder, number: u8, takes: u64| {
        built
            .client_saw(number, What::LoginSent)
            .granted("n1", number)
            .admitted("n1", number)
            .wait_ms(takes)
            .logged_in(number)
            .client_saw(number, What::Leaves)
            .closed("n1", number, "Deleted")
            .wait_ms(100);
    };
    login(&mut built, 1, 10);
    let from_us = built.at;
    login(&mut built, 3, 100);
    let to_us = built.at;
    built.history.facts.push(Fact::Trouble { from_us, to_us });
    assert!(built.check().is_clean(), "{}", built.check());
    let from_us = built.at;
    login(&mut built, 5, 1000);
    let to_us = built.at;
    built.history.facts.push(Fact::Trouble { from_us, to_us });
    assert_eq!(built.violated(), [I15]);
}

#[test]
fn a_bystander_that_is_refused_breaks_i15() {
    let mut built = one_login();
    let uid = Uid::new(UID).unwrap();
    built.history.facts.push(Fact::Bystander { uid });
    assert!(built.check().is_clean());
    built
        .client_saw(3, What::LoginSent)
        .client_saw(3, What::Busy);
    assert_eq!(built.violated(), [I15]);
}

#[test]
fn a_session_that_ends_twice_breaks_i16() {
    let mut built = one_takeover();
    built.closed("n1", 1, "AlreadyGone");
    assert_eq!(built.violated(), [I16]);
    let mut built = one_takeover();
    built.granted("n2", 3).session_event(
        "n2",
        "superseded",
        2,
        json!({"code": 1, "kick_id": kick_id(1)}),
    );
    let violated = built.violated();
    assert!(
        violated.contains(&I16) && violated.contains(&I6),
        "{violated:?}"
    );
}
