//! Sessions that do not end, end twice, or end without a notice; dead sessions and bystanders.

use distlock_checker::{Fact, Invariant::*, Rules, What, check};
use distlock_kickout::{NodeId, Uid};
use serde_json::json;

use crate::play::{Play, UID, first, honest, kick, session};

#[test]
fn a_superseded_session_that_still_receives() {
    let id = || "m".to_owned();
    let outcome = || What::Outcome {
        id: id(),
        outcome: "stored".into(),
        devices: None,
    };
    for got in [What::Message { id: id() }, outcome()] {
        let mut play = honest();
        play.client(1, got);
        assert!(play.violated().contains(&I8), "{}", play.check());
    }
    let mut play = honest();
    play.in_(1);
    assert!(play.violated().contains(&I8), "{}", play.check());
    // The client got no notice. A frame that was written before may arrive a little later.
    for (later, violated) in [(100, vec![]), (5000, vec![I8])] {
        let mut play = first();
        play.client(1, What::Sent { id: id(), to: None })
            .granted("n2", 2)
            .superseded("n1", 1, 2)
            .admitted("n2", 2)
            .closed("n1", 1, "AlreadyGone")
            .after(later)
            .client(1, outcome());
        assert_eq!(play.violated(), violated, "{}", play.check());
        play.history.facts.push(Fact::Paused {
            node: NodeId::new("n1").unwrap(),
            from_us: 0,
            to_us: play.at,
        });
        assert!(play.check().is_clean(), "{}", play.check());
    }
    let mut play = honest();
    let late = json!({"uid": UID, "session": session(1), "result": "message m delivered"});
    play.after(5000).event("n2", "delivered", late);
    assert_eq!(play.violated(), [I8]);
    // Strict confirmation: this login is admitted while the older session is active.
    let mut play = first();
    play.granted("n2", 2)
        .admitted("n2", 2)
        .superseded("n1", 1, 2)
        .closed("n1", 1, "AlreadyGone");
    let mut rules = Rules::default();
    assert!(check(&play.history, &rules).is_clean());
    rules.strict = true;
    assert_eq!(check(&play.history, &rules).violated(), [I8]);
}

#[test]
fn a_connection_that_ends_without_a_word_or_not_at_all() {
    let mut play = first();
    play.client(1, What::Closed).closed("n1", 1, "Deleted");
    assert_eq!(play.violated(), [I9]);
    play.history.facts.push(Fact::Cut { client: 1 });
    assert!(play.check().is_clean());
    let mut play = first();
    play.granted("n2", 2)
        .superseded("n1", 1, 2)
        .admitted("n2", 2)
        .told(1)
        .after(20_000)
        .client(1, What::Closed)
        .closed("n1", 1, "AlreadyGone");
    assert_eq!(play.violated(), [I11]);
    let mut play = honest();
    play.history.facts.push(Fact::Lingering {
        node: NodeId::new("n1").unwrap(),
        sockets: 2,
    });
    assert_eq!(play.violated(), [I10]);
}

#[test]
fn a_ghost_that_stays() {
    let mut play = first();
    let at_us = play.at;
    play.history.facts.push(Fact::Killed {
        node: NodeId::new("n1").unwrap(),
        at_us,
    });
    play.record(1, 1);
    assert!(play.check().is_clean(), "{}", play.check());
    let cleanup = u64::try_from(Rules::default().cleanup().as_millis()).unwrap();
    play.after(cleanup + 1000).event("n2", "busy", json!({}));
    assert_eq!(play.violated(), [I12]);
}

#[test]
fn a_login_that_nothing_becomes_of() {
    let mut play = first();
    play.client(2, What::LoginSent);
    assert_eq!(play.violated(), [I14]);
    let mut play = honest();
    play.granted("n2", 7);
    assert!(play.violated().contains(&I14), "{}", play.check());
}

#[test]
fn a_session_that_goes_on_after_it_lost_its_place() {
    let mut play = first();
    play.granted("n2", 2).revoked("n2", 1, 2).after(5000);
    play.event("n2", "busy", json!({}));
    assert!(play.violated().contains(&I11), "{}", play.check());
    play.history.facts.push(Fact::Paused {
        node: NodeId::new("n1").unwrap(),
        from_us: 0,
        to_us: play.at,
    });
    assert!(!play.violated().contains(&I11));
}

#[test]
fn a_logout_that_erases_although_its_place_was_taken() {
    let mut play = first();
    play.client(1, What::Leaves)
        .about("n1", "deleted", 1)
        .closed("n1", 1, "Deleted");
    assert!(play.check().is_clean(), "{}", play.check());
    play.granted("n2", 2)
        .admitted("n2", 2)
        .revoked("n2", 1, 2)
        .record(2, 2);
    assert_eq!(play.violated(), [I5]);
    // The second removal is allowed if the store has lost the first one.
    for (to_us, forgotten) in [(1, false), (play.at, true)] {
        let from_us = 0;
        let fact = Fact::Forgotten { from_us, to_us };
        play.history.facts.push(fact);
        assert_eq!(play.check().is_clean(), forgotten, "{}", play.check());
    }
    // A running session was taken out.
    let mut play = first();
    play.about("n2", "deleted", 1);
    assert_eq!(play.violated(), [I5]);
}

#[test]
fn a_living_node_that_is_swept() {
    let mut play = first();
    let before = play.at;
    play.about("n2", "ghost_swept", 1).after(5000);
    play.event("n1", "node_fenced", json!({}));
    assert_eq!(play.violated(), [I5]);
    // The sweep is allowed if the lease was freed by hand during the session.
    for (at_us, freed) in [(play.at, false), (before, true)] {
        let node = NodeId::new("n1").unwrap();
        play.history.facts.push(Fact::LeaseFreed { node, at_us });
        assert_eq!(play.check().is_clean(), freed, "{}", play.check());
    }
}

#[test]
fn a_session_that_is_said_to_be_gone_and_is_not() {
    let mut play = first();
    play.granted("n2", 2)
        .revoked("n2", 1, 2)
        .about("n2", "settled", 1)
        .admitted("n2", 2)
        .after(1000)
        .superseded("n1", 1, 2)
        .told(1)
        .client(1, What::Leaves)
        .closed("n1", 1, "AlreadyGone");
    assert_eq!(play.violated(), [I17]);
}

#[test]
fn a_kick_that_names_another_session_on_the_way() {
    let mut play = honest();
    play.granted("n1", 3)
        .revoked("n1", 2, 3)
        .superseded("n2", 2, 3)
        .told(2)
        .client(2, What::Leaves)
        .closed("n2", 2, "AlreadyGone")
        .admitted("n1", 3)
        .record(3, 3);
    assert!(play.check().is_clean(), "{}", play.check());
    let fields = json!({
        "uid": UID, "session": session(1), "kick_id": kick(2),
        "peer": "n1", "result": "AlreadyGone",
    });
    play.event("n2", "kick_received", fields);
    assert!(play.violated().contains(&I6), "{}", play.check());
}

#[test]
fn a_client_that_is_cut_off_without_a_word() {
    let mut play = first();
    play.granted("n2", 2)
        .superseded("n1", 1, 2)
        .admitted("n2", 2)
        .of("n1", "told", 1, json!({}))
        .told(1)
        .of("n1", "cut", 1, json!({}))
        .client(1, What::Closed)
        .closed("n1", 1, "AlreadyGone");
    assert!(play.check().is_clean(), "{}", play.check());
    play.history
        .nodes
        .retain(|event| event.event != distlock_kickout::Transition::Told);
    assert!(play.violated().contains(&I9), "{}", play.check());
}

#[test]
fn a_bystander_that_waits_for_others() {
    let mut play = Play::default();
    let uid = Uid::new(UID).unwrap();
    play.history.facts.push(Fact::Bystander { uid });
    let login = |play: &mut Play, number: u8, takes: u64| {
        play.client(number, What::LoginSent)
            .granted("n1", number)
            .admitted("n1", number)
            .after(takes)
            .in_(number)
            .client(number, What::Leaves)
            .closed("n1", number, "Deleted")
            .after(100);
    };
    login(&mut play, 1, 10);
    let from_us = play.at;
    login(&mut play, 3, 100);
    let to_us = play.at;
    play.history.facts.push(Fact::Trouble { from_us, to_us });
    assert!(play.check().is_clean(), "{}", play.check());
    let from_us = play.at;
    login(&mut play, 5, 1000);
    let to_us = play.at;
    play.history.facts.push(Fact::Trouble { from_us, to_us });
    assert_eq!(play.violated(), [I15]);
}

#[test]
fn a_bystander_that_is_turned_away() {
    let mut play = first();
    let uid = Uid::new(UID).unwrap();
    play.history.facts.push(Fact::Bystander { uid });
    assert!(play.check().is_clean());
    play.client(3, What::LoginSent).client(3, What::Busy);
    assert_eq!(play.violated(), [I15]);
}

#[test]
fn a_session_that_ends_twice_and_a_kick_that_ends_two() {
    let mut play = honest();
    play.closed("n1", 1, "AlreadyGone");
    assert_eq!(play.violated(), [I16]);
    let mut play = honest();
    play.granted("n2", 3).of(
        "n2",
        "superseded",
        2,
        json!({"code": 1, "kick_id": kick(1)}),
    );
    let violated = play.violated();
    assert!(
        violated.contains(&I16) && violated.contains(&I6),
        "{violated:?}"
    );
}
