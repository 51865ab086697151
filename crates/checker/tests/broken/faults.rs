//! Allowances of faults: for the time of the fault and for its node, and no further.

use distlock_checker::{Fact, Invariant::*, Rules, What, check};
use distlock_kickout::{NodeId, Uid};
use serde_json::json;

use crate::play::{MS, Play, UID, first};

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// A newcomer on `n2` is admitted, and the older session on `n1` ends this much later.
fn told_after(ms: u64) -> Play {
    let mut play = first();
    play.granted("n2", 2)
        .admitted("n2", 2)
        .after(ms)
        .superseded("n1", 1, 2)
        .closed("n1", 1, "AlreadyGone");
    play
}

/// As [`told_after`], with a fault between `from` and `to`, in milliseconds.
fn broken(ms: u64, fact: impl Fn(u64, u64) -> Fact, from: u64, to: u64) -> Play {
    let mut play = told_after(ms);
    play.history.facts.push(fact(from * MS, to * MS));
    play
}

fn unreachable(from_us: u64, to_us: u64) -> Fact {
    let node = node("n1");
    Fact::Unreachable {
        node,
        from_us,
        to_us,
    }
}

fn no_store(from_us: u64, to_us: u64) -> Fact {
    let node = Some(node("n1"));
    Fact::NoStore {
        node,
        from_us,
        to_us,
    }
}

fn other_without_store(from_us: u64, to_us: u64) -> Fact {
    let node = Some(node("n2"));
    Fact::NoStore {
        node,
        from_us,
        to_us,
    }
}

#[test]
fn a_session_that_nobody_could_tell() {
    let lease = u64::try_from(Rules::default().node_lease.as_millis()).unwrap();
    // The node finds the loss by itself at the end of its lease at the latest.
    assert_eq!(told_after(lease - 100).violated(), [I1]);
    let cut = broken(lease - 100, unreachable, 0, 2_000);
    assert!(cut.check().is_clean(), "{}", cut.check());
    assert_eq!(broken(lease + 500, unreachable, 0, 2_000).violated(), [I1]);
    // This fault is long after the latest allowed end of the session.
    let later = broken(lease - 100, unreachable, lease + 1_000, lease + 2_000);
    assert_eq!(later.violated(), [I1]);
}

#[test]
fn a_node_without_its_store_loses_one_look_and_no_more() {
    let lease = u64::try_from(Rules::default().node_lease.as_millis()).unwrap();
    let look = lease / 3;
    let cut = broken(lease + look, no_store, 500, 2 * lease);
    assert!(cut.check().is_clean(), "{}", cut.check());
    // The lease of its node has ended by now.
    let stays = broken(lease + look + 1_000, no_store, 500, 2 * lease);
    assert_eq!(stays.violated(), [I1]);
    // A fault of another node allows this one nothing.
    let other = broken(lease + look, other_without_store, 500, 2 * lease);
    assert_eq!(other.violated(), [I1]);
}

/// `n1` is killed, and a login on `n2` is refused this much later.
fn turned_away_after(ms: u64) -> Play {
    let mut play = first();
    play.at += 1;
    play.history.facts.push(Fact::Killed {
        node: node("n1"),
        at_us: play.at,
    });
    play.after(ms)
        .client(2, What::LoginSent)
        .client(2, What::Busy);
    play
}

#[test]
fn an_account_that_is_kept_out_by_something_else_than_a_crash() {
    let rules = Rules::default();
    let waits = u64::try_from((rules.node_lease + rules.lock_ttl).as_millis()).unwrap();
    let at = 3 * waits;
    assert_eq!(turned_away_after(at).violated(), [I14]);
    for (from, to, excused) in [
        (at - 100, at + 100, true),
        // The nodes wait for N after the store came back.
        (at - waits, at - waits + 200, true),
        (100, 200, false),
        (at + 100, at + 200, false),
    ] {
        let mut play = turned_away_after(at);
        play.history.facts.push(Fact::NoStore {
            node: None,
            from_us: from * MS,
            to_us: to * MS,
        });
        assert_eq!(play.check().is_clean(), excused, "{from} to {to}");
    }
}

#[test]
fn a_login_that_waits_for_the_store() {
    let waits = |fact: Option<Fact>| {
        let mut play = Play::default();
        play.client(1, What::LoginSent)
            .after(10_000)
            .granted("n1", 1)
            .admitted("n1", 1)
            .in_(1)
            .record(1, 1);
        play.history.facts.extend(fact);
        check(&play.history, &Rules::default()).violated()
    };
    assert_eq!(waits(None), [I14]);
    assert_eq!(waits(Some(no_store(0, 9_000 * MS))), []);
    // Two simultaneous outages count once.
    let short = no_store(0, 4_000 * MS);
    let mut play = Play::default();
    play.client(1, What::LoginSent)
        .after(10_000)
        .granted("n1", 1)
        .admitted("n1", 1)
        .in_(1)
        .record(1, 1);
    play.history.facts.extend([short.clone(), short]);
    assert_eq!(play.violated(), [I14]);
}

#[test]
fn a_dead_session_that_nobody_could_clear_away() {
    let rules = Rules::default();
    let late = u64::try_from(rules.cleanup().as_millis()).unwrap() + 500;
    let mut play = first();
    play.at += 1;
    play.history.facts.push(Fact::Killed {
        node: node("n1"),
        at_us: play.at,
    });
    play.after(late).about("n2", "ghost_swept", 1);
    assert_eq!(play.violated(), [I12]);
    play.history.facts.push(Fact::NoStore {
        node: None,
        from_us: 3_000 * MS,
        to_us: 4_000 * MS,
    });
    assert!(play.check().is_clean(), "{}", play.check());
}

#[test]
fn a_node_that_is_killed_while_it_takes_leave() {
    let killed_after = |ms: Option<u64>| {
        let mut play = first();
        play.event("n1", "node_fenced", json!({}));
        play.of("n1", "superseded", 1, json!({"code": 8}));
        let at_us = play.at + ms.unwrap_or_default() * MS;
        if ms.is_some() {
            let node = node("n1");
            play.history.facts.push(Fact::Killed { node, at_us });
        }
        play.after(20_000)
            .event("n2", "node_up", json!({}))
            .violated()
    };
    assert!(killed_after(None).contains(&I11));
    assert!(!killed_after(Some(500)).contains(&I11));
    // The node had enough time to close the connection.
    assert!(killed_after(Some(10_000)).contains(&I11));
}

#[test]
fn a_message_to_an_account_whose_older_session_could_not_be_told() {
    let sent = |revoked: bool| {
        let mut play = first();
        play.granted("n2", 2).admitted("n2", 2).in_(2);
        if revoked {
            play.revoked("n2", 1, 2);
        }
        let (id, to) = ("m".to_owned(), Some(Uid::new(UID).unwrap()));
        play.client(2, What::Sent { id: id.clone(), to });
        play.of("n2", "stored", 2, json!({"message": "m"}));
        let device = distlock_kickout::Device::new("d2").unwrap();
        let outcome = "stored".to_owned();
        let devices = Some(vec![distlock_checker::DeviceOutcome {
            device,
            outcome: outcome.clone(),
        }]);
        play.client(
            2,
            What::Outcome {
                id,
                outcome,
                devices,
            },
        );
        let mut rules = Rules::default();
        rules.limit = 2;
        check(&play.history, &rules).violated()
    };
    assert!(sent(false).contains(&I18), "it was in, and current");
    assert!(!sent(true).contains(&I18), "another one had its place");
}

#[test]
fn a_message_whose_receivers_nobody_could_look_up() {
    let failed = |outcome: &str, store: Option<(u64, u64)>| {
        let mut play = first();
        play.granted("n2", 2).admitted("n2", 2).in_(2).after(100);
        let (id, to) = ("m".to_owned(), Some(Uid::new(UID).unwrap()));
        play.client(2, What::Sent { id: id.clone(), to }).after(10);
        let (outcome, devices) = (outcome.to_owned(), Some(Vec::new()));
        play.client(
            2,
            What::Outcome {
                id,
                outcome,
                devices,
            },
        );
        if let Some((from, to)) = store {
            play.history
                .facts
                .push(other_without_store(from * MS, to * MS));
        }
        let mut rules = Rules::default();
        rules.limit = 2;
        check(&play.history, &rules).violated()
    };
    assert_eq!(failed("failed", None), [I18]);
    assert_eq!(failed("failed", Some((50, 200))), []);
    // The outage was over before, and the other outcomes need the directory.
    assert_eq!(failed("failed", Some((0, 50))), [I18]);
    assert_eq!(failed("stored", Some((50, 200))), [I18]);
}

#[test]
fn a_process_that_said_one_thing_before_it_was_killed() {
    let up = |seq: u64, boot: u64| {
        json!({
            "seq": seq, "at_ms": 0, "boot_us": boot, "node": "n1", "boot": boot,
            "event": "node_up",
        })
        .to_string()
    };
    let mut play = Play::default();
    for line in [up(1, 101), up(1, 102)] {
        play.history.read_node([line.as_str()]).unwrap();
    }
    assert!(!play.violated().contains(&Complete));
    // A process counts from 1; it does not continue its predecessor's numbers.
    for line in [up(2, 102), up(2, 103)] {
        play.history.read_node([line.as_str()]).unwrap();
    }
    assert!(play.violated().contains(&Complete));
}
