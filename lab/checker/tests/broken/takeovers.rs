//! Takeovers with planted bugs: owners, winners, generations.

use distlock_checker::{Fact, Invariant::*, What};
use distlock_kickout::{Generation, NodeId, Uid};
use serde_json::json;

use crate::builder::{HistoryBuilder, MS, UID, kick_id, one_login, one_takeover, session_id};

#[test]
fn a_correct_history_has_no_violation() {
    let report = one_takeover().check();
    assert!(report.is_clean(), "{report}");
    for invariant in [I1, I2, I3, I4, I6, I7, I9, I11, I14, I16, I17] {
        assert!(
            report.looked_at(invariant) > 0,
            "{invariant} was not looked at"
        );
    }
    // A plain takeover could break none of these invariants, so it does not count as an occasion.
    for invariant in [I5, I8, I10, I12, I13, I15, I18] {
        assert_eq!(report.looked_at(invariant), 0, "{invariant}: {report}");
    }
}

/// The planted kick names the account and no session. The older login's late kick therefore ends
/// the newer session.
#[test]
fn a_kick_that_names_only_the_account_breaks_i2_and_i6() {
    let mut built = one_takeover();
    let fields = json!({
        "uid": UID, "session": session_id(1), "kick_id": kick_id(1),
        "peer": "n1", "result": "Kicked",
    });
    built
        .wait_ms(5)
        .event("n2", "kick_received", fields)
        .session_event(
            "n2",
            "superseded",
            2,
            json!({"code": 1, "kick_id": kick_id(1)}),
        )
        .got_notice(2)
        .client_saw(2, What::Leaves)
        .closed("n2", 2, "AlreadyGone");
    let violated = built.violated();
    assert!(violated.contains(&I6), "{violated:?}");
    assert!(violated.contains(&I2), "nobody is left: {violated:?}");
}

/// The planted logout of the old session deletes any entry in the directory, here the entry of the
/// newer session.
#[test]
fn a_delete_that_compares_no_session_breaks_i5() {
    let mut built = one_takeover();
    let closed = built.history.nodes.last_mut().unwrap();
    closed.result = Some("Deleted".into());
    assert_eq!(built.violated(), [I5]);
    // The clients and the record show the same: the record names no session, although the newer
    // client is logged in.
    let mut built = one_takeover();
    let at = built.at;
    built.history.facts.push(Fact::Lookup {
        uid: Uid::new(UID).unwrap(),
        from_us: at + 1,
        to_us: at + 2,
        r#gen: Generation::new(2),
        session: None,
    });
    assert_eq!(built.violated(), [I7]);
}

/// The planted login lost its lock and overwrites the newer login. Then it finds itself in the
/// directory and is admitted.
#[test]
fn a_write_after_the_lock_was_lost_breaks_i13() {
    let mut built = one_login();
    built
        .granted("n2", 3)
        .superseded("n1", 1, 3)
        .kick_arrived("n2", "n1", 1)
        .admitted("n2", 3)
        .got_notice(1)
        .client_saw(1, What::Leaves)
        .closed("n1", 1, "AlreadyGone")
        .wait_ms(3000)
        .granted("n1", 2)
        .admitted("n1", 2)
        .wait_ms(3000)
        .event("n1", "node_fenced", json!({}))
        .directory_names(2, 2);
    let violated = built.violated();
    assert!(violated.contains(&I13), "{violated:?}");
    assert!(violated.contains(&I4), "{violated:?}");
    assert!(
        violated.contains(&I1) || violated.contains(&I3),
        "{violated:?}"
    );
    // In this history the late login also has a higher generation, so only the fencing tokens show
    // the bug.
    let mut built = one_login();
    built
        .session_event("n2", "granted", 2, json!({"token": 9}))
        .superseded("n1", 1, 2)
        .session_event("n1", "granted", 3, json!({"token": 8}));
    assert!(built.violated().contains(&I13), "{}", built.check());
}

#[test]
fn a_confirmation_before_the_write_breaks_i7() {
    let mut built = HistoryBuilder::default();
    built
        .client_saw(1, What::LoginSent)
        .admitted("n1", 1)
        .logged_in(1)
        .wait_ms(1)
        .granted("n1", 1)
        .directory_names(1, 1);
    assert_eq!(built.violated(), [I7]);
}

#[test]
fn two_owners_for_longer_than_the_settle_time_break_i1() {
    let mut built = one_login();
    built
        .granted("n2", 2)
        .admitted("n2", 2)
        .wait_ms(10_000)
        .superseded("n1", 1, 2)
        .closed("n1", 1, "AlreadyGone");
    assert_eq!(built.violated(), [I1]);
    // If the first node was paused, it could not know of the newer login.
    built.history.facts.push(Fact::Paused {
        node: NodeId::new("n1").unwrap(),
        from_us: 11 * MS,
        to_us: 10_005 * MS,
    });
    assert!(built.check().is_clean(), "{}", built.check());
}

#[test]
fn two_winners_or_none_break_i2() {
    let mut built = one_login();
    built.granted("n2", 2).admitted("n2", 2);
    assert!(built.violated().contains(&I2), "{}", built.check());
    let mut built = one_login();
    built.superseded("n1", 1, 9).closed("n1", 1, "AlreadyGone");
    assert!(built.violated().contains(&I2), "{}", built.check());
}

#[test]
fn a_generation_that_falls_breaks_i4() {
    let mut built = one_takeover();
    built.directory_names(2, 1);
    assert!(built.violated().contains(&I4), "{}", built.check());
    let mut built = one_login();
    built.client_saw(3, What::LoginSent).client_saw(
        3,
        What::LoginOk {
            session: session_id(1),
            r#gen: Generation::new(1),
        },
    );
    assert!(built.violated().contains(&I4), "{}", built.check());
}
