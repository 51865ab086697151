//! The life of each session, from the events of its node and the observations of its client.

use std::collections::{BTreeMap, HashMap};

use distlock_kickout::{Boot, Code, Device, Event, Generation, NodeId, SessionId, Transition, Uid};
use uuid::Uuid;

use crate::evidence::history::{History, What};

/// The life of one session. All times are in microseconds, as in the history.
#[derive(Debug)]
pub(crate) struct SessionLife<'a> {
    pub(crate) uid: &'a Uid,
    pub(crate) session: SessionId,
    pub(crate) node: &'a NodeId,
    pub(crate) boot: Boot,
    pub(crate) device: Option<&'a Device>,
    pub(crate) r#gen: Generation,
    pub(crate) token: Option<u64>,
    pub(crate) granted: Option<u64>,
    pub(crate) admitted: Option<u64>,
    pub(crate) superseded: Option<Superseded>,
    pub(crate) closed: Option<(u64, &'a str)>,
    /// The event that reports the session's revocation, from any node.
    pub(crate) revoked: Option<&'a Event>,
    /// Time at which the session's revocation was first reported as removed, because the session
    /// had ended.
    pub(crate) settled: Option<u64>,
    /// Time at which the notice was written to the session's connection.
    pub(crate) told: Option<u64>,
    /// Time at which the node cut the connection, because the client had not left.
    pub(crate) cut: Option<u64>,
    /// Time at which the session's logout removed the session from the directory, if the store
    /// confirmed the delete.
    pub(crate) deleted: Option<u64>,
    /// Time at which the sweeper removed the session.
    pub(crate) swept: Option<u64>,
    /// Whether the session was written again after the store had lost it.
    pub(crate) registered: bool,
    /// Time at which the session's node ended, lost its lease or was killed.
    pub(crate) node_over: Option<u64>,
    /// Time at which the session's client left or got the notice.
    pub(crate) client_over: Option<u64>,
    /// Time at which the client's connection ended.
    pub(crate) client_gone: Option<u64>,
    pub(crate) client: Option<u64>,
}

/// The end of a session by a notice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Superseded {
    pub(crate) at: u64,
    pub(crate) code: Option<Code>,
    pub(crate) kick: Option<Uuid>,
}

/// All sessions of a history.
#[derive(Debug)]
pub(crate) struct Sessions<'a> {
    by_id: BTreeMap<SessionId, SessionLife<'a>>,
    by_uid: BTreeMap<&'a Uid, Vec<SessionId>>,
}

impl<'a> Sessions<'a> {
    /// Collects the sessions of a history.
    pub(crate) fn from_history(history: &'a History) -> Self {
        let mut by_id: BTreeMap<SessionId, SessionLife<'a>> = BTreeMap::new();
        let mut node_over: HashMap<(&NodeId, Boot), u64> = HashMap::new();
        for event in &history.nodes {
            let of_session = matches!(
                event.event,
                Transition::Granted
                    | Transition::Admitted
                    | Transition::Superseded
                    | Transition::Closed
                    | Transition::Registered
            );
            if matches!(event.event, Transition::NodeFenced | Transition::NodeDown) {
                node_over
                    .entry((&event.node, event.boot))
                    .or_insert(event.clock_us);
            }
            if let (true, Some(session), Some(uid)) = (of_session, event.session, &event.uid) {
                let life = by_id
                    .entry(session)
                    .or_insert_with(|| SessionLife::new(uid, session, event));
                life.add_own_event(event);
            }
        }
        // The other events may come from any node. A session without an event of its own node is
        // ignored.
        for event in &history.nodes {
            if let Some(life) = event.session.and_then(|session| by_id.get_mut(&session)) {
                life.add_report(event);
            }
        }
        for life in by_id.values_mut() {
            let over = node_over.get(&(life.node, life.boot)).copied();
            let killed = history.killed_after(life.node, life.began_at());
            life.node_over = [over, killed].into_iter().flatten().min();
        }
        let mut of_client: HashMap<u64, SessionId> = HashMap::new();
        for seen in &history.clients {
            if let What::LoginOk { session, .. } = &seen.what {
                of_client.insert(seen.client, *session);
                if let Some(life) = by_id.get_mut(session) {
                    life.client = Some(seen.client);
                }
            }
            let over = matches!(seen.what, What::Told { .. } | What::Leaves | What::Closed);
            if over
                && let Some(life) = of_client
                    .get(&seen.client)
                    .and_then(|session| by_id.get_mut(session))
            {
                life.client_over.get_or_insert(seen.at_us);
                if matches!(seen.what, What::Leaves | What::Closed) {
                    life.client_gone.get_or_insert(seen.at_us);
                }
            }
        }
        let mut by_uid: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for life in by_id.values() {
            by_uid.entry(life.uid).or_default().push(life.session);
        }
        for sessions in by_uid.values_mut() {
            sessions.sort_by_key(|session| by_id[session].r#gen);
        }
        Self { by_id, by_uid }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &SessionLife<'a>> {
        self.by_id.values()
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<&SessionLife<'a>> {
        self.by_id.get(&session)
    }

    /// The sessions of each account, by generation.
    pub(crate) fn by_uid(&self) -> impl Iterator<Item = (&'a Uid, Vec<&SessionLife<'a>>)> {
        self.by_uid
            .iter()
            .map(|(uid, sessions)| (*uid, sessions.iter().map(|it| &self.by_id[it]).collect()))
    }
}

impl<'a> SessionLife<'a> {
    fn new(uid: &'a Uid, session: SessionId, event: &'a Event) -> Self {
        Self {
            uid,
            session,
            node: &event.node,
            boot: event.boot,
            device: None,
            r#gen: Generation::default(),
            token: None,
            granted: None,
            admitted: None,
            superseded: None,
            closed: None,
            revoked: None,
            settled: None,
            told: None,
            cut: None,
            deleted: None,
            swept: None,
            registered: false,
            node_over: None,
            client_over: None,
            client_gone: None,
            client: None,
        }
    }

    /// Adds an event of the session's own node.
    fn add_own_event(&mut self, event: &'a Event) {
        let at = event.clock_us;
        self.r#gen = event.r#gen.unwrap_or(self.r#gen);
        self.device = event.device.as_ref().or(self.device);
        match event.event {
            Transition::Granted => {
                self.granted.get_or_insert(at);
                self.token = event.token;
            }
            Transition::Admitted => {
                self.admitted.get_or_insert(at);
            }
            Transition::Superseded => {
                self.superseded.get_or_insert(Superseded {
                    at,
                    code: event.code,
                    kick: event.kick_id,
                });
            }
            Transition::Closed => {
                let result = event.result.as_deref().unwrap_or_default();
                self.closed.get_or_insert((at, result));
            }
            _ => {}
        }
    }

    /// Adds an event that any node may have reported.
    fn add_report(&mut self, event: &'a Event) {
        let at = event.clock_us;
        match event.event {
            Transition::Revoked => {
                self.revoked.get_or_insert(event);
            }
            Transition::Settled => {
                self.settled.get_or_insert(at);
            }
            Transition::Told => {
                self.told.get_or_insert(at);
            }
            Transition::Cut => {
                self.cut.get_or_insert(at);
            }
            Transition::Deleted if event.result.is_none() => {
                self.deleted.get_or_insert(at);
            }
            Transition::SlotSwept => {
                self.swept.get_or_insert(at);
            }
            Transition::Registered => self.registered = true,
            _ => {}
        }
    }

    /// The time of the session's first event.
    pub(crate) fn began_at(&self) -> u64 {
        [self.granted, self.admitted, self.superseded.map(|it| it.at)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_default()
    }

    /// The time at which the session stopped being active; `None` if it is still active.
    pub(crate) fn ended_at(&self) -> Option<u64> {
        [
            self.superseded.map(|it| it.at),
            self.closed.map(|(at, _)| at),
            self.node_over,
            self.client_over,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether the session ended because of another login of the account.
    pub(crate) fn was_overtaken(&self) -> bool {
        self.superseded
            .is_some_and(|it| matches!(it.code, Some(Code::Superseded | Code::Replaced)))
    }

    /// The session in words, for a violation.
    pub(crate) fn describe(&self) -> String {
        let device = self.device.map_or("?", Device::as_str);
        format!(
            "{}'s session {} ({device} on {}, generation {})",
            self.uid, self.session, self.node, self.r#gen
        )
    }
}
