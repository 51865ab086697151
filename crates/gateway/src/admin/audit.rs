//! The audit log: each order of an administrator, with the node and the result. The store keeps the
//! last entries of every node, in one record for each node.
//!
//! Invariant of this module: an order that changed something is recorded even if its sender did not
//! wait for the answer. This module must never overwrite a record that it cannot read.

use std::{cmp::Reverse, collections::HashMap, fmt, sync::Arc};

use axum::{
    Json,
    extract::{ConnectInfo, FromRequestParts, State},
    http::request::Parts,
};
use distlock_core::{
    Clock, Error, ErrorKind, Expect, MAX_VALUE_BYTES, RecordKey, Records, Result, Written, excerpt,
    unix_time,
};
use distlock_kickout::NodeId;
use distlock_listen::ConnectionHandle;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    AdminContext, Administrator,
    http::{HttpError, PageSize, QueryParams},
};

/// Entries kept per node.
pub(super) const MAX_ENTRIES: usize = 200;
/// Longest text of one member of an entry, in characters. A longer text is shortened.
const MAX_TEXT: usize = 512;
/// Compare-and-swap attempts before a write of the record fails.
const MAX_ATTEMPTS: u32 = 16;

/// One order of an administrator, with its result.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Entry {
    /// Tells entries of one moment apart.
    id: Uuid,
    /// The time by the node's wall clock, in milliseconds since 1970.
    at_ms: u64,
    node: NodeId,
    action: String,
    target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The name of the token, and the name that the administrator gave in the request.
    by: String,
    /// The address of the request.
    from: String,
    result: String,
}

/// An order, which is an administrator's request, with its action, target and reason.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order<'a> {
    pub(super) action: &'a str,
    pub(super) target: &'a str,
    pub(super) reason: Option<&'a str>,
}

impl<'a> Order<'a> {
    pub(super) const fn new(action: &'a str, target: &'a str) -> Self {
        Self {
            action,
            target,
            reason: None,
        }
    }

    pub(super) const fn with_reason(mut self, reason: Option<&'a str>) -> Self {
        self.reason = reason;
        self
    }
}

/// Whether an administrator's request changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The administrator's request changed something, or the outcome of the request is unknown.
    Changed,
    /// The administrator's request changed nothing.
    Unchanged,
}

impl Effect {
    pub(super) const fn unchanged_if(unchanged: bool) -> Self {
        if unchanged {
            Self::Unchanged
        } else {
            Self::Changed
        }
    }
}

/// The sender of a request.
#[derive(Debug)]
pub(super) struct Actor {
    /// The name of the request's token, and the name that the request gives. Nothing proves the
    /// latter.
    pub(super) name: String,
    /// The address that the request comes from.
    pub(super) from: String,
}

/// Writes this node's orders to the log and to the store, and reads the orders of all nodes.
#[derive(Clone, Debug)]
pub(crate) struct AuditLog {
    node: NodeId,
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
}

impl AuditLog {
    pub(crate) fn new(node: NodeId, records: Arc<dyn Records>, clock: Arc<dyn Clock>) -> Self {
        Self {
            node,
            records,
            clock,
        }
    }

    /// Writes an order to the log. Writes it to the store as well, unless the order is known to
    /// have changed nothing, because such orders would displace other entries. If the store fails,
    /// the log gets an error with the whole entry, because the order itself cannot be undone.
    pub(super) async fn record(
        &self,
        actor: &Actor,
        order: Order<'_>,
        effect: Effect,
        result: &str,
    ) {
        let Order {
            action,
            target,
            reason,
        } = order;
        let short = |text: &str| text.chars().take(MAX_TEXT).collect::<String>();
        let entry = Entry {
            id: Uuid::new_v4(),
            at_ms: u64::try_from(unix_time(&*self.clock).as_millis()).unwrap_or(u64::MAX),
            node: self.node.clone(),
            action: action.to_owned(),
            target: short(target),
            reason: reason.map(short),
            by: actor.name.clone(),
            from: actor.from.clone(),
            result: short(result),
        };
        tracing::info!(
            target: "distlock::audit",
            action,
            target = entry.target,
            by = entry.by,
            from = entry.from,
            result = entry.result,
        );
        if effect == Effect::Unchanged {
            return;
        }
        if let Err(error) = self.append(&entry).await {
            tracing::error!(
                target: "distlock::audit",
                %error,
                ?entry,
                "an audit entry could not be stored"
            );
        }
    }

    /// Adds an entry to this node's record, by compare-and-swap.
    async fn append(&self, entry: &Entry) -> Result<()> {
        let key = RecordKey::new(format!("audit/{}", self.node))?;
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.records.get(&key).await?;
            let expect = stored
                .as_ref()
                .map_or(Expect::Absent, |stored| Expect::Version(stored.version));
            let entries = match &stored {
                Some(stored) => parse_entries(&key, &stored.value)?,
                None => Vec::new(),
            };
            let value = value_with(entries, entry)?;
            match self.records.put(&key, &value, expect).await? {
                Written::Stored(_) => return Ok(()),
                Written::Conflict => {}
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the audit log was not written: it changed before each of {MAX_ATTEMPTS} writes"
            ),
        ))
    }

    /// The entries of every node, newest first, and the records that cannot be read.
    pub(super) async fn entries(&self) -> Result<(Vec<Entry>, Vec<RecordKey>)> {
        let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
        let mut after = None;
        loop {
            let page = self.records.scan("audit/", after.as_ref(), 64).await?;
            let Some((last, _)) = page.last() else {
                break;
            };
            after = Some(last.clone());
            for (key, entry) in page {
                match parse_entries(&key, &entry.value) {
                    Ok(read) => entries.extend(read),
                    Err(error) => {
                        let what = "a part of the audit log is unreadable";
                        tracing::error!(target: "distlock::audit", %error, "{what}");
                        unreadable.push(key);
                    }
                }
            }
        }
        entries.sort_by_key(|entry| Reverse(entry.place()));
        Ok((entries, unreadable))
    }
}

impl Entry {
    /// The entry's place in the list of all entries.
    const fn place(&self) -> Place {
        Place(self.at_ms, self.id)
    }
}

/// The place of an entry among those of all nodes. It stays the same while others come and go.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "String")]
struct Place(u64, Uuid);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1.simple())
    }
}

impl TryFrom<String> for Place {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = || {
            let (at_ms, id) = text.split_once('.')?;
            Some(Self(at_ms.parse().ok()?, Uuid::try_parse(id).ok()?))
        };
        read().ok_or_else(|| {
            format!(
                "after is \"{}\": the `next` of an answer is needed",
                excerpt(&text)
            )
        })
    }
}

/// The value of a record with these entries and a new entry. Drops old entries until the value is
/// within both bounds. The new entry is never dropped.
fn value_with(mut entries: Vec<Entry>, new: &Entry) -> Result<Vec<u8>> {
    loop {
        let count = entries.len() + 1;
        let value = serialise_entries(entries.iter().chain([new]))?;
        if count <= MAX_ENTRIES && value.len() <= MAX_VALUE_BYTES || entries.is_empty() {
            return Ok(value);
        }
        // The mean length gives an estimate of the excess entries. Otherwise each dropped entry
        // would cost a serialisation.
        let mean_bytes = value.len().div_ceil(count);
        let excess = value
            .len()
            .saturating_sub(MAX_VALUE_BYTES)
            .div_ceil(mean_bytes);
        for _ in 0..excess
            .max(count.saturating_sub(MAX_ENTRIES))
            .min(entries.len())
        {
            entries.remove(entry_to_drop(&entries));
        }
    }
}

/// The index of the entry to drop when there is no room: the oldest entry of the most frequent
/// order. The frequency counts the action first, and the action's target second. So a repeated
/// order displaces only itself, and many bans displace no kick.
fn entry_to_drop(entries: &[Entry]) -> usize {
    let mut per_action = HashMap::<&str, usize>::new();
    let mut per_target = HashMap::<(&str, &str), usize>::new();
    for entry in entries {
        *per_action.entry(&entry.action).or_default() += 1;
        *per_target
            .entry((&entry.action, &entry.target))
            .or_default() += 1;
    }
    let frequency = |entry: &Entry| {
        let to = per_target[&(&*entry.action, &*entry.target)];
        (per_action[&*entry.action], to)
    };
    let newest_first = (0..entries.len()).rev();
    // Among equal entries `max_by_key` takes the last one, which is the oldest here.
    let most_frequent = newest_first.max_by_key(|at| frequency(&entries[*at]));
    most_frequent.unwrap_or_default()
}

/// Reads the entries in a record.
fn parse_entries(key: &RecordKey, value: &[u8]) -> Result<Vec<Entry>> {
    serde_json::from_slice(value).map_err(|error| {
        let problem = format!("audit log in record {key:?} cannot be read; it is left as it is");
        Error::new(ErrorKind::Corrupt, problem).caused_by(error)
    })
}

/// Writes entries as the value of a record.
fn serialise_entries<'a>(entries: impl Iterator<Item = &'a Entry>) -> Result<Vec<u8>> {
    serde_json::to_vec(&entries.collect::<Vec<_>>()).map_err(|error| {
        Error::new(ErrorKind::Internal, "audit log cannot be written").caused_by(error)
    })
}

/// The header in which administrators name themselves. The node does not check that name.
const ACTOR_HEADER: &str = "x-distlock-actor";

impl<S: Send + Sync> FromRequestParts<S> for Actor {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, HttpError> {
        let given = match parts.headers.get(ACTOR_HEADER).map(|value| value.to_str()) {
            None | Some(Ok("")) => None,
            Some(Ok(name)) if name.len() <= 128 => Some(name.to_owned()),
            Some(_) => {
                return Err(HttpError::from(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("header {ACTOR_HEADER} is longer than 128 bytes or not plain text"),
                )));
            }
        };
        let Some(administrator) = parts.extensions.get::<Administrator>() else {
            let why = "an order came without its administrator";
            return Err(Error::new(ErrorKind::Internal, why).into());
        };
        let proven = &administrator.name;
        // The name of a token has no brackets, so nobody can claim to be another administrator.
        let name = match given {
            Some(given) => format!("{proven} ({given})"),
            None => proven.to_string(),
        };
        let from = parts.extensions.get::<ConnectInfo<ConnectionHandle>>();
        Ok(Self {
            name,
            from: from.map_or_else(String::new, |from| from.0.peer().to_string()),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    /// The `next` of the page before.
    after: Option<Place>,
    #[serde(default)]
    limit: PageSize,
}

/// The answer to `GET /v1/audit`.
#[derive(Serialize)]
pub(super) struct AuditAnswer {
    entries: Vec<Entry>,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// How many there are, listed or not.
    total: usize,
    /// The keys of records that cannot be read. Their entries are missing in this answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

/// `GET /v1/audit`: the entries of all nodes, newest first, page by page.
pub(super) async fn list_audit(
    State(admin): State<AdminContext>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Json<AuditAnswer>, HttpError> {
    let _turn = admin.turns.take().await?;
    let (mut entries, unreadable) = admin.audit.entries().await?;
    let total = entries.len();
    if let Some(after) = query.after {
        entries.retain(|entry| entry.place() < after);
    }
    let goes_on = entries.len() > query.limit.0;
    entries.truncate(query.limit.0);
    let last = entries.last().filter(|_| goes_on);
    Ok(Json(AuditAnswer {
        next: last.map(|entry| entry.place().to_string()),
        entries,
        total,
        unreadable: unreadable.iter().map(ToString::to_string).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use distlock_core::SystemClock;
    use distlock_memory::Memory;

    use super::*;

    #[tokio::test]
    async fn long_entries_leave_room_for_later_entries() {
        let node = NodeId::new("n1").unwrap();
        let audit = AuditLog::new(node, Memory::default().records(), Arc::new(SystemClock));
        let actor = Actor {
            name: "boss".into(),
            from: String::new(),
        };
        let long = "\u{1d11e}".repeat(MAX_TEXT);
        for number in 0..80 {
            let action = format!("{number}");
            let order = Order::new(&action, &long);
            audit.record(&actor, order, Effect::Changed, &long).await;
        }
        let (entries, _) = audit.entries().await.unwrap();
        assert!(entries.len() > 30 && entries.iter().any(|it| it.action == "79"));
    }

    #[tokio::test]
    async fn a_repeated_order_pushes_out_only_itself() {
        let node = NodeId::new("n1").unwrap();
        let audit = AuditLog::new(node, Memory::default().records(), Arc::new(SystemClock));
        let actor = Actor {
            name: "boss".into(),
            from: String::new(),
        };
        let rare = [
            ("kick", "anna"),
            ("ban", "bert"),
            ("force-release", "job"),
            ("ban", "carl"),
        ];
        for (action, target) in rare {
            let order = Order::new(action, target);
            audit.record(&actor, order, Effect::Changed, "done").await;
        }
        for round in 0..MAX_ENTRIES {
            for action in ["ban", "unban"] {
                let order = Order::new(action, "nobody");
                let result = round.to_string();
                audit.record(&actor, order, Effect::Changed, &result).await;
            }
        }
        let (entries, _) = audit.entries().await.unwrap();
        assert_eq!(entries.len(), MAX_ENTRIES);
        for (action, target) in rare {
            let stored = |it: &Entry| it.action == action && it.target == target;
            assert!(entries.iter().any(stored), "{action} {target}");
        }
        let last = (MAX_ENTRIES - 1).to_string();
        assert!(
            entries
                .iter()
                .any(|it| it.action == "ban" && it.result == last)
        );
        assert!(
            entries
                .iter()
                .any(|it| it.action == "unban" && it.result == last)
        );
    }

    #[tokio::test]
    async fn an_unreadable_record_is_reported_and_left_unchanged() {
        let (records, clock) = (Memory::default().records(), Arc::new(SystemClock));
        let actor = Actor {
            name: "boss".into(),
            from: String::new(),
        };
        let key = RecordKey::new("audit/n1").unwrap();
        let odd = b"[{\"at_ms\": 1}]";
        records.put(&key, odd, Expect::Absent).await.unwrap();
        for (node, kept) in [("n1", vec![]), ("n2", vec!["n2"])] {
            let node = NodeId::new(node).unwrap();
            let audit = AuditLog::new(node, Arc::clone(&records), clock.clone());
            let order = Order::new("kick", "anna");
            audit
                .record(&actor, order, Effect::Changed, "1 ended")
                .await;
            let (entries, unreadable) = audit.entries().await.unwrap();
            assert_eq!(unreadable, std::slice::from_ref(&key));
            let nodes: Vec<_> = entries.iter().map(|it| it.node.as_str()).collect();
            assert_eq!(nodes, kept);
        }
        assert_eq!(records.get(&key).await.unwrap().unwrap().value, odd);
    }
}
