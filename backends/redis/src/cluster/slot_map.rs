//! The slot map, as one server reported it: the primary that serves each bucket.

use std::sync::Arc;

use redis::Value;

use crate::{
    config::Endpoint,
    connection::Server,
    format::keys::{Bucket, SLOTS},
};

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
    pub(super) fn read(
        slots: Value,
        asked: &Endpoint,
        server_at: impl Fn(&Endpoint) -> Arc<Server>,
    ) -> Option<Self> {
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
            let server = server_at(&Endpoint::new(host, u16::try_from(*port).ok()?));
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cluster::state::Cluster;

    pub(crate) fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![
            host,
            Value::Int(port),
            Value::SimpleString("id".into()),
        ]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary])
    }

    pub(crate) fn named(host: &str) -> Value {
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
        let map = SlotMap::read(slots, &Endpoint::new("asked", 9), |place| {
            cluster.server_at(place)
        })
        .unwrap();
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
            assert!(SlotMap::read(nonsense, &asked, |place| cluster.server_at(place)).is_none());
        }
    }
}
