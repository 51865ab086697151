//! Reads the slot map: the order in which servers are asked, and the choice between their answers.
//!
//! A server that is cut off from the cluster answers quickly and wrongly. So the server whose map
//! proved wrong is asked last.

use std::{sync::Arc, time::Duration};

use distlock_core::{Error, ErrorKind, Moment, Result};
use futures_util::{StreamExt as _, stream::FuturesUnordered};

use crate::{
    cluster::{
        slot_map::SlotMap,
        state::{Cluster, lock},
    },
    connection::{Connector, Server},
    error::BACKEND,
    format::keys::SLOTS,
};

/// How long one server may be silent before the next one is asked as well.
const ASK_NEXT_AFTER: Duration = Duration::from_millis(100);

/// How long a map with unserved slots waits for a complete one.
const WAIT_FOR_COMPLETE_MAP: Duration = Duration::from_millis(300);

impl Cluster {
    /// The servers to ask, in order: the known primaries first, and among them last the one whose
    /// map is in doubt. A server that is wrong and quick would otherwise be the only one ever
    /// heard.
    fn servers_to_ask(&self) -> Vec<Arc<Server>> {
        let mut known: Vec<_> = self.seeds.iter().map(|seed| self.server_at(seed)).collect();
        let named = lock(&self.servers).values().cloned().collect::<Vec<_>>();
        known.extend(named.into_iter().filter(|server| {
            // The seeds are in the list already, in the user's order.
            !self.seeds.contains(&server.endpoint)
        }));
        let map = self.map.latest();
        let map_sources = lock(&self.map_sources).clone();
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

    /// Asks the servers one after the other, without waiting for a silent one. A map with unserved
    /// slots is taken only if no better one comes: the server that gave it may know no other
    /// server.
    pub(super) async fn ask(&self, connector: &Arc<Connector>) -> Result<SlotMap> {
        let clock = connector.clock();
        let ask_server =
            |server: Arc<Server>| async move { self.ask_server(connector, &server).await };
        let mut known = self.servers_to_ask().into_iter();
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
                    // While the store is opened, a permanent error says most. Later, a retryable
                    // one is right, since a server that is unreachable now may come back soon.
                    let worse = |known: &Error| known.is_retryable() == at_first;
                    if refused.as_ref().is_none_or(worse) {
                        refused = Some(error);
                    }
                }
                None => break,
            }
        }
        best.ok_or_else(|| {
            refused.unwrap_or_else(|| {
                Error::new(
                    ErrorKind::InvalidConfig,
                    "no server of the cluster is named",
                )
                .on(BACKEND)
            })
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
            // No connection is kept for this: the server may be a replica, which knows the map as
            // well.
            None => connector.ask_slots(&server.endpoint).await?,
        };
        let unavailable = |message| Error::new(ErrorKind::Unavailable, message).on(BACKEND);
        let map = SlotMap::read(slots, &server.endpoint, |place| self.server_at(place))
            .ok_or_else(|| {
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
    use redis::Value;

    use super::*;
    use crate::{
        cluster::{
            slot_map::tests::{named, range},
            state::WAIT_FOR_PRIMARIES,
        },
        config::Endpoint,
    };

    /// A server that is cut off from the others answers quickly, and always the same.
    #[tokio::test]
    async fn the_source_of_a_doubtful_map_is_asked_last() {
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
            let map =
                SlotMap::read(slots, &endpoint(source), |place| cluster.server_at(place)).unwrap();
            let gone = cluster.server_at(&endpoint("gone"));
            cluster.close_other_servers(&map);
            assert_eq!(lock(&cluster.servers).len(), map.primaries.len());
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
