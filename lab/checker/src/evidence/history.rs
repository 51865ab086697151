//! The history of a run: the events of the nodes, the observations of the clients, the actions of
//! the test, and the directory at the end.

use std::collections::BTreeMap;

use distlock_kickout::{Code, Device, Event, Generation, NodeId, SessionId, Uid, UserRecord};
use serde::{Deserialize, Serialize};

/// The history of one run. Times are microseconds since the machine booted.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The events of the nodes.
    pub nodes: Vec<Event>,
    /// The observations of the clients, in the order in which they were made.
    pub clients: Vec<Seen>,
    /// The actions of the test, and the answers that the test got.
    pub facts: Vec<Fact>,
    /// The directory at the end, after all logins were answered.
    pub records: BTreeMap<Uid, UserRecord>,
}

/// An action or an observation of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The time.
    pub at_us: u64,
    /// The connection of the client, by its number.
    pub client: u64,
    /// The account of the client.
    pub uid: Uid,
    /// The device of the client.
    pub device: Device,
    /// The node that the client is connected to.
    pub node: NodeId,
    /// The action or observation.
    pub what: What,
}

/// The actions and observations of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// The client sent its login.
    LoginSent,
    /// The client is logged in.
    LoginOk {
        /// The session.
        session: SessionId,
        /// The login's generation.
        r#gen: Generation,
    },
    /// The login was refused for a temporary reason.
    Busy,
    /// The login was denied.
    Denied {
        /// The reason.
        code: Code,
    },
    /// A newer login replaced the client's login before the answer.
    Overtaken,
    /// The client got the notice that its session ended.
    Told {
        /// The reason.
        code: Code,
    },
    /// The client got a message.
    Message {
        /// The message.
        id: String,
    },
    /// The client acknowledged a message.
    Acked {
        /// The message.
        id: String,
    },
    /// The client sent a message.
    Sent {
        /// The message.
        id: String,
        /// The receiving account, if the message is known to be for all devices of that account.
        to: Option<Uid>,
    },
    /// The client's message was refused, because its session had ended.
    Refused,
    /// The client learned the outcome of a message.
    Outcome {
        /// The message.
        id: String,
        /// `delivered`, `written`, `stored` or `failed`, or the code of the error with which the
        /// message was refused. A refused message reaches no session.
        outcome: String,
        /// The outcome for each device, if the client got these outcomes.
        devices: Option<Vec<DeviceOutcome>>,
    },
    /// The client leaves by itself, or after a notice.
    Leaves,
    /// The server closed the connection before the client did, or the connection broke.
    Closed,
}

/// The outcome of a message for one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOutcome {
    /// The device.
    pub device: Device,
    /// `delivered`, `written`, `stored` or `failed`.
    pub outcome: String,
}

/// An action of the test, or an answer that the test got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fact {
    /// A node was killed.
    Killed {
        /// The node.
        node: NodeId,
        /// A time at which the node was certainly dead.
        at_us: u64,
    },
    /// A node was paused.
    Paused {
        /// The node.
        node: NodeId,
        /// Just before the pause.
        from_us: u64,
        /// Just after the pause.
        to_us: u64,
    },
    /// A node's lease was freed by hand. The node notices the loss at its next renewal.
    LeaseFreed {
        /// The node.
        node: NodeId,
        /// Just before the lease was freed.
        at_us: u64,
    },
    /// The test cut a client's connection.
    Cut {
        /// The connection.
        client: u64,
    },
    /// The test requested the location of an account from a node.
    Lookup {
        /// The account.
        uid: Uid,
        /// Time at which the request was sent.
        from_us: u64,
        /// Time at which the answer arrived.
        to_us: u64,
        /// The generation of the account's record.
        r#gen: Generation,
        /// The session that the record names.
        session: Option<SessionId>,
    },
    /// Connections in TIME_WAIT on a node's port for clients.
    Lingering {
        /// The node.
        node: NodeId,
        /// Number of connections.
        sockets: usize,
    },
    /// Every login of an account was answered, and the directory and the clients agreed.
    Quiet {
        /// The account.
        uid: Uid,
        /// The time.
        at_us: u64,
    },
    /// An account without competing logins. Faults of other accounts and nodes must not delay its
    /// logins.
    Bystander {
        /// The account.
        uid: Uid,
    },
    /// The store may have lost confirmed writes of a span of time.
    Forgotten {
        /// Just before the first of these writes.
        from_us: u64,
        /// Just after the last of these writes.
        to_us: u64,
    },
    /// Calls of other nodes to a node got lost or were late.
    Unreachable {
        /// The node.
        node: NodeId,
        /// Just before the fault.
        from_us: u64,
        /// Time by which other nodes reach the node again.
        to_us: u64,
    },
    /// A node, or every node, could not rely on the store: the connections were cut, or the server
    /// was unreachable.
    NoStore {
        /// The node; `None` stands for all nodes.
        node: Option<NodeId>,
        /// Just before the fault.
        from_us: u64,
        /// Time by which the node reaches the store again.
        to_us: u64,
    },
    /// Another account or another node had a fault: its lock was held, the node failed, or the node
    /// could not reach the store.
    Trouble {
        /// Just before the trouble.
        from_us: u64,
        /// Just after the trouble.
        to_us: u64,
    },
}

impl History {
    /// Adds the events of one process, one JSON object per line. Other lines are skipped. Events of
    /// the same moment may be in any order.
    ///
    /// # Errors
    /// For a line that begins as an object and is not an event.
    pub fn read_node<'a>(
        &mut self,
        lines: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), serde_json::Error> {
        let mut events: Vec<Event> = Vec::new();
        for line in lines {
            if line.starts_with('{') && !line.starts_with(r#"{"event":"ready""#) {
                events.push(serde_json::from_str(line)?);
            }
        }
        events.sort_by_key(|event| event.seq);
        self.nodes.append(&mut events);
        Ok(())
    }

    /// Writes the history in the order of time, one JSON object per line.
    ///
    /// # Errors
    /// Never for a value that a history can hold.
    pub fn to_lines(&self) -> Result<String, serde_json::Error> {
        let mut lines = Vec::new();
        for event in &self.nodes {
            lines.push((event.clock_us, serde_json::to_string(event)?));
        }
        for seen in &self.clients {
            lines.push((seen.at_us, serde_json::to_string(seen)?));
        }
        for fact in &self.facts {
            lines.push((fact.at_us(), serde_json::to_string(fact)?));
        }
        for record in &self.records {
            lines.push((u64::MAX, serde_json::to_string(&record)?));
        }
        lines.sort_by_key(|(at, _)| *at);
        let lines: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
        Ok(lines.join("\n"))
    }

    /// Whether a node was paused at some time between two moments.
    pub(crate) fn was_paused(&self, node: &NodeId, from: u64, to: u64) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::Paused { node: paused, from_us, to_us }
                if paused == node && *from_us <= to && *to_us >= from)
        })
    }

    /// Whether a node's lease was freed by hand at some time between two moments.
    pub(crate) fn was_lease_freed(&self, node: &NodeId, from: u64, to: u64) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::LeaseFreed { node: freed, at_us }
                if freed == node && from <= *at_us && *at_us <= to)
        })
    }

    /// Whether the store may have lost a write of this moment.
    pub(crate) fn may_store_have_lost_write(&self, at_us: u64) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::Forgotten { from_us, to_us }
                if *from_us <= at_us && at_us <= *to_us)
        })
    }

    /// The time at which a node was killed for the first time, at or after this moment.
    pub(crate) fn killed_after(&self, node: &NodeId, after: u64) -> Option<u64> {
        self.facts
            .iter()
            .filter_map(|fact| match fact {
                Fact::Killed {
                    node: killed,
                    at_us,
                } if killed == node && *at_us >= after => Some(*at_us),
                _ => None,
            })
            .min()
    }

    /// The time of the last kill at or before this moment.
    pub(crate) fn last_kill_before(&self, before: u64) -> Option<u64> {
        let killed = |fact: &Fact| match fact {
            Fact::Killed { at_us, .. } if *at_us <= before => Some(*at_us),
            _ => None,
        };
        self.facts.iter().filter_map(killed).max()
    }

    /// Whether any node was killed between two moments.
    pub(crate) fn was_any_killed(&self, from: u64, to: u64) -> bool {
        self.facts.iter().any(
            |fact| matches!(fact, Fact::Killed { at_us, .. } if from <= *at_us && *at_us <= to),
        )
    }

    /// The time of the last entry.
    pub(crate) fn end_us(&self) -> u64 {
        let nodes = self.nodes.iter().map(|it| it.clock_us);
        let clients = self.clients.iter().map(|it| it.at_us);
        let facts = self.facts.iter().map(Fact::at_us);
        nodes.chain(clients).chain(facts).max().unwrap_or_default()
    }
}

impl Fact {
    /// The time of the fact, or of its end. A fact without a time is at 0.
    const fn at_us(&self) -> u64 {
        match self {
            Self::Killed { at_us, .. }
            | Self::LeaseFreed { at_us, .. }
            | Self::Quiet { at_us, .. } => *at_us,
            Self::Paused { to_us, .. }
            | Self::Lookup { to_us, .. }
            | Self::Forgotten { to_us, .. }
            | Self::NoStore { to_us, .. }
            | Self::Unreachable { to_us, .. }
            | Self::Trouble { to_us, .. } => *to_us,
            Self::Cut { .. } | Self::Lingering { .. } | Self::Bystander { .. } => 0,
        }
    }
}
