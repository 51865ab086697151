//! An invariant counts as tested only if a step could have broken it: such a step is an occasion.
//! These tests also cover the time bounds of the invariants.

use distlock_checker::{Fact, Invariant::*, Rules, What, check};
use distlock_kickout::{Code, NodeId, Uid};
use serde_json::json;

use crate::builder::{HistoryBuilder, UID, one_login, one_takeover, session_id};

fn uid() -> Uid {
    Uid::new(UID).unwrap()
}

fn ms(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

/// Kills node `n1` now.
fn kill_n1(built: &mut HistoryBuilder) {
    built.at += 1;
    built.history.facts.push(Fact::Killed {
        node: NodeId::new("n1").unwrap(),
        at_us: built.at,
    });
}

#[test]
fn a_late_delete_and_a_write_given_up_count_as_occasions() {
    let mut built = one_takeover();
    built.event_about_session("n1", "stale_delete_refused", 1);
    assert_eq!(built.check().looked_at(I5), 1);
    let mut built = one_takeover();
    let fields = json!({"uid": UID, "token": 1, "result": "the account's lock was lost"});
    built.event("n1", "write_given_up", fields);
    let report = built.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.looked_at(I13), 1);
}

#[test]
fn a_bystander_counts_as_an_occasion_only_with_calm_and_troubled_logins() {
    let login = |built: &mut HistoryBuilder, number: u8| {
        built
            .client_saw(number, What::LoginSent)
            .granted("n1", number)
            .admitted("n1", number)
            .logged_in(number)
            .client_saw(number, What::Leaves)
            .closed("n1", number, "Deleted")
            .wait_ms(100);
    };
    let mut built = HistoryBuilder::default();
    built.history.facts.push(Fact::Bystander { uid: uid() });
    let from_us = built.at;
    login(&mut built, 1);
    let to_us = built.at;
    assert_eq!(built.check().looked_at(I15), 0, "nobody was in trouble");
    built.history.facts.push(Fact::Trouble { from_us, to_us });
    assert_eq!(built.check().looked_at(I15), 0, "nothing to compare with");
    built.wait_ms(100);
    login(&mut built, 3);
    assert_eq!(built.check().looked_at(I15), 1);
}

/// A takeover after which the first session's client is still connected.
fn takeover_with_open_connection() -> HistoryBuilder {
    let mut built = one_login();
    built
        .client_saw(2, What::LoginSent)
        .granted("n2", 2)
        .superseded("n1", 1, 2)
        .admitted("n2", 2)
        .logged_in(2)
        .got_notice(1)
        .wait_ms(10);
    built
}

/// Closes the first session's connection. After that, the directory names the second session.
fn close_old_connection(built: &mut HistoryBuilder) {
    built
        .client_saw(1, What::Closed)
        .closed("n1", 1, "AlreadyGone")
        .directory_names(2, 2);
}

#[test]
fn a_superseded_session_is_an_occasion_only_if_it_could_send_or_receive() {
    let id = || "m".to_owned();
    let mut built = takeover_with_open_connection();
    close_old_connection(&mut built);
    assert_eq!(built.check().looked_at(I8), 0);
    let delivered = json!({"uid": UID, "session": session_id(2), "message": "m"});
    let mut built = takeover_with_open_connection();
    built.event("n2", "delivered", delivered.clone());
    close_old_connection(&mut built);
    let report = built.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.looked_at(I8), 1);
    // The message of the superseded client is refused.
    let mut built = takeover_with_open_connection();
    built
        .client_saw(1, What::Sent { id: id(), to: None })
        .client_saw(1, What::Refused);
    close_old_connection(&mut built);
    let report = built.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.looked_at(I8), 1);
    // The message of the superseded client is accepted.
    let mut built = takeover_with_open_connection();
    built.client_saw(1, What::Sent { id: id(), to: None });
    built.event("n1", "delivered", delivered);
    close_old_connection(&mut built);
    assert_eq!(built.violated(), [I8]);
}

#[test]
fn an_answer_later_than_the_lock_and_the_kicks_allow_breaks_i14() {
    let rules = Rules::default();
    let waits = ms(rules.lock_wait + rules.kick_budget + rules.slack);
    for (takes, violated) in [(waits - 10, vec![]), (waits + 10, vec![I14])] {
        let mut built = one_login();
        built
            .client_saw(2, What::LoginSent)
            .wait_ms(takes)
            .client_saw(2, What::Busy);
        assert_eq!(built.violated(), violated, "{}", built.check());
    }
    // A connection that ends without an answer does not count as an answer.
    let mut built = one_login();
    built
        .client_saw(2, What::LoginSent)
        .client_saw(2, What::Closed);
    assert_eq!(built.violated(), [I14]);
}

/// A login that is sent `sent` ms after a crash, and is answered `takes` ms later.
fn login_after_crash(sent: u64, takes: u64) -> HistoryBuilder {
    let mut built = one_login();
    kill_n1(&mut built);
    built
        .wait_ms(sent)
        .client_saw(2, What::LoginSent)
        .wait_ms(takes)
        .granted("n2", 2)
        .admitted("n2", 2)
        .logged_in(2)
        .directory_names(2, 2);
    built
}

#[test]
fn an_account_that_cannot_log_in_long_after_a_crash_breaks_i14() {
    let rules = Rules::default();
    let (lock, tell) = (ms(rules.lock_ttl), ms(rules.kick_budget));
    // The login may wait until the dead node's lock has expired, and then for the kick budget.
    assert_eq!(login_after_crash(lock - 2000, 2000 + tell).violated(), []);
    assert_eq!(login_after_crash(lock, tell + 10).violated(), []);
    assert_eq!(login_after_crash(lock, tell + 500).violated(), [I14]);
    // A refused login breaks the invariant, too, if it was sent after the lock of the dead node has
    // expired.
    let login_refused = |sent: u64, what: What| {
        let mut built = one_login();
        kill_n1(&mut built);
        built
            .wait_ms(sent)
            .client_saw(2, What::LoginSent)
            .client_saw(2, what);
        built
    };
    assert_eq!(login_refused(lock - 10, What::Busy).violated(), []);
    assert_eq!(login_refused(lock + 500, What::Busy).violated(), [I14]);
    // If the first login wins, logins may be denied until the dead node's lease has ended.
    let denied = login_refused(lock + 500, What::Denied { code: Code::Denied });
    assert_eq!(denied.violated(), [I14]);
    let mut deny = Rules::default();
    deny.deny = true;
    assert!(check(&denied.history, &deny).is_clean());
    let lease = ms(deny.node_lease);
    let denied = login_refused(lease + 500, What::Denied { code: Code::Denied });
    assert_eq!(check(&denied.history, &deny).violated(), [I14]);
}

#[test]
fn a_crash_excuses_no_later_violation() {
    // The connection ends without a notice. Its node was killed earlier, before the client logged
    // in, so that crash excuses nothing.
    let mut built = HistoryBuilder::default();
    kill_n1(&mut built);
    built
        .client_saw(1, What::LoginSent)
        .granted("n1", 1)
        .admitted("n1", 1)
        .logged_in(1)
        .client_saw(1, What::Closed)
        .closed("n1", 1, "Deleted");
    assert_eq!(built.violated(), [I9]);
    // A confirmation that is not in the node's events is excused only if the node was killed after
    // the confirmation, not before.
    let mut built = HistoryBuilder::default();
    kill_n1(&mut built);
    built.client_saw(1, What::LoginSent).logged_in(1);
    assert!(built.violated().contains(&I17), "{}", built.check());
    kill_n1(&mut built);
    assert!(!built.violated().contains(&I17), "{}", built.check());
}

#[test]
fn no_winner_after_all_logins_are_answered_breaks_i2_despite_a_later_login() {
    let quiet = |built: &mut HistoryBuilder| {
        built.at += 1;
        let at_us = built.at;
        built.history.facts.push(Fact::Quiet { uid: uid(), at_us });
    };
    let mut built = one_takeover();
    quiet(&mut built);
    assert!(built.check().is_clean(), "{}", built.check());
    let later = |built: &mut HistoryBuilder| {
        built
            .client_saw(3, What::LoginSent)
            .granted("n1", 3)
            .admitted("n1", 3)
            .logged_in(3)
            .directory_names(3, 3);
    };
    // The only client gets the notice that another device logged in, but no other device did. The
    // checker finds this fault only if the history records a quiet moment before the later login.
    // `Fact::Quiet` says that all logins of the account are answered at that moment.
    let mut built = one_login();
    built
        .superseded("n1", 1, 9)
        .got_notice(1)
        .client_saw(1, What::Leaves)
        .closed("n1", 1, "AlreadyGone");
    later(&mut built);
    assert_eq!(built.violated(), [], "only the last one is looked at");
    let mut built = one_login();
    built
        .superseded("n1", 1, 9)
        .got_notice(1)
        .client_saw(1, What::Leaves)
        .closed("n1", 1, "AlreadyGone");
    quiet(&mut built);
    later(&mut built);
    assert_eq!(built.violated(), [I2]);
}

#[test]
fn a_dead_session_that_is_swept_late_breaks_i12() {
    let swept = |after: u64| {
        let mut built = one_login();
        kill_n1(&mut built);
        built
            .wait_ms(after)
            .event_about_session("n2", "slot_swept", 1);
        built.check()
    };
    let cleanup = ms(Rules::default().longest_cleanup());
    let report = swept(cleanup - 10);
    assert!(report.is_clean(), "{report}");
    assert!(report.looked_at(I12) > 0);
    assert_eq!(swept(cleanup + 10).violated(), [I12]);
}

#[test]
fn a_connection_that_may_still_be_open_is_no_occasion() {
    let fact = || Fact::Lingering {
        node: NodeId::new("n1").unwrap(),
        sockets: 0,
    };
    let mut built = takeover_with_open_connection();
    built.history.facts.push(fact());
    let report = built.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.looked_at(I11), report.looked_at(I10)), (0, 0));
    built
        .session_event("n1", "told", 1, json!({}))
        .session_event("n1", "cut", 1, json!({}))
        .client_saw(1, What::Closed);
    let report = built.check();
    assert!(report.is_clean(), "{report}");
    assert!(
        report.looked_at(I11) > 0 && report.looked_at(I10) == 1,
        "{report}"
    );
    // Here the connection stays open for too long.
    let mut built = takeover_with_open_connection();
    let rules = Rules::default();
    let allowed = ms(rules.grace + rules.slack);
    built.wait_ms(allowed + 10).event("n2", "busy", json!({}));
    assert_eq!(built.violated(), [I11]);
}
