//! The checker is worth what it catches: an honest history passes, and each history with one fault in it is caught by the
//! invariant that the fault breaks.

use std::time::Duration;

use distlock_checker::{Fact, History, Invariant, Invariant::*, Report, Rules, Seen, What, check};
use distlock_kickout::{Code, Device, Generation, NodeId, SessionId, Uid, UserRecord};
use serde_json::{Value, json};
use uuid::Uuid;

const MS: u64 = 1000;
const UID: &str = "anna";

/// A history being written.
#[derive(Default)]
struct Play {
    history: History,
    at: u64,
}

fn session(number: u8) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(u128::from(number)))
}

fn kick(number: u8) -> Uuid {
    Uuid::from_u128(0x1000 + u128::from(number))
}

fn extend(whole: &mut Value, more: Value) {
    if let (Value::Object(whole), Value::Object(more)) = (whole, more) {
        whole.extend(more);
    }
}

impl Play {
    fn after(&mut self, ms: u64) -> &mut Self {
        self.at += ms * MS;
        self
    }

    /// An event of node `n1` (boot 101) or `n2` (boot 102).
    fn event(&mut self, node: &str, event: &str, fields: Value) -> &mut Self {
        self.at += 1;
        let boot = if node == "n1" { 101 } else { 102 };
        let before = self
            .history
            .nodes
            .iter()
            .filter(|it| it.node.as_str() == node);
        let seq = before.count() + 1;
        let mut whole = json!({"seq": seq, "at_ms": 0, "boot_us": self.at, "node": node, "boot": boot, "event": event});
        extend(&mut whole, fields);
        let line = whole.to_string();
        self.history.read_node([line.as_str()]).unwrap();
        self
    }

    fn of(&mut self, node: &str, event: &str, number: u8, more: Value) -> &mut Self {
        let mut fields = json!({"uid": UID, "session": session(number), "gen": number, "device": format!("d{number}")});
        extend(&mut fields, more);
        self.event(node, event, fields)
    }

    fn granted(&mut self, node: &str, number: u8) -> &mut Self {
        self.of(node, "granted", number, json!({"token": number}))
    }

    fn admitted(&mut self, node: &str, number: u8) -> &mut Self {
        self.of(node, "admitted", number, json!({}))
    }

    fn superseded(&mut self, node: &str, number: u8, by: u8) -> &mut Self {
        let more = json!({"code": 1, "by_device": format!("d{by}"), "kick_id": kick(number)});
        self.of(node, "superseded", number, more)
    }

    fn closed(&mut self, node: &str, number: u8, result: &str) -> &mut Self {
        self.of(node, "closed", number, json!({"result": result}))
    }

    fn kicked(&mut self, from: &str, to: &str, number: u8) -> &mut Self {
        let fields = |peer: &str, result: &str| json!({"uid": UID, "session": session(number), "kick_id": kick(number), "peer": peer, "result": result});
        self.event(to, "kick_received", fields(from, "Kicked"));
        self.event(from, "kick_sent", fields(to, "Kicked"))
    }

    fn client(&mut self, number: u8, what: What) -> &mut Self {
        self.at += 1;
        let node = if number % 2 == 1 { "n1" } else { "n2" };
        self.history.clients.push(Seen {
            at_us: self.at,
            client: u64::from(number),
            uid: Uid::new(UID).unwrap(),
            device: Device::new(format!("d{number}")).unwrap(),
            node: NodeId::new(node).unwrap(),
            what,
        });
        self
    }

    fn in_(&mut self, number: u8) -> &mut Self {
        let r#gen = Generation::new(u64::from(number));
        let session = session(number);
        self.client(number, What::LoginOk { session, r#gen })
    }

    fn told(&mut self, number: u8) -> &mut Self {
        let code = Code::Superseded;
        self.client(number, What::Told { code })
    }

    /// Another one on `n2` logs in, the first is told and leaves, and the directory says so.
    fn second_takes_over(&mut self) -> &mut Self {
        self.client(2, What::LoginSent)
            .granted("n2", 2)
            .superseded("n1", 1, 2)
            .kicked("n2", "n1", 1)
            .admitted("n2", 2)
            .in_(2)
            .told(1)
            .client(1, What::Leaves)
            .closed("n1", 1, "AlreadyGone")
            .record(2, 2)
    }

    /// The directory at the end names this session, on the node of its parity.
    fn record(&mut self, number: u8, r#gen: u8) -> &mut Self {
        let (node, boot) = if number % 2 == 1 {
            ("n1", 101)
        } else {
            ("n2", 102)
        };
        let record = json!({"v": 1, "gen": r#gen, "slots": {"main": {
            "node": node, "boot": boot, "session": session(number), "gen": number, "device": "d", "class": "", "since": 0}}});
        let uid = Uid::new(UID).unwrap();
        let record = UserRecord::parse(&uid, record.to_string().as_bytes()).unwrap();
        self.history.records.insert(uid, record);
        self
    }

    fn check(&self) -> Report {
        check(&self.history, &Rules::default())
    }

    fn violated(&self) -> Vec<Invariant> {
        self.check().violated()
    }
}

/// One login on `n1`.
fn first() -> Play {
    let mut play = Play::default();
    play.event("n1", "node_up", json!({"token": 101}))
        .event("n2", "node_up", json!({"token": 102}))
        .client(1, What::LoginSent)
        .granted("n1", 1)
        .admitted("n1", 1)
        .in_(1)
        .after(10);
    play
}

/// Then another one on `n2` takes over.
fn honest() -> Play {
    let mut play = first();
    play.second_takes_over();
    play
}

#[test]
fn an_honest_history_is_not_accused() {
    let report = honest().check();
    assert!(report.is_clean(), "{report}");
    for invariant in [I1, I2, I3, I4, I5, I6, I7, I9, I11, I13, I14, I16, I17] {
        assert!(
            report.looked_at(invariant) > 0,
            "{invariant} was not looked at"
        );
    }
}

/// A kick that looks up the account instead of the session ends the newcomer: the older login's kick arrives late.
#[test]
fn a_kick_by_account_only() {
    let mut play = honest();
    let fields = json!({"uid": UID, "session": session(1), "kick_id": kick(1), "peer": "n1", "result": "Kicked"});
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

/// The old session's logout deletes whatever the directory holds: the newcomer's entry.
#[test]
fn a_delete_without_comparing() {
    let mut play = honest();
    let closed = play.history.nodes.last_mut().unwrap();
    closed.result = Some("Deleted".into());
    assert_eq!(play.violated(), [I5]);
    // And seen from outside: the directory names nobody, although the newcomer is in.
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

/// A login that lost its lock writes over the newer one, finds itself in the directory and is let in.
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
    // The same with a generation on top: then the tokens tell.
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
    // A node that was stopped meanwhile could not know.
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

#[test]
fn a_superseded_session_that_still_receives() {
    let mut play = honest();
    play.client(1, What::Message { id: "m".into() });
    assert!(play.violated().contains(&I8), "{}", play.check());
    let mut play = honest();
    let late = json!({"uid": UID, "session": session(1), "result": "message m delivered"});
    play.after(5000).event("n2", "delivered", late);
    assert_eq!(play.violated(), [I8]);
    // Strict confirmation: let in while the older one was active.
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
    let cleanup = u64::try_from(Rules::default().cleanup.as_millis()).unwrap();
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

/// What another node says about one of the sessions.
impl Play {
    fn revoked(&mut self, by: &str, number: u8, by_gen: u8) -> &mut Self {
        let fields = json!({"uid": UID, "session": session(number), "gen_max": by_gen - 1, "by_gen": by_gen, "kick_id": kick(number)});
        self.event(by, "revoked", fields)
    }

    fn about(&mut self, node: &str, event: &str, number: u8) -> &mut Self {
        self.event(node, event, json!({"uid": UID, "session": session(number)}))
    }
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
    // Unless the store forgot that it was.
    for (to_us, forgotten) in [(1, false), (play.at, true)] {
        let from_us = 0;
        let fact = Fact::Forgotten { from_us, to_us };
        play.history.facts.push(fact);
        assert_eq!(play.check().is_clean(), forgotten, "{}", play.check());
    }
    // Somebody who is in was taken out.
    let mut play = first();
    play.about("n2", "deleted", 1);
    assert_eq!(play.violated(), [I5]);
}

#[test]
fn a_living_node_that_is_swept() {
    let mut play = first();
    play.about("n2", "ghost_swept", 1).after(5000);
    play.event("n1", "node_fenced", json!({}));
    assert_eq!(play.violated(), [I5]);
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
    let fields = json!({"uid": UID, "session": session(1), "kick_id": kick(2), "peer": "n1", "result": "AlreadyGone"});
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

#[test]
fn a_success_that_was_none() {
    let mut play = first();
    play.client(3, What::LoginSent).in_(3);
    assert!(play.violated().contains(&I17), "{}", play.check());
    let mut play = first();
    let id = || "m1".to_owned();
    play.client(1, What::Sent { id: id() }).client(
        1,
        What::Outcome {
            id: id(),
            outcome: "delivered".into(),
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
    };
    let mut play = first();
    play.client(1, What::Sent { id: id() }).client(1, stored());
    assert!(play.check().is_clean(), "{}", play.check());
    play.client(1, What::Message { id: id() });
    play.client(1, What::Message { id: id() });
    assert_eq!(play.violated(), [I18]);
    let mut play = first();
    play.client(1, What::Sent { id: id() });
    assert_eq!(play.violated(), [I18], "the sender heard nothing");
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
    // Twice to one of them is once too often, and so is one that was never kept.
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
    play.client(1, What::Sent { id: id() });
    play.event("n1", "stored", json!({"uid": UID, "message": "m"}));
    let outcome = "stored".into();
    play.client(1, What::Outcome { id: id(), outcome });
    assert!(play.check().is_clean(), "nobody has come: {}", play.check());
    play.second_takes_over();
    assert_eq!(play.violated(), [I18]);
    play.client(2, What::Message { id: id() });
    assert!(play.check().is_clean(), "{}", play.check());
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
    rules.settle = Duration::from_secs(9);
    assert!(check(&play.history, &rules).is_clean());
}
