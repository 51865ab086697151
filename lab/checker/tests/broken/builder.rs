//! A builder of histories.

use distlock_checker::{History, Invariant, Report, Rules, Seen, What, check};
use distlock_kickout::{Code, Device, Generation, NodeId, SessionId, Uid, UserRecord};
use serde_json::{Value, json};
use uuid::Uuid;

/// A millisecond in microseconds.
pub(crate) const MS: u64 = 1000;
pub(crate) const UID: &str = "anna";

/// A history in progress.
#[derive(Default)]
pub(crate) struct HistoryBuilder {
    pub(crate) history: History,
    pub(crate) at: u64,
}

pub(crate) fn session_id(number: u8) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(u128::from(number)))
}

pub(crate) fn kick_id(number: u8) -> Uuid {
    Uuid::from_u128(0x1000 + u128::from(number))
}

/// Adds the fields of one object to another.
pub(crate) fn add_fields(whole: &mut Value, more: Value) {
    if let (Value::Object(whole), Value::Object(more)) = (whole, more) {
        whole.extend(more);
    }
}

impl HistoryBuilder {
    /// Lets time pass before the next entry.
    pub(crate) fn wait_ms(&mut self, ms: u64) -> &mut Self {
        self.at += ms * MS;
        self
    }

    /// An event of node `n1` (boot 101) or `n2` (boot 102).
    pub(crate) fn event(&mut self, node: &str, event: &str, fields: Value) -> &mut Self {
        self.at += 1;
        let boot = if node == "n1" { 101 } else { 102 };
        let before = self
            .history
            .nodes
            .iter()
            .filter(|it| it.node.as_str() == node);
        let seq = before.count() + 1;
        let mut whole = json!({
            "seq": seq, "at_ms": 0, "clock_us": self.at, "node": node, "boot": boot, "event": event,
        });
        add_fields(&mut whole, fields);
        let line = whole.to_string();
        self.history.read_node([line.as_str()]).unwrap();
        self
    }

    /// An event of a node about one of its own sessions.
    pub(crate) fn session_event(
        &mut self,
        node: &str,
        event: &str,
        number: u8,
        more: Value,
    ) -> &mut Self {
        let mut fields = json!({
            "uid": UID, "session": session_id(number), "gen": number,
            "device": format!("d{number}"),
        });
        add_fields(&mut fields, more);
        self.event(node, event, fields)
    }

    pub(crate) fn granted(&mut self, node: &str, number: u8) -> &mut Self {
        self.session_event(node, "granted", number, json!({"token": number}))
    }

    pub(crate) fn admitted(&mut self, node: &str, number: u8) -> &mut Self {
        self.session_event(node, "admitted", number, json!({}))
    }

    pub(crate) fn superseded(&mut self, node: &str, number: u8, by: u8) -> &mut Self {
        let more = json!({"code": 1, "by_device": format!("d{by}"), "kick_id": kick_id(number)});
        self.session_event(node, "superseded", number, more)
    }

    pub(crate) fn closed(&mut self, node: &str, number: u8, result: &str) -> &mut Self {
        self.session_event(node, "closed", number, json!({"result": result}))
    }

    /// A kick that node `to` received and answered, and that node `from` sent.
    pub(crate) fn kick_arrived(&mut self, from: &str, to: &str, number: u8) -> &mut Self {
        let fields = |peer: &str, result: &str| {
            json!({
                "uid": UID, "session": session_id(number), "kick_id": kick_id(number),
                "peer": peer, "result": result,
            })
        };
        self.event(to, "kick_received", fields(from, "Kicked"));
        self.event(from, "kick_sent", fields(to, "Kicked"))
    }

    /// An observation of a client. Odd numbers are on `n1`, even numbers on `n2`.
    pub(crate) fn client_saw(&mut self, number: u8, what: What) -> &mut Self {
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

    /// The client's login is confirmed. The client's number is also the number of its generation.
    pub(crate) fn logged_in(&mut self, number: u8) -> &mut Self {
        let r#gen = Generation::new(u64::from(number));
        let session = session_id(number);
        self.client_saw(number, What::LoginOk { session, r#gen })
    }

    /// The client gets the notice that another device logged in.
    pub(crate) fn got_notice(&mut self, number: u8) -> &mut Self {
        let code = Code::Superseded;
        self.client_saw(number, What::Told { code })
    }

    /// A second device logs in on `n2`. The first device gets its notice and leaves, and the
    /// directory names the session of the second device.
    pub(crate) fn second_takes_over(&mut self) -> &mut Self {
        self.client_saw(2, What::LoginSent)
            .granted("n2", 2)
            .superseded("n1", 1, 2)
            .kick_arrived("n2", "n1", 1)
            .admitted("n2", 2)
            .logged_in(2)
            .got_notice(1)
            .client_saw(1, What::Leaves)
            .closed("n1", 1, "AlreadyGone")
            .directory_names(2, 2)
    }

    /// At the end the directory names this session, in a record of generation `gen`. Odd numbers
    /// are on `n1`, even numbers on `n2`.
    pub(crate) fn directory_names(&mut self, number: u8, r#gen: u8) -> &mut Self {
        let (node, boot) = if number % 2 == 1 {
            ("n1", 101)
        } else {
            ("n2", 102)
        };
        let record = json!({"v": 1, "gen": r#gen, "slots": {"main": {
            "node": node, "boot": boot, "session": session_id(number), "gen": number,
            "device": "d", "class": "", "since_ms": 0,
        }}});
        let uid = Uid::new(UID).unwrap();
        let record = UserRecord::parse(&uid, record.to_string().as_bytes()).unwrap();
        self.history.records.insert(uid, record);
        self
    }

    /// The report of the checker with the default rules.
    pub(crate) fn check(&self) -> Report {
        check(&self.history, &Rules::default())
    }

    /// The invariants that the history violates under the default rules.
    pub(crate) fn violated(&self) -> Vec<Invariant> {
        self.check().violated()
    }
}

/// One login on `n1`.
pub(crate) fn one_login() -> HistoryBuilder {
    let mut built = HistoryBuilder::default();
    built
        .event("n1", "node_up", json!({"token": 101}))
        .event("n2", "node_up", json!({"token": 102}))
        .client_saw(1, What::LoginSent)
        .granted("n1", 1)
        .admitted("n1", 1)
        .logged_in(1)
        .wait_ms(10);
    built
}

/// One login on `n1`, then a takeover on `n2`.
pub(crate) fn one_takeover() -> HistoryBuilder {
    let mut built = one_login();
    built.second_takes_over();
    built
}

/// Events of any node about a session that may belong to another node.
impl HistoryBuilder {
    pub(crate) fn revoked(&mut self, by: &str, number: u8, by_gen: u8) -> &mut Self {
        let fields = json!({
            "uid": UID, "session": session_id(number), "gen_max": by_gen - 1, "by_gen": by_gen,
            "kick_id": kick_id(number),
        });
        self.event(by, "revoked", fields)
    }

    pub(crate) fn event_about_session(&mut self, node: &str, event: &str, number: u8) -> &mut Self {
        self.event(
            node,
            event,
            json!({"uid": UID, "session": session_id(number)}),
        )
    }
}
