//! Occasions: an invariant counts as tested only if it could have been broken. Also the time bounds
//! of these invariants.

use distlock_checker::{Fact, Invariant::*, Rules, What, check};
use distlock_kickout::{Code, NodeId, Uid};
use serde_json::json;

use crate::play::{Play, UID, first, honest, session};

fn uid() -> Uid {
    Uid::new(UID).unwrap()
}

fn ms(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

/// Kills node `n1` now.
fn killed(play: &mut Play) {
    play.at += 1;
    play.history.facts.push(Fact::Killed {
        node: NodeId::new("n1").unwrap(),
        at_us: play.at,
    });
}

#[test]
fn a_late_delete_and_a_write_given_up_are_looked_at() {
    let mut play = honest();
    play.about("n1", "stale_delete_refused", 1);
    assert_eq!(play.check().looked_at(I5), 1);
    let mut play = honest();
    let fields = json!({"uid": UID, "token": 1, "result": "the account's lock was lost"});
    play.event("n1", "write_given_up", fields);
    let report = play.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.looked_at(I13), 1);
}

#[test]
fn a_bystander_is_compared_only_with_itself_in_calm() {
    let login = |play: &mut Play, number: u8| {
        play.client(number, What::LoginSent)
            .granted("n1", number)
            .admitted("n1", number)
            .in_(number)
            .client(number, What::Leaves)
            .closed("n1", number, "Deleted")
            .after(100);
    };
    let mut play = Play::default();
    play.history.facts.push(Fact::Bystander { uid: uid() });
    let from_us = play.at;
    login(&mut play, 1);
    let to_us = play.at;
    assert_eq!(play.check().looked_at(I15), 0, "nobody was in trouble");
    play.history.facts.push(Fact::Trouble { from_us, to_us });
    assert_eq!(play.check().looked_at(I15), 0, "nothing to compare with");
    play.after(100);
    login(&mut play, 3);
    assert_eq!(play.check().looked_at(I15), 1);
}

/// The first session is superseded, and its client stays connected.
fn stays() -> Play {
    let mut play = first();
    play.client(2, What::LoginSent)
        .granted("n2", 2)
        .superseded("n1", 1, 2)
        .admitted("n2", 2)
        .in_(2)
        .told(1)
        .after(10);
    play
}

fn goes(play: &mut Play) {
    play.client(1, What::Closed)
        .closed("n1", 1, "AlreadyGone")
        .record(2, 2);
}

#[test]
fn a_mute_session_is_looked_at_when_it_might_have_heard_or_said_something() {
    let id = || "m".to_owned();
    let mut play = stays();
    goes(&mut play);
    assert_eq!(play.check().looked_at(I8), 0);
    let delivered = json!({"uid": UID, "session": session(2), "message": "m"});
    let mut play = stays();
    play.event("n2", "delivered", delivered.clone());
    goes(&mut play);
    let report = play.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.looked_at(I8), 1);
    // The message of the superseded client is refused.
    let mut play = stays();
    play.client(1, What::Sent { id: id(), to: None })
        .client(1, What::Refused);
    goes(&mut play);
    let report = play.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.looked_at(I8), 1);
    // The message of the superseded client is taken.
    let mut play = stays();
    play.client(1, What::Sent { id: id(), to: None });
    play.event("n1", "delivered", delivered);
    goes(&mut play);
    assert_eq!(play.violated(), [I8]);
}

#[test]
fn an_answer_that_comes_later_than_the_lock_and_the_kicks_allow() {
    let rules = Rules::default();
    let waits = ms(rules.lock_wait + rules.kick_budget + rules.slack);
    for (takes, violated) in [(waits - 10, vec![]), (waits + 10, vec![I14])] {
        let mut play = first();
        play.client(2, What::LoginSent)
            .after(takes)
            .client(2, What::Busy);
        assert_eq!(play.violated(), violated, "{}", play.check());
    }
    // A connection that ends without an answer does not count as an answer.
    let mut play = first();
    play.client(2, What::LoginSent).client(2, What::Closed);
    assert_eq!(play.violated(), [I14]);
}

/// A login that is sent this long after a crash, and takes this long.
fn after_a_crash(sent: u64, takes: u64) -> Play {
    let mut play = first();
    killed(&mut play);
    play.after(sent)
        .client(2, What::LoginSent)
        .after(takes)
        .granted("n2", 2)
        .admitted("n2", 2)
        .in_(2)
        .record(2, 2);
    play
}

#[test]
fn a_crash_that_keeps_an_account_out_for_too_long() {
    let rules = Rules::default();
    let (lock, tell) = (ms(rules.lock_ttl), ms(rules.kick_budget));
    // The login may wait for the dead node's lock and for the dead node's answer, and no longer.
    assert_eq!(after_a_crash(lock - 2000, 2000 + tell).violated(), []);
    assert_eq!(after_a_crash(lock, tell + 10).violated(), []);
    assert_eq!(after_a_crash(lock, tell + 500).violated(), [I14]);
    // A refusal does not let the account in.
    let turned_away = |sent: u64, what: What| {
        let mut play = first();
        killed(&mut play);
        play.after(sent).client(2, What::LoginSent).client(2, what);
        play
    };
    assert_eq!(turned_away(lock - 10, What::Busy).violated(), []);
    assert_eq!(turned_away(lock + 500, What::Busy).violated(), [I14]);
    // If the first login wins, the dead node's lease keeps the account out.
    let denied = turned_away(lock + 500, What::Denied { code: Code::Denied });
    assert_eq!(denied.violated(), [I14]);
    let mut deny = Rules::default();
    deny.deny = true;
    assert!(check(&denied.history, &deny).is_clean());
    let lease = ms(deny.node_lease);
    let denied = turned_away(lease + 500, What::Denied { code: Code::Denied });
    assert_eq!(check(&denied.history, &deny).violated(), [I14]);
}

#[test]
fn a_crash_excuses_only_what_it_may_have_swallowed() {
    // The connection ends without a notice, and its node was killed before the client came.
    let mut play = Play::default();
    killed(&mut play);
    play.client(1, What::LoginSent)
        .granted("n1", 1)
        .admitted("n1", 1)
        .in_(1)
        .client(1, What::Closed)
        .closed("n1", 1, "Deleted");
    assert_eq!(play.violated(), [I9]);
    // A node that was killed before confirms a login that it does not know.
    let mut play = Play::default();
    killed(&mut play);
    play.client(1, What::LoginSent).in_(1);
    assert!(play.violated().contains(&I17), "{}", play.check());
    killed(&mut play);
    assert!(!play.violated().contains(&I17), "{}", play.check());
}

#[test]
fn nobody_left_that_a_later_login_would_hide() {
    let quiet = |play: &mut Play| {
        play.at += 1;
        let at_us = play.at;
        play.history.facts.push(Fact::Quiet { uid: uid(), at_us });
    };
    let mut play = honest();
    quiet(&mut play);
    assert!(play.check().is_clean(), "{}", play.check());
    let later = |play: &mut Play| {
        play.client(3, What::LoginSent)
            .granted("n1", 3)
            .admitted("n1", 3)
            .in_(3)
            .record(3, 3);
    };
    // The only client is told that another device logged in, and none did.
    let mut play = first();
    play.superseded("n1", 1, 9)
        .told(1)
        .client(1, What::Leaves)
        .closed("n1", 1, "AlreadyGone");
    later(&mut play);
    assert_eq!(play.violated(), [], "only the last one is looked at");
    let mut play = first();
    play.superseded("n1", 1, 9)
        .told(1)
        .client(1, What::Leaves)
        .closed("n1", 1, "AlreadyGone");
    quiet(&mut play);
    later(&mut play);
    assert_eq!(play.violated(), [I2]);
}

#[test]
fn a_ghost_that_is_swept_late() {
    let swept = |after: u64| {
        let mut play = first();
        killed(&mut play);
        play.after(after).about("n2", "ghost_swept", 1);
        play.check()
    };
    let cleanup = ms(Rules::default().cleanup());
    let report = swept(cleanup - 10);
    assert!(report.is_clean(), "{report}");
    assert!(report.looked_at(I12) > 0);
    assert_eq!(swept(cleanup + 10).violated(), [I12]);
}

#[test]
fn a_connection_that_may_still_be_open_shows_nothing() {
    let fact = || Fact::Lingering {
        node: NodeId::new("n1").unwrap(),
        sockets: 0,
    };
    let mut play = stays();
    play.history.facts.push(fact());
    let report = play.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.looked_at(I11), report.looked_at(I10)), (0, 0));
    play.of("n1", "told", 1, json!({}))
        .of("n1", "cut", 1, json!({}))
        .client(1, What::Closed);
    let report = play.check();
    assert!(report.is_clean(), "{report}");
    assert!(
        report.looked_at(I11) > 0 && report.looked_at(I10) == 1,
        "{report}"
    );
    // The connection stays open for too long.
    let mut play = stays();
    let rules = Rules::default();
    let allowed = ms(rules.grace + rules.slack);
    play.after(allowed + 10).event("n2", "busy", json!({}));
    assert_eq!(play.violated(), [I11]);
}
