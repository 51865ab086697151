//! The slot map, as one server reported it, and the reading of it: the order of the servers to ask,
//! and the best of their answers.
//!
//! A server that is cut off from the cluster answers quickly with a wrong map. So the server whose
//! map proved wrong is asked last.

use std::{sync::Arc, time::Duration};

use distlock_core::{Error, ErrorKind, Moment, Result};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use redis::Value;

use crate::{
    cluster::state::Cluster,
    config::Endpoint,
    connection::{Connector, Server},
    error::{BACKEND, invalid},
    format::keys::{Bucket, SLOTS},
};

/// The time after which a silent server no longer delays the question to the next one.
const ASK_NEXT_AFTER: Duration = Duration::from_millis(100);

/// The time for which a map with unserved slots waits for a complete map.
const WAIT_FOR_COMPLETE_MAP: Duration = Duration::from_millis(300);

/// The primary of each bucket, and all primaries.
#[derive(Debug)]
pub(crate) struct SlotMap {
    pub(super) of_bucket: Vec<Option<Arc<Server>>>,
    pub(crate) primaries: Vec<Arc<Server>>,
    /// The number of slots that some server serves.
    pub(super) slots: usize,
    pub(super) source: Endpoint,
}

impl SlotMap {
    /// Reads the answer to `CLUSTER SLOTS`: `[[first, last, [host, port, ..], ..], ..]`.
    fn read(slots: Value, asked: &Endpoint, cluster: &Cluster) -> Option<Self> {
        let mut of_slot: Vec<Option<Arc<Server>>> = vec![None; usize::from(SLOTS)];
        let mut primaries: Vec<Arc<Server>> = Vec::new();
        let Value::Array(ranges) = slots else {
            return None;
        };
        for range in ranges {
            let range = range.into_sequence().ok()?;
            let [Value::Int(first), Value::Int(last), primary, ..] = &*range else {
                return None;
            };
            let [host, Value::Int(port), ..] = primary.as_sequence()? else {
                return None;
            };
            let host = redis::from_redis_value_ref::<Option<String>>(host).ok()?;
            // A server that does not know its own host sends null, nothing or `?` in its place.
            // Then the host is that of the server that was asked.
            let host = host
                .filter(|host| !host.is_empty() && host != "?")
                .unwrap_or_else(|| asked.host.clone());
            let server = cluster.server_at(&Endpoint::new(host, u16::try_from(*port).ok()?));
            let range = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
            for slot in of_slot.get_mut(range)? {
                *slot = Some(Arc::clone(&server));
            }
            if !primaries.iter().any(|other| Arc::ptr_eq(other, &server)) {
                primaries.push(server);
            }
        }
        let of_bucket = Bucket::all()
            .map(|bucket| of_slot[usize::from(bucket.slot())].clone())
            .collect();
        Some(Self {
            of_bucket,
            primaries,
            slots: of_slot.iter().flatten().count(),
            source: asked.clone(),
        })
    }

    /// Returns the address of a bucket's primary; `None` when no server serves the bucket.
    pub(crate) fn primary_of(&self, bucket: Bucket) -> Option<&Endpoint> {
        let server = self.of_bucket[bucket.index()].as_ref();
        server.map(|server| &server.endpoint)
    }

    /// Returns the number of slots that no server serves.
    pub(crate) fn unserved(&self) -> usize {
        usize::from(SLOTS) - self.slots
    }

    pub(super) fn serves(&self, server: &Arc<Server>) -> bool {
        let mut primaries = self.primaries.iter();
        primaries.any(|primary| Arc::ptr_eq(primary, server))
    }
}

impl Cluster {
    /// Returns the servers in the order in which they are asked: first the known primaries. Among
    /// these, the server whose map is in doubt comes last. Otherwise a server that answers quickly
    /// and wrongly would be the only one whose map is ever used.
    fn servers_to_ask(&self) -> Vec<Arc<Server>> {
        let mut known: Vec<_> = self.seeds.iter().map(|seed| self.server_at(seed)).collect();
        let named = self.servers.lock().values().cloned().collect::<Vec<_>>();
        known.extend(named.into_iter().filter(|server| {
            // The seeds are in the list already, in the user's order.
            !self.seeds.contains(&server.endpoint)
        }));
        let map = self.map.latest();
        let map_sources = self.map_sources.lock().clone();
        known.sort_by_cached_key(|server| {
            let serves = map.as_ref().is_some_and(|map| map.serves(server));
            let in_doubt = map_sources.last() == Some(&server.endpoint);
            let gave = map_sources
                .iter()
                .position(|source| *source == server.endpoint);
            (!serves, in_doubt, server.live().is_none(), gave)
        });
        known
    }

    /// Asks the servers one after the other, and does not wait long for a silent one. A map with
    /// unserved slots is used only if no better map comes, because its server may be cut off from
    /// all others.
    pub(super) async fn ask(&self, connector: &Arc<Connector>) -> Result<SlotMap> {
        let clock = connector.clock();
        let ask_server =
            |server: Arc<Server>| async move { self.ask_server(connector, &server).await };
        let mut known = self.servers_to_ask().into_iter();
        let beside_seeds = known.len().saturating_sub(self.seeds.len());
        let mut asked = FuturesUnordered::new();
        let mut best: Option<SlotMap> = None;
        let mut until = None;
        let mut refused: Option<Error> = None;
        let at_first = self.map.latest().is_none();
        loop {
            asked.extend(known.next().map(ask_server));
            let pause = until.map_or(ASK_NEXT_AFTER, |until: Moment| until.since(clock.now()));
            let answer = tokio::select! {
                biased;
                answer = asked.next() => answer,
                () = clock.sleep(pause), if until.is_some() || known.len() > 0 => {
                    if until.is_some() {
                        break;
                    }
                    continue;
                }
            };
            match answer {
                Some(Ok(map)) if map.slots == usize::from(SLOTS) => return Ok(map),
                Some(Ok(map)) => {
                    until.get_or_insert_with(|| clock.now() + WAIT_FOR_COMPLETE_MAP);
                    asked.extend(known.by_ref().map(ask_server));
                    if best.as_ref().is_none_or(|best| best.slots < map.slots) {
                        best = Some(map);
                    }
                }
                Some(Err(error)) => {
                    // While the store is opened, a permanent error is the most helpful one. Later,
                    // a retryable error is right, because an unreachable server may soon be
                    // reachable again.
                    let worse = |known: &Error| known.is_retryable() == at_first;
                    if refused.as_ref().is_none_or(worse) {
                        refused = Some(error);
                    }
                }
                None => break,
            }
        }
        best.ok_or_else(|| match refused {
            // The cause may name an address of an old map, which the user never wrote.
            Some(error) if error.kind() == ErrorKind::Unavailable && beside_seeds > 0 => {
                let seeds = &connector.config().topology;
                let says = format!(
                    "no server of {seeds} answers, and none of {beside_seeds} more that the \
                     cluster named before"
                );
                Error::new(error.kind(), says).on(BACKEND).caused_by(error)
            }
            Some(error) => error,
            None => invalid("no server of the cluster is named"),
        })
    }

    async fn ask_server(
        &self,
        connector: &Arc<Connector>,
        server: &Arc<Server>,
    ) -> Result<SlotMap> {
        let slots = match server.live() {
            Some(connection) => {
                let mut question = redis::cmd("CLUSTER");
                question.arg("SLOTS");
                connection.send_one(&question).await?
            }
            // This connection is not kept: the server may be a replica, which knows the map as
            // well.
            None => connector.ask_slots(&server.endpoint).await?,
        };
        let unavailable = |message| Error::new(ErrorKind::Unavailable, message).on(BACKEND);
        let map = SlotMap::read(slots, &server.endpoint, self).ok_or_else(|| {
            unavailable(format!(
                "{} does not say which server serves which slot",
                server.endpoint
            ))
        })?;
        if map.primaries.is_empty() {
            return Err(unavailable(format!(
                "{} knows of no server that serves any slot: it belongs to no cluster",
                server.endpoint
            )));
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::state::WAIT_FOR_PRIMARIES;

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![
            host,
            Value::Int(port),
            Value::SimpleString("id".into()),
        ]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary])
    }

    fn named(host: &str) -> Value {
        Value::BulkString(host.as_bytes().to_vec())
    }

    #[test]
    fn a_slot_map_is_parsed() {
        let cluster = Cluster::new(vec![], Arc::default());
        let slots = Value::Array(vec![
            range(0, 8000, named("a"), 1),
            range(8001, 8001, named("b"), 2),
            range(8002, 16000, Value::Nil, 3),
            range(16001, 16382, named("a"), 1),
        ]);
        let map = SlotMap::read(slots, &Endpoint::new("asked", 9), &cluster).unwrap();
        assert_eq!(map.primaries.len(), 3);
        for bucket in Bucket::all() {
            let served = map.of_bucket[bucket.index()].as_ref();
            let host = served.map(|server| &*server.endpoint.host);
            let expected = match bucket.slot() {
                0..=8000 | 16001..=16382 => Some("a"),
                8001 => Some("b"),
                8002..=16000 => Some("asked"),
                _ => None,
            };
            assert_eq!(host, expected);
        }
    }

    #[test]
    fn malformed_maps_are_refused() {
        let cluster = Cluster::new(vec![], Arc::default());
        let asked = Endpoint::new("asked", 9);
        for nonsense in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(5, 99_999, named("a"), 1)]),
            Value::Array(vec![range(-1, 5, named("a"), 1)]),
            Value::Array(vec![range(0, 5, named("a"), 99_999)]),
        ] {
            assert!(SlotMap::read(nonsense, &asked, &cluster).is_none());
        }
    }

    /// A server that is cut off from the others answers quickly, and always with the same map.
    #[tokio::test]
    async fn the_server_of_a_wrong_map_is_asked_last() {
        let endpoint = |host: &str| Endpoint::new(host, 1);
        let cluster = Cluster::new(["a", "b", "seed"].map(endpoint).to_vec(), Arc::default());
        for (source, next) in [
            ("seed", ["a", "b", "c", "seed"]),
            ("a", ["b", "c", "a", "seed"]),
            ("b", ["c", "a", "b", "seed"]),
            ("c", ["a", "b", "c", "seed"]),
        ] {
            let third = |at: i64, host| range(at * 100, at * 100 + 99, named(host), 1);
            let slots = Value::Array(vec![third(0, "a"), third(1, "b"), third(2, "c")]);
            let map = SlotMap::read(slots, &endpoint(source), &cluster).unwrap();
            let gone = cluster.server_at(&endpoint("gone"));
            cluster.close_other_servers(&map);
            assert_eq!(cluster.servers.lock().len(), map.primaries.len());
            assert!(!Arc::ptr_eq(&gone, &cluster.server_at(&gone.endpoint)));
            cluster.close_other_servers(&map);
            let made = async { Ok(Arc::new(map)) };
            let clock = distlock_core::ManualClock::new();
            let made = cluster
                .map
                .get(&clock, WAIT_FOR_PRIMARIES, |_| false, || made);
            assert_eq!(made.await.unwrap().slots, 300);
            let asked: Vec<_> = cluster.servers_to_ask();
            let hosts: Vec<_> = asked.iter().map(|server| &*server.endpoint.host).collect();
            assert_eq!(hosts, next, "after {source}");
        }
    }
}
