//! What happened: the nodes' events, what clients saw, what the test did, and the directory at the end.

use std::collections::BTreeMap;

use distlock_kickout::{Code, Device, Event, Generation, NodeId, SessionId, Uid, UserRecord};
use serde::{Deserialize, Serialize};

/// Everything that is known of one run. Times are microseconds since the machine booted.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What the nodes say.
    pub nodes: Vec<Event>,
    /// What the clients saw, in the order in which they saw it.
    pub clients: Vec<Seen>,
    /// What the test did and asked.
    pub facts: Vec<Fact>,
    /// The directory at the end, when everything had settled.
    pub records: BTreeMap<Uid, UserRecord>,
}

/// Something a client did or saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// When.
    pub at_us: u64,
    /// Which connection.
    pub client: u64,
    /// Its account.
    pub uid: Uid,
    /// Its device.
    pub device: Device,
    /// The node it is connected to.
    pub node: NodeId,
    /// What it did or saw.
    pub what: What,
}

/// What a client does and sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// It asked to log in.
    LoginSent,
    /// It is in.
    LoginOk {
        /// The session.
        session: SessionId,
        /// The login's generation.
        r#gen: Generation,
    },
    /// It was turned away for now.
    Busy,
    /// It was turned away for good.
    Denied {
        /// Why.
        code: Code,
    },
    /// A newer login came before it was in.
    Overtaken,
    /// Its session ended, and it was told why.
    Told {
        /// Why.
        code: Code,
    },
    /// It got a message.
    Message {
        /// The message.
        id: String,
    },
    /// It acknowledged a message.
    Acked {
        /// The message.
        id: String,
    },
    /// It sent a message.
    Sent {
        /// The message.
        id: String,
        /// To all devices of this account, where it is known to be so.
        #[serde(default)]
        to: Option<Uid>,
    },
    /// What it sent was refused, because its session is over.
    Refused,
    /// It learned what became of a message.
    Outcome {
        /// The message.
        id: String,
        /// `delivered`, `written`, `stored` or `failed`; or the code of the error by which it was
        /// refused, and then it went nowhere.
        outcome: String,
        /// And for each device, where the client was told.
        #[serde(default)]
        devices: Option<Vec<DeviceOutcome>>,
    },
    /// It leaves of its own accord, or because it was told to.
    Leaves,
    /// The server closed before the client did, or the connection broke.
    Closed,
}

/// What became of a message for one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOutcome {
    /// The device.
    pub device: Device,
    /// `delivered`, `written`, `stored` or `failed`.
    pub outcome: String,
}

/// Something the test did to the nodes or asked of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fact {
    /// A node was killed.
    Killed {
        /// The node.
        node: NodeId,
        /// When it was certainly dead.
        at_us: u64,
    },
    /// A node did not run for a while.
    Paused {
        /// The node.
        node: NodeId,
        /// Just before it was stopped.
        from_us: u64,
        /// Just after it went on.
        to_us: u64,
    },
    /// A node's lease was freed by hand. The node learns it when it renews the lease next.
    LeaseFreed {
        /// The node.
        node: NodeId,
        /// Just before it was freed.
        at_us: u64,
    },
    /// A client's connection was cut by the test.
    Cut {
        /// The connection.
        client: u64,
    },
    /// A node was asked where an account is.
    Lookup {
        /// The account.
        uid: Uid,
        /// When the question was sent.
        from_us: u64,
        /// When the answer was there.
        to_us: u64,
        /// The generation of the account's record.
        r#gen: Generation,
        /// The session that it names.
        session: Option<SessionId>,
    },
    /// Connections in TIME_WAIT on a node's port for clients.
    Lingering {
        /// The node.
        node: NodeId,
        /// How many.
        sockets: usize,
    },
    /// Every login of an account was answered, and the directory and the clients agreed.
    Quiet {
        /// The account.
        uid: Uid,
        /// When.
        at_us: u64,
    },
    /// An account that nobody disturbs: its logins must not notice what happens to others.
    Bystander {
        /// The account.
        uid: Uid,
    },
    /// The store may have forgotten what was written in this time, although it had said that it was stored.
    Forgotten {
        /// Just before the first of these writes.
        from_us: u64,
        /// Just after the last one.
        to_us: u64,
    },
    /// What other nodes asked of a node got lost, or came late.
    Unreachable {
        /// The node.
        node: NodeId,
        /// Just before it began.
        from_us: u64,
        /// When other nodes must have found their way back to it.
        to_us: u64,
    },
    /// A node, or every node, could not rely on the store: their lines were cut, or its server was
    /// away.
    NoStore {
        /// The node; none = all of them.
        node: Option<NodeId>,
        /// Just before it began.
        from_us: u64,
        /// When the node must have found its way back to the store.
        to_us: u64,
    },
    /// Something was wrong with others: an account's lock, a node, or the store of one.
    Trouble {
        /// Just before it began.
        from_us: u64,
        /// Just after it was over.
        to_us: u64,
    },
}

impl History {
    /// Reads the events of one process, one JSON object a line; other lines are passed over. Events that happened at the same
    /// time may be printed in either order.
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

    /// One JSON object a line: everything in the order of time, for people and for later.
    ///
    /// # Errors
    /// Never for what can be in a history.
    pub fn to_lines(&self) -> Result<String, serde_json::Error> {
        let mut lines = Vec::new();
        for event in &self.nodes {
            lines.push((event.boot_us, serde_json::to_string(event)?));
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

    /// Whether a node was stopped at some time between two moments.
    pub(crate) fn paused(&self, node: &NodeId, from: u64, to: u64) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::Paused { node: paused, from_us, to_us }
                if paused == node && *from_us <= to && *to_us >= from)
        })
    }

    /// Whether a node's lease was freed by hand at some time between two moments.
    pub(crate) fn lease_freed(&self, node: &NodeId, from: u64, to: u64) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::LeaseFreed { node: freed, at_us }
                if freed == node && from <= *at_us && *at_us <= to)
        })
    }

    /// Whether the store may have forgotten what was written at this moment.
    pub(crate) fn forgotten(&self, at_us: u64) -> bool {
        self.facts.iter().any(|fact| {
            matches!(fact, Fact::Forgotten { from_us, to_us } if *from_us <= at_us && at_us <= *to_us)
        })
    }

    /// When a node was killed, if it was after this moment.
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

    /// When a node was killed for the last time before this moment.
    pub(crate) fn last_killed(&self, before: u64) -> Option<u64> {
        let killed = |fact: &Fact| match fact {
            Fact::Killed { at_us, .. } if *at_us <= before => Some(*at_us),
            _ => None,
        };
        self.facts.iter().filter_map(killed).max()
    }

    /// Whether some node was killed between two moments.
    pub(crate) fn killed_between(&self, from: u64, to: u64) -> bool {
        self.facts.iter().any(
            |fact| matches!(fact, Fact::Killed { at_us, .. } if from <= *at_us && *at_us <= to),
        )
    }

    /// The last moment anything is known of.
    pub(crate) fn end_us(&self) -> u64 {
        let nodes = self.nodes.iter().map(|it| it.boot_us);
        let clients = self.clients.iter().map(|it| it.at_us);
        let facts = self.facts.iter().map(Fact::at_us);
        nodes.chain(clients).chain(facts).max().unwrap_or_default()
    }
}

impl Fact {
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
