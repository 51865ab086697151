//! Allowances: after a fault, the checker accepts a late or missing step. Each allowance holds only
//! for the time and the node of its fault.

use distlock_checker::{Fact, Invariant::*, Rules, What, check};
use distlock_kickout::{NodeId, Uid};
use serde_json::json;

use crate::builder::{HistoryBuilder, MS, UID, one_login};

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// A login on `n2` is admitted, and the older session on `n1` ends `ms` milliseconds later.
fn session_ends_after(ms: u64) -> HistoryBuilder {
    let mut built = one_login();
    built
        .granted("n2", 2)
        .admitted("n2", 2)
        .wait_ms(ms)
        .superseded("n1", 1, 2)
        .closed("n1", 1, "AlreadyGone");
    built
}

/// The same as [`session_ends_after`], with a fault between `from` and `to`, in milliseconds.
fn session_ends_after_fault(
    ms: u64,
    fact: impl Fn(u64, u64) -> Fact,
    from: u64,
    to: u64,
) -> HistoryBuilder {
    let mut built = session_ends_after(ms);
    built.history.facts.push(fact(from * MS, to * MS));
    built
}

fn n1_unreachable(from_us: u64, to_us: u64) -> Fact {
    let node = node("n1");
    Fact::Unreachable {
        node,
        from_us,
        to_us,
    }
}

fn n1_without_store(from_us: u64, to_us: u64) -> Fact {
    let node = Some(node("n1"));
    Fact::NoStore {
        node,
        from_us,
        to_us,
    }
}

fn n2_without_store(from_us: u64, to_us: u64) -> Fact {
    let node = Some(node("n2"));
    Fact::NoStore {
        node,
        from_us,
        to_us,
    }
}

#[test]
fn an_unreachable_node_may_end_a_session_within_its_lease() {
    let lease = u64::try_from(Rules::default().node_lease.as_millis()).unwrap();
    // Without a fault the kick has to end the session much earlier. With a fault, the session may
    // last until its node's lease ends.
    assert_eq!(session_ends_after(lease - 100).violated(), [I1]);
    let cut = session_ends_after_fault(lease - 100, n1_unreachable, 0, 2_000);
    assert!(cut.check().is_clean(), "{}", cut.check());
    assert_eq!(
        session_ends_after_fault(lease + 500, n1_unreachable, 0, 2_000).violated(),
        [I1]
    );
    // This fault comes long after the latest allowed end of the session.
    let later = session_ends_after_fault(lease - 100, n1_unreachable, lease + 1_000, lease + 2_000);
    assert_eq!(later.violated(), [I1]);
}

#[test]
fn a_node_without_its_store_is_allowed_one_more_reconciliation() {
    let lease = u64::try_from(Rules::default().node_lease.as_millis()).unwrap();
    let look = lease / 3;
    let cut = session_ends_after_fault(lease + look, n1_without_store, 500, 2 * lease);
    assert!(cut.check().is_clean(), "{}", cut.check());
    // At this time the lease of the session's node has ended, so the session must have ended as
    // well.
    let stays = session_ends_after_fault(lease + look + 1_000, n1_without_store, 500, 2 * lease);
    assert_eq!(stays.violated(), [I1]);
    // A fault of another node allows this node nothing.
    let other = session_ends_after_fault(lease + look, n2_without_store, 500, 2 * lease);
    assert_eq!(other.violated(), [I1]);
}

/// `n1` is killed, and a login on `n2` is refused `ms` milliseconds later.
fn login_refused_after_crash(ms: u64) -> HistoryBuilder {
    let mut built = one_login();
    built.at += 1;
    built.history.facts.push(Fact::Killed {
        node: node("n1"),
        at_us: built.at,
    });
    built
        .wait_ms(ms)
        .client_saw(2, What::LoginSent)
        .client_saw(2, What::Busy);
    built
}

#[test]
fn a_refusal_long_after_a_crash_is_excused_only_by_another_fault() {
    let rules = Rules::default();
    let waits = u64::try_from((rules.node_lease + rules.lock_ttl).as_millis()).unwrap();
    let at = 3 * waits;
    assert_eq!(login_refused_after_crash(at).violated(), [I14]);
    for (from, to, excused) in [
        (at - 100, at + 100, true),
        // After the store is reachable again, grants may be suspended for one node lease.
        (at - waits, at - waits + 200, true),
        (100, 200, false),
        (at + 100, at + 200, false),
    ] {
        let mut built = login_refused_after_crash(at);
        built.history.facts.push(Fact::NoStore {
            node: None,
            from_us: from * MS,
            to_us: to * MS,
        });
        assert_eq!(built.check().is_clean(), excused, "{from} to {to}");
    }
}

#[test]
fn a_login_may_wait_for_the_store() {
    let waits = |fact: Option<Fact>| {
        let mut built = HistoryBuilder::default();
        built
            .client_saw(1, What::LoginSent)
            .wait_ms(10_000)
            .granted("n1", 1)
            .admitted("n1", 1)
            .logged_in(1)
            .directory_names(1, 1);
        built.history.facts.extend(fact);
        check(&built.history, &Rules::default()).violated()
    };
    assert_eq!(waits(None), [I14]);
    assert_eq!(waits(Some(n1_without_store(0, 9_000 * MS))), []);
    // Two outages at the same time count once.
    let short = n1_without_store(0, 4_000 * MS);
    let mut built = HistoryBuilder::default();
    built
        .client_saw(1, What::LoginSent)
        .wait_ms(10_000)
        .granted("n1", 1)
        .admitted("n1", 1)
        .logged_in(1)
        .directory_names(1, 1);
    built.history.facts.extend([short.clone(), short]);
    assert_eq!(built.violated(), [I14]);
}

#[test]
fn a_dead_session_may_stay_while_the_store_is_unreachable() {
    let rules = Rules::default();
    let late = u64::try_from(rules.longest_cleanup().as_millis()).unwrap() + 500;
    let mut built = one_login();
    built.at += 1;
    built.history.facts.push(Fact::Killed {
        node: node("n1"),
        at_us: built.at,
    });
    built
        .wait_ms(late)
        .event_about_session("n2", "slot_swept", 1);
    assert_eq!(built.violated(), [I12]);
    built.history.facts.push(Fact::NoStore {
        node: None,
        from_us: 3_000 * MS,
        to_us: 4_000 * MS,
    });
    assert!(built.check().is_clean(), "{}", built.check());
}

#[test]
fn a_fenced_node_that_is_killed_need_not_close_its_connections() {
    let killed_after = |ms: Option<u64>| {
        let mut built = one_login();
        built.event("n1", "node_fenced", json!({}));
        built.session_event("n1", "superseded", 1, json!({"code": 8}));
        let at_us = built.at + ms.unwrap_or_default() * MS;
        if ms.is_some() {
            let node = node("n1");
            built.history.facts.push(Fact::Killed { node, at_us });
        }
        built
            .wait_ms(20_000)
            .event("n2", "node_up", json!({}))
            .violated()
    };
    assert!(killed_after(None).contains(&I11));
    assert!(!killed_after(Some(500)).contains(&I11));
    // The node had enough time to close the connection.
    assert!(killed_after(Some(10_000)).contains(&I11));
}

#[test]
fn a_message_needs_no_outcome_for_a_revoked_session() {
    let sent = |revoked: bool| {
        let mut built = one_login();
        built.granted("n2", 2).admitted("n2", 2).logged_in(2);
        if revoked {
            built.revoked("n2", 1, 2);
        }
        let (id, to) = ("m".to_owned(), Some(Uid::new(UID).unwrap()));
        built.client_saw(2, What::Sent { id: id.clone(), to });
        built.session_event("n2", "stored", 2, json!({"message": "m"}));
        let device = distlock_kickout::Device::new("d2").unwrap();
        let outcome = "stored".to_owned();
        let devices = Some(vec![distlock_checker::DeviceOutcome {
            device,
            outcome: outcome.clone(),
        }]);
        built.client_saw(
            2,
            What::Outcome {
                id,
                outcome,
                devices,
            },
        );
        let mut rules = Rules::default();
        rules.limit = 2;
        check(&built.history, &rules).violated()
    };
    assert!(sent(false).contains(&I18), "it was in, and current");
    assert!(!sent(true).contains(&I18), "another one had its place");
}

#[test]
fn a_message_may_fail_while_the_directory_is_unreachable() {
    let failed = |outcome: &str, store: Option<(u64, u64)>| {
        let mut built = one_login();
        built
            .granted("n2", 2)
            .admitted("n2", 2)
            .logged_in(2)
            .wait_ms(100);
        let (id, to) = ("m".to_owned(), Some(Uid::new(UID).unwrap()));
        built
            .client_saw(2, What::Sent { id: id.clone(), to })
            .wait_ms(10);
        let (outcome, devices) = (outcome.to_owned(), Some(Vec::new()));
        built.client_saw(
            2,
            What::Outcome {
                id,
                outcome,
                devices,
            },
        );
        if let Some((from, to)) = store {
            built
                .history
                .facts
                .push(n2_without_store(from * MS, to * MS));
        }
        let mut rules = Rules::default();
        rules.limit = 2;
        check(&built.history, &rules).violated()
    };
    assert_eq!(failed("failed", None), [I18]);
    assert_eq!(failed("failed", Some((50, 200))), []);
    // An outage that ended before the sending excuses no failure. Any outcome but `failed` needs
    // the directory.
    assert_eq!(failed("failed", Some((0, 50))), [I18]);
    assert_eq!(failed("stored", Some((50, 200))), [I18]);
}

#[test]
fn each_process_numbers_its_events_from_one() {
    let up = |seq: u64, boot: u64| {
        json!({
            "seq": seq, "at_ms": 0, "clock_us": boot, "node": "n1", "boot": boot,
            "event": "node_up",
        })
        .to_string()
    };
    let mut built = HistoryBuilder::default();
    for line in [up(1, 101), up(1, 102)] {
        built.history.read_node([line.as_str()]).unwrap();
    }
    assert!(!built.violated().contains(&Complete));
    // A process counts from 1 and does not continue the numbers of its predecessor.
    for line in [up(2, 102), up(2, 103)] {
        built.history.read_node([line.as_str()]).unwrap();
    }
    assert!(built.violated().contains(&Complete));
}
