//! Takeovers with planted bugs: owners, winners, generations.

use distlock_checker::{Fact, Invariant::*, What};
use distlock_kickout::{Generation, NodeId, Uid};
use serde_json::json;

use crate::play::{MS, Play, UID, first, honest, kick, session};

#[test]
fn an_honest_history_is_not_accused() {
    let report = honest().check();
    assert!(report.is_clean(), "{report}");
    for invariant in [I1, I2, I3, I4, I6, I7, I9, I11, I14, I16, I17] {
        assert!(
            report.looked_at(invariant) > 0,
            "{invariant} was not looked at"
        );
    }
    // A plain takeover puts none of these at risk, so it does not count as an occasion.
    for invariant in [I5, I8, I10, I12, I13, I15, I18] {
        assert_eq!(report.looked_at(invariant), 0, "{invariant}: {report}");
    }
}

/// The planted kick looks up the account instead of the session. The older login's late kick ends
/// the newcomer.
#[test]
fn a_kick_by_account_only() {
    let mut play = honest();
    let fields = json!({
        "uid": UID, "session": session(1), "kick_id": kick(1),
        "peer": "n1", "result": "Kicked",
    });
    play.after(5)
        .event("n2", "kick_received", fields)
        .of(
            "n2",
            "superseded",
            2,
            json!({"code": 1, "kick_id": kick(1)}),
        )
        .told(2)
        .client(2, What::Leaves)
        .closed("n2", 2, "AlreadyGone");
    let violated = play.violated();
    assert!(violated.contains(&I6), "{violated:?}");
    assert!(violated.contains(&I2), "nobody is left: {violated:?}");
}

/// The planted logout of the old session deletes any entry in the directory: the newcomer's.
#[test]
fn a_delete_without_comparing() {
    let mut play = honest();
    let closed = play.history.nodes.last_mut().unwrap();
    closed.result = Some("Deleted".into());
    assert_eq!(play.violated(), [I5]);
    // A client sees the same: the directory names no session, although the newcomer is logged in.
    let mut play = honest();
    let at = play.at;
    play.history.facts.push(Fact::Lookup {
        uid: Uid::new(UID).unwrap(),
        from_us: at + 1,
        to_us: at + 2,
        r#gen: Generation::new(2),
        session: None,
    });
    assert_eq!(play.violated(), [I7]);
}

/// The planted login lost its lock, overwrites the newer login, finds itself in the directory and
/// is admitted.
#[test]
fn a_write_after_the_lock_was_lost() {
    let mut play = first();
    play.granted("n2", 3)
        .superseded("n1", 1, 3)
        .kicked("n2", "n1", 1)
        .admitted("n2", 3)
        .told(1)
        .client(1, What::Leaves)
        .closed("n1", 1, "AlreadyGone")
        .after(3000)
        .granted("n1", 2)
        .admitted("n1", 2)
        .after(3000)
        .event("n1", "node_fenced", json!({}))
        .record(2, 2);
    let violated = play.violated();
    assert!(violated.contains(&I13), "{violated:?}");
    assert!(violated.contains(&I4), "{violated:?}");
    assert!(
        violated.contains(&I1) || violated.contains(&I3),
        "{violated:?}"
    );
    // The same login takes a higher generation as well, so only the tokens show it.
    let mut play = first();
    play.of("n2", "granted", 2, json!({"token": 9}))
        .superseded("n1", 1, 2)
        .of("n1", "granted", 3, json!({"token": 8}));
    assert!(play.violated().contains(&I13), "{}", play.check());
}

#[test]
fn a_confirmation_before_the_write() {
    let mut play = Play::default();
    play.client(1, What::LoginSent)
        .admitted("n1", 1)
        .in_(1)
        .after(1)
        .granted("n1", 1)
        .record(1, 1);
    assert_eq!(play.violated(), [I7]);
}

#[test]
fn two_owners_for_longer_than_it_takes_to_tell() {
    let mut play = first();
    play.granted("n2", 2)
        .admitted("n2", 2)
        .after(10_000)
        .superseded("n1", 1, 2)
        .closed("n1", 1, "AlreadyGone");
    assert_eq!(play.violated(), [I1]);
    // A paused node could not know of the newer login.
    play.history.facts.push(Fact::Paused {
        node: NodeId::new("n1").unwrap(),
        from_us: 11 * MS,
        to_us: 10_005 * MS,
    });
    assert!(play.check().is_clean(), "{}", play.check());
}

#[test]
fn two_winners_and_none() {
    let mut play = first();
    play.granted("n2", 2).admitted("n2", 2);
    assert!(play.violated().contains(&I2), "{}", play.check());
    let mut play = first();
    play.superseded("n1", 1, 9).closed("n1", 1, "AlreadyGone");
    assert!(play.violated().contains(&I2), "{}", play.check());
}

#[test]
fn a_generation_that_falls() {
    let mut play = honest();
    play.record(2, 1);
    assert!(play.violated().contains(&I4), "{}", play.check());
    let mut play = first();
    play.client(3, What::LoginSent).client(
        3,
        What::LoginOk {
            session: session(1),
            r#gen: Generation::new(1),
        },
    );
    assert!(play.violated().contains(&I4), "{}", play.check());
}
