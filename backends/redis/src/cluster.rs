//! The slots of a cluster: which primary serves which bucket.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{Epoch, Error, ErrorKind, Moment, Result};
use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use redis::{Script, Value};

use crate::{
    config::Endpoint,
    connection::Dialer,
    error::BACKEND,
    lasting::Lasting,
    names::{Bucket, SLOTS},
    node::Node,
};

/// How long a server that was asked for the map may be silent before the next is asked as well.
const NEXT: Duration = Duration::from_millis(100);

/// How long a map that leaves slots out waits for a better one.
const BETTER: Duration = Duration::from_millis(300);

/// How long to wait for primaries that nobody has asked for yet.
const LOOK: Duration = Duration::from_millis(300);

/// What is known of a cluster.
pub(crate) struct Cluster {
    seeds: Vec<Endpoint>,
    /// The primaries, and whom else somebody named since the last map.
    // Std mutexes: held for map operations only.
    nodes: Mutex<HashMap<Endpoint, Arc<Node>>>,
    /// Who gave a map, the last one at the end.
    givers: Mutex<Vec<Endpoint>>,
    map: Lasting<Arc<Map>>,
    /// Set when the map was found to be wrong.
    stale: AtomicBool,
    /// What the last epoch was made of, and that epoch.
    epoch: Mutex<Option<(Vec<Option<Epoch>>, Epoch)>>,
    closed: AtomicBool,
}

/// Who serves which bucket, and all primaries.
#[derive(Debug)]
pub(crate) struct Map {
    of_bucket: Vec<Option<Arc<Node>>>,
    pub(crate) primaries: Vec<Arc<Node>>,
    /// How many slots are served.
    slots: usize,
    giver: Endpoint,
}

/// The map is being asked for: a doubt that comes meanwhile stays, and so does the one that led to it if nothing comes of it.
/// Until then the others go on with the old one, which is right for most buckets.
struct Unsettled {
    cluster: Arc<Cluster>,
    settled: bool,
}

impl Unsettled {
    fn begin(cluster: &Arc<Cluster>) -> Self {
        cluster.stale.store(false, Ordering::Release);
        Self {
            cluster: Arc::clone(cluster),
            settled: false,
        }
    }

    fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !self.settled {
            self.cluster.doubt();
        }
    }
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Endpoint>) -> Self {
        Self {
            seeds,
            nodes: Mutex::default(),
            givers: Mutex::default(),
            map: Lasting::default(),
            stale: AtomicBool::new(false),
            epoch: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// The next one who needs it asks for the map again.
    pub(crate) fn doubt(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// The primary of a bucket.
    ///
    /// # Errors
    /// When no server can be asked, or none serves the bucket.
    pub(crate) async fn node(
        self: &Arc<Self>,
        dialer: &Arc<Dialer>,
        bucket: Bucket,
    ) -> Result<Arc<Node>> {
        let map = self.map(dialer).await?;
        map.of_bucket[bucket.index()].clone().ok_or_else(|| {
            self.doubt();
            Error::new(
                ErrorKind::Unavailable,
                format!("no server of the cluster serves slot {}", bucket.slot()),
            )
            .on(BACKEND)
        })
    }

    /// A server by its address, as a redirect names it.
    pub(crate) fn node_at(&self, endpoint: &Endpoint) -> Arc<Node> {
        let mut nodes = lock(&self.nodes);
        let node = nodes
            .entry(endpoint.clone())
            .or_insert_with(|| Arc::new(Node::new(endpoint.clone())));
        if self.closed.load(Ordering::Acquire) {
            node.hang_up();
        }
        Arc::clone(node)
    }

    /// The present map, if nobody doubts it.
    pub(crate) fn settled_map(&self) -> Option<Arc<Map>> {
        let settled = !self.stale.load(Ordering::Acquire);
        settled.then(|| self.map.made()).flatten()
    }

    /// The present map.
    ///
    /// # Errors
    /// When no server can be asked.
    pub(crate) async fn map(self: &Arc<Self>, dialer: &Arc<Dialer>) -> Result<Arc<Map>> {
        let clock = &**dialer.clock();
        let fresh = |_: &Arc<Map>| !self.stale.load(Ordering::Acquire);
        let make = || {
            let (dialer, unsettled) = (Arc::clone(dialer), Unsettled::begin(self));
            async move {
                let map = unsettled.cluster.ask(&dialer).await?;
                // The cluster's epoch is made of those of all primaries, so it takes a look at each.
                let links = map.primaries.iter().map(|node| node.connect(&dialer));
                tokio::select! {
                    _ = join_all(links) => {}
                    () = dialer.clock().sleep(LOOK) => {}
                }
                unsettled.cluster.part_with_others(&map);
                unsettled.settle();
                Ok(Arc::new(map))
            }
        };
        self.map.get(clock, dialer.longest(), fresh, make).await
    }

    /// The cluster's history: another one as soon as one of its primaries has another one.
    pub(crate) fn epoch(&self) -> Epoch {
        let map = self.map.made();
        let mut known: Vec<_> = map
            .iter()
            .flat_map(|map| &map.primaries)
            .map(|node| node.known_epoch())
            .collect();
        known.sort_by(|a, b| {
            a.as_ref()
                .map(Epoch::as_str)
                .cmp(&b.as_ref().map(Epoch::as_str))
        });
        let mut cached = lock(&self.epoch);
        match &*cached {
            Some((made_of, epoch)) if *made_of == known => epoch.clone(),
            _ => {
                let text: Vec<_> = known
                    .iter()
                    .map(|epoch| epoch.as_ref().map_or("unknown", Epoch::as_str))
                    .collect();
                // Any hash that every client computes alike.
                let digest = Script::new(&text.join(" "));
                let epoch = Epoch::new(format!("redis-cluster-{}", &digest.get_hash()[..32]));
                *cached = Some((known, epoch.clone()));
                epoch
            }
        }
    }

    pub(crate) fn hang_up(&self) {
        self.closed.store(true, Ordering::Release);
        self.map.close();
        for node in lock(&self.nodes).values() {
            node.hang_up();
        }
    }

    /// Lets go of all servers but the primaries of a new map: what one that left the cluster says is not true of it, and
    /// whoever waits for its word is woken.
    fn part_with_others(&self, map: &Map) {
        lock(&self.nodes).retain(|_, node| {
            let stays = map.serves(node);
            if !stays {
                node.hang_up();
            }
            stays
        });
        let mut givers = lock(&self.givers);
        let named = |giver: &Endpoint| {
            self.seeds.contains(giver) || map.primaries.iter().any(|node| node.endpoint == *giver)
        };
        givers.retain(|giver| *giver != map.giver && named(giver));
        givers.push(map.giver.clone());
    }

    /// The servers to ask for a map: first those that serve something as far as we know, and last of these the one whose map
    /// is in doubt now, so that a server which is wrong and answers quickly is not the only one ever heard.
    fn whom_to_ask(&self) -> Vec<Arc<Node>> {
        let mut known: Vec<_> = self.seeds.iter().map(|seed| self.node_at(seed)).collect();
        let named = lock(&self.nodes).values().cloned().collect::<Vec<_>>();
        known.extend(named.into_iter().filter(|node| {
            // In their order, which the user chose.
            !self.seeds.contains(&node.endpoint)
        }));
        let map = self.map.made();
        let givers = lock(&self.givers).clone();
        known.sort_by_cached_key(|node| {
            let serves = map.as_ref().is_some_and(|map| map.serves(node));
            let in_doubt = givers.last() == Some(&node.endpoint);
            let gave = givers.iter().position(|giver| *giver == node.endpoint);
            (!serves, in_doubt, node.live().is_none(), gave)
        });
        known
    }

    /// Asks the servers one after the other. One that is silent keeps nobody from asking the next, and a map that leaves slots
    /// out is taken when nobody has a better one: its giver may know no other server.
    async fn ask(&self, dialer: &Arc<Dialer>) -> Result<Map> {
        let clock = dialer.clock();
        let ask_one = |node: Arc<Node>| async move { self.ask_one(dialer, &node).await };
        let mut known = self.whom_to_ask().into_iter();
        let mut asked = FuturesUnordered::new();
        let mut best: Option<Map> = None;
        let mut until = None;
        let mut refused: Option<Error> = None;
        let at_first = self.map.made().is_none();
        loop {
            asked.extend(known.next().map(ask_one));
            let pause = until.map_or(NEXT, |until: Moment| until.since(clock.now()));
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
                    until.get_or_insert_with(|| clock.now() + BETTER);
                    asked.extend(known.by_ref().map(ask_one));
                    if best.as_ref().is_none_or(|best| best.slots < map.slots) {
                        best = Some(map);
                    }
                }
                Some(Err(error)) => {
                    // At first, what is wrong for good says most. Later, whom nobody can reach now may be right again soon.
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

    async fn ask_one(&self, dialer: &Arc<Dialer>, node: &Arc<Node>) -> Result<Map> {
        let slots = match node.live() {
            Some(link) => {
                let mut question = redis::cmd("CLUSTER");
                question.arg("SLOTS");
                link.send_one(&question).await?
            }
            // A replica knows the map as well, but is no place to keep a connection to.
            None => dialer.ask_slots(&node.endpoint).await?,
        };
        let unavailable = |message| Error::new(ErrorKind::Unavailable, message).on(BACKEND);
        let map = self.read(slots, &node.endpoint).ok_or_else(|| {
            unavailable(format!(
                "{} does not say who serves which slot",
                node.endpoint
            ))
        })?;
        if map.primaries.is_empty() {
            return Err(unavailable(format!(
                "{} knows of no server that serves any slot: it belongs to no cluster",
                node.endpoint
            )));
        }
        Ok(map)
    }

    /// Reads the answer to `CLUSTER SLOTS`: `[[first, last, [host, port, ..], ..], ..]`.
    fn read(&self, slots: Value, asked: &Endpoint) -> Option<Map> {
        let mut of_slot: Vec<Option<Arc<Node>>> = vec![None; usize::from(SLOTS)];
        let mut primaries: Vec<Arc<Node>> = Vec::new();
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
            // Unknown to itself, or said so: it is the one that was asked.
            let host = host
                .filter(|host| !host.is_empty() && host != "?")
                .unwrap_or_else(|| asked.host.clone());
            let node = self.node_at(&Endpoint::new(host, u16::try_from(*port).ok()?));
            let range = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
            for slot in of_slot.get_mut(range)? {
                *slot = Some(Arc::clone(&node));
            }
            if !primaries.iter().any(|other| Arc::ptr_eq(other, &node)) {
                primaries.push(node);
            }
        }
        let of_bucket = Bucket::all()
            .map(|bucket| of_slot[usize::from(bucket.slot())].clone())
            .collect();
        Some(Map {
            of_bucket,
            primaries,
            slots: of_slot.iter().flatten().count(),
            giver: asked.clone(),
        })
    }
}

impl Map {
    /// Where the primary of a bucket is; `None` when nobody serves it.
    pub(crate) fn place(&self, bucket: Bucket) -> Option<&Endpoint> {
        let node = self.of_bucket[bucket.index()].as_ref();
        node.map(|node| &node.endpoint)
    }

    fn serves(&self, node: &Arc<Node>) -> bool {
        let mut primaries = self.primaries.iter();
        primaries.any(|primary| Arc::ptr_eq(primary, node))
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_map_is_read() {
        let cluster = Cluster::new(vec![]);
        let slots = Value::Array(vec![
            range(0, 8000, named("a"), 1),
            range(8001, 8001, named("b"), 2),
            range(8002, 16000, Value::Nil, 3),
            range(16001, 16382, named("a"), 1),
        ]);
        let map = cluster.read(slots, &Endpoint::new("asked", 9)).unwrap();
        assert_eq!(map.primaries.len(), 3);
        for bucket in Bucket::all() {
            let served = map.of_bucket[bucket.index()].as_ref();
            let host = served.map(|node| &*node.endpoint.host);
            let expected = match bucket.slot() {
                0..=8000 | 16001..=16382 => Some("a"),
                8001 => Some("b"),
                8002..=16000 => Some("asked"),
                _ => None,
            };
            assert_eq!(host, expected);
        }
    }

    /// Whoever is cut off from the rest answers quickly, and always the same.
    #[tokio::test]
    async fn others_are_asked_before_who_gave_the_map_that_is_in_doubt() {
        let endpoint = |host: &str| Endpoint::new(host, 1);
        let cluster = Cluster::new(["a", "b", "seed"].map(endpoint).to_vec());
        for (giver, next) in [
            ("seed", ["a", "b", "c", "seed"]),
            ("a", ["b", "c", "a", "seed"]),
            ("b", ["c", "a", "b", "seed"]),
            ("c", ["a", "b", "c", "seed"]),
        ] {
            let third = |at: i64, host| range(at * 100, at * 100 + 99, named(host), 1);
            let slots = Value::Array(vec![third(0, "a"), third(1, "b"), third(2, "c")]);
            let map = cluster.read(slots, &endpoint(giver)).unwrap();
            let gone = cluster.node_at(&endpoint("gone"));
            cluster.part_with_others(&map);
            assert_eq!(lock(&cluster.nodes).len(), map.primaries.len());
            assert!(!Arc::ptr_eq(&gone, &cluster.node_at(&gone.endpoint)));
            cluster.part_with_others(&map);
            let made = async { Ok(Arc::new(map)) };
            let clock = distlock_core::ManualClock::new();
            let made = cluster.map.get(&clock, LOOK, |_| false, || made);
            assert_eq!(made.await.unwrap().slots, 300);
            let asked: Vec<_> = cluster.whom_to_ask();
            let hosts: Vec<_> = asked.iter().map(|node| &*node.endpoint.host).collect();
            assert_eq!(hosts, next, "after {giver}");
        }
    }

    #[test]
    fn nonsense_is_no_map() {
        let cluster = Cluster::new(vec![]);
        let asked = Endpoint::new("asked", 9);
        for nonsense in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(5, 99_999, named("a"), 1)]),
            Value::Array(vec![range(-1, 5, named("a"), 1)]),
            Value::Array(vec![range(0, 5, named("a"), 99_999)]),
        ] {
            assert!(cluster.read(nonsense, &asked).is_none());
        }
    }
}
