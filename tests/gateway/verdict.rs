//! Waits until directory and clients agree, and gives the verdict.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use distlock::{FencingToken, LockName, RecordKey, Store, backend::sync::Mutex};
use distlock_checker::{Fact, Invariant, Report, Seen, check};
use distlock_harness::eventually_async;
use distlock_kickout::{Generation, SessionId, Uid, UserRecord};
use serde_json::Value;

use crate::{
    client::{Client, State},
    http::try_get,
    world::{SOON, World, now_us, pause},
};

/// The deadline until the directory and the clients of an account agree, and until a node answers.
/// A store or a node may have to recover first.
const PEACE: Duration = Duration::from_secs(60);

/// A lock's holder, and its token.
pub(crate) type Holder = (String, Option<FencingToken>);

/// The pause of a refused client before its next login.
pub(crate) const TRY_AGAIN: Duration = Duration::from_millis(500);

/// The invariants that every scenario puts at risk.
const ALWAYS: [Invariant; 8] = [
    Invariant::I1,
    Invariant::I2,
    Invariant::I3,
    Invariant::I4,
    Invariant::I7,
    Invariant::I14,
    Invariant::I16,
    Invariant::I17,
];

impl World {
    /// Waits until directory and clients agree, asks every node for every account, logs every
    /// account in once more, and checks everything that happened. `clients` are the clients that
    /// may still be logged in. `exercised` are the invariants that the scenario has put at risk, in
    /// addition to those of every scenario.
    pub(crate) async fn verdict(
        &mut self,
        clients: Vec<Client>,
        exercised: &[Invariant],
    ) -> Report {
        let store = self.open().await;
        let uids: Vec<_> = self.uids.iter().map(|it| Uid::new(it).unwrap()).collect();
        for uid in &uids {
            wait_until_agreed(&store, uid, &clients).await.unwrap();
            self.fact(Fact::Quiet {
                uid: uid.clone(),
                at_us: now_us(),
            });
            self.look_up(uid).await;
        }
        let mut probes = Vec::new();
        for (at, uid) in uids.iter().enumerate() {
            let nodes: Vec<_> = self.nodes.keys().cloned().collect();
            probes.push(
                self.log_in_with_retries(uid, "probe", &nodes[at % nodes.len()])
                    .await,
            );
        }
        let clients: Vec<_> = clients.into_iter().chain(probes).collect();
        let mut records = std::collections::BTreeMap::new();
        for uid in &uids {
            if let Some(record) = wait_until_agreed(&store, uid, &clients).await.unwrap() {
                records.insert(uid.clone(), record);
            }
        }
        store.close().await;
        // If a client closes at the same time as its node, the node's port may keep one connection
        // in the state TIME_WAIT.
        for node in self.nodes.values().filter(|_| self.deaf) {
            self.fact(Fact::Lingering {
                node: self.node_id(&node.name[self.name.len() + 1..]),
                sockets: count_time_wait(node.listen).unwrap(),
            });
        }
        // The last events of the nodes may still be on their way to this process.
        let judged = eventually_async("a clean history", Duration::from_secs(10), || async {
            let mut history = self.history().unwrap();
            history.records = records.clone();
            let report = check(&history, &self.promises());
            report.is_clean().then_some(report)
        })
        .await;
        let report = judged.unwrap_or_else(|_| {
            let mut history = self.history().unwrap();
            history.records = records.clone();
            let report = check(&history, &self.promises());
            let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
                .join(format!("history-{}.jsonl", self.name));
            std::fs::write(&file, history.to_lines().unwrap()).unwrap();
            panic!(
                "{}: {report}\nthe history is in {}",
                self.name,
                file.display()
            );
        });
        for invariant in ALWAYS.iter().chain(exercised) {
            assert!(
                report.looked_at(*invariant) > 0,
                "{}: nothing put {invariant} at risk: {report}",
                self.name
            );
        }
        drop(clients);
        report
    }

    /// Checks what the nodes have reported. The clients of the scenario are programs of their own,
    /// which record nothing here.
    pub(crate) async fn check_nodes(&self) -> Result<Report> {
        // The last events of the nodes may still be on their way to this process.
        let judged = eventually_async("a clean history", Duration::from_secs(10), || async {
            let report = check(&self.history().ok()?, &self.promises());
            report.is_clean().then_some(report)
        });
        match judged.await {
            Ok(report) => Ok(report),
            Err(_) => bail!("{}", check(&self.history()?, &self.promises())),
        }
    }

    /// Logs a client in, with pauses between the attempts, until the login is confirmed.
    pub(crate) async fn log_in_with_retries(&self, uid: &Uid, device: &str, node: &str) -> Client {
        for _ in 0..40 {
            let mut client = self.client(uid, device, node).await;
            match client.wait_for_answer().await {
                State::In(..) => return client,
                _ => pause(TRY_AGAIN).await,
            }
        }
        panic!("{uid} cannot log in on {node}: its account is stuck");
    }

    /// Reads an account's record from the store.
    pub(crate) async fn record(&self, store: &Store, uid: &Uid) -> Option<UserRecord> {
        let key = RecordKey::new(format!("sess/{uid}")).unwrap();
        let entry = store.records().get(&key).await.ok()??;
        Some(UserRecord::parse(uid, &entry.value).unwrap())
    }

    /// The node that holds an account's lock, and the token of the lock.
    pub(crate) async fn holder(&self, store: &Store, uid: &Uid) -> Option<Holder> {
        let name = LockName::new(format!("user/{uid}")).unwrap();
        let held = store.backend().inspect(&name).await.unwrap().held?;
        Some((held.holder, held.token))
    }

    /// Waits until a node holds an account's lock.
    pub(crate) async fn wait_for_holder(&self, store: &Store, uid: &Uid, node: &str) -> Holder {
        let node = self.node(node).name.as_str();
        eventually_async("the node to hold the lock", SOON, || async {
            let holder = self.holder(store, uid).await;
            holder.filter(|(holder, _)| holder == node)
        })
        .await
        .unwrap()
    }

    /// Waits until some client has recorded an event that matches.
    pub(crate) async fn wait_until_seen(&self, what: &str, wanted: impl Fn(&Seen) -> bool) {
        eventually_async(what, SOON, || async {
            let seen = self.shared.seen.lock();
            seen.iter().any(&wanted).then_some(())
        })
        .await
        .unwrap();
    }

    /// Asks every node for an account, and records the answers.
    async fn look_up(&self, uid: &Uid) {
        for node in self.nodes.values() {
            let from_us = now_us();
            let path = format!("/v1/users/{uid}");
            let admin = node.admin;
            let last = Mutex::new(String::new());
            let answer = eventually_async("the node answers", PEACE, || async {
                let answer = match try_get(admin, &path).await {
                    Ok(answer) => answer,
                    Err(error) => error.to_string(),
                };
                let found = body_of_success(&answer);
                *last.lock() = answer;
                found
            })
            .await
            .unwrap_or_else(|error| panic!("{}: {error}: {}", node.name, last.lock()));
            let (r#gen, session) = read(&answer);
            self.fact(Fact::Lookup {
                uid: uid.clone(),
                from_us,
                to_us: now_us(),
                r#gen,
                session,
            });
        }
    }
}

/// Waits until the account has no pending revocation and its record names exactly the sessions of
/// the clients that believe to be logged in.
async fn wait_until_agreed(
    store: &Store,
    uid: &Uid,
    clients: &[Client],
) -> Result<Option<UserRecord>> {
    let records = store.records();
    let key = RecordKey::new(format!("sess/{uid}"))?;
    let mut last = None;
    let agreed = eventually_async("directory and clients agree", PEACE, || {
        let (records, key) = (records.clone(), key.clone());
        let mut inside: Vec<_> = clients
            .iter()
            .filter(|client| client.stamp.uid == *uid)
            .filter_map(|client| match client.state() {
                State::In(session, _) => Some(session),
                _ => None,
            })
            .collect();
        inside.sort();
        async move {
            let record = match records.get(&key).await.ok()? {
                Some(entry) => Some(UserRecord::parse(uid, &entry.value).ok()?),
                None => None,
            };
            let mut named: Vec<_> = match &record {
                Some(record) if !record.revocations.is_empty() => return None,
                Some(record) => record.sessions().map(|(_, session)| session).collect(),
                None => Vec::new(),
            };
            named.sort();
            (named == inside).then_some(record)
        }
    })
    .await;
    if agreed.is_err() {
        last = records
            .get(&key)
            .await?
            .map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
    }
    let states: Vec<_> = clients
        .iter()
        .filter(|client| client.stamp.uid == *uid)
        .map(|client| (client.stamp.device.as_str().to_owned(), client.state()))
        .collect();
    agreed.with_context(|| format!("{uid}: the record is {last:?}, the clients are {states:?}"))
}

/// The JSON of an answer with the status 200; `None` for any other answer.
fn body_of_success(answer: &str) -> Option<Value> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_success = head.starts_with("HTTP/1.1 200");
    is_success.then(|| serde_json::from_str(body).ok())?
}

fn read(answer: &Value) -> (Generation, Option<SessionId>) {
    let record = &answer["record"];
    let r#gen = Generation::new(record["gen"].as_u64().unwrap_or_default());
    let up = |slot: &Value| {
        let nodes = answer["nodes"].as_array().into_iter().flatten();
        let mut nodes = nodes.filter(|it| it["node"] == slot["node"] && it["boot"] == slot["boot"]);
        nodes.any(|it| it["state"] == "up" || it["state"] == "draining")
    };
    let slots = record["slots"]
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::values);
    let session = slots
        .filter(|slot| up(slot))
        .find_map(|slot| serde_json::from_value(slot["session"].clone()).ok());
    (r#gen, session)
}

/// Counts the connections in the state TIME_WAIT whose local end has the port of this address.
fn count_time_wait(listen: SocketAddr) -> Result<usize> {
    const TIME_WAIT: &str = "06";
    let port = format!(":{:04X}", listen.port());
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    Ok(table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| {
            fields.get(1).is_some_and(|local| local.ends_with(&port))
                && fields.get(3) == Some(&TIME_WAIT)
        })
        .count())
}
