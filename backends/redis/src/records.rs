//! Records. Each record is one key, and each bucket has an ordered index of its records. So the
//! cost of a page does not depend on the other keys of the server.
//!
//! One script writes a record and its index entry, so neither exists without the other.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use distlock_backend_kit::{OpenFlag, operation::Operation};
use distlock_core::{
    Deleted, Entry, Error, ErrorKind, Expect, RecordKey, Records, Result, Version, Written,
    check_value,
};
use redis::{Cmd, Value};

use crate::{
    error::BACKEND,
    format::{
        keys::{BUCKETS, Bucket},
        value,
    },
    routing::{Call, MaxAge, Response},
    store::Store,
};

/// The records of a Redis store.
#[derive(Debug)]
pub(crate) struct RedisRecords {
    store: Arc<Store>,
    open: OpenFlag,
}

impl RedisRecords {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            open: OpenFlag::default(),
        }
    }

    fn open(&self) -> Result<&Arc<Store>> {
        self.open.check(BACKEND)?;
        Ok(&self.store)
    }

    async fn read(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let access = self.open()?.access();
        // A primary that the sentinels have replaced would answer with an old value. No lease
        // limits the time for that.
        access
            .router
            .confirm_primary(MaxAge::PartOfLease(None))
            .await?;
        // In a cluster each key needs its own call; otherwise one call reads many keys.
        let each = if access.router.is_cluster() { 1 } else { 128 };
        let calls = keys.chunks(each).map(|keys| {
            // `GET` reads a single key, because it refuses a key of another type. `MGET` would
            // report such a key as missing.
            let mut get = redis::cmd(if keys.len() > 1 { "MGET" } else { "GET" });
            for key in keys {
                get.arg(access.layout.record(key).key);
            }
            let commands = vec![redis::cmd("TIME"), get];
            let bucket = keys.first().map_or("", RecordKey::as_str);
            Call::plain(Bucket::of(bucket), commands)
        });
        let response = access.router.ask_all(calls.collect()).await;
        let mut entries = Vec::with_capacity(keys.len());
        for (keys, response) in keys.chunks(each).zip(response) {
            let Response { replies, .. } = response?;
            let mut replies = replies.into_iter();
            let time = replies.next().unwrap_or(Value::Nil);
            let (seconds, micros) = redis::from_redis_value::<(u64, u64)>(time).unwrap_or_default();
            let now = seconds.saturating_mul(1_000_000).saturating_add(micros);
            let found = match replies.next() {
                Some(Value::Array(found)) => found,
                found => found.into_iter().collect(),
            };
            for (key, found) in keys.iter().zip(found) {
                entries.push(match found {
                    Value::BulkString(found) => Some(value::entry(key, &found, now)?),
                    _ => None,
                });
            }
        }
        Ok(entries)
    }

    /// Returns the first `limit` keys after `after` that start with `prefix`, as the indexes list
    /// them.
    async fn keys(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: usize,
    ) -> Result<Vec<RecordKey>> {
        let mut merge = IndexMerge::new(prefix, after, limit);
        loop {
            let wanted: Vec<_> = merge.unfinished().collect();
            if wanted.is_empty() {
                return Ok(merge.into_keys());
            }
            let access = self.open()?.access();
            let mut index = Vec::new();
            let calls = wanted.iter().map(|bucket| {
                access.layout.index(*bucket, &mut index);
                let command = merge.command(*bucket, &index);
                Call::plain(*bucket, vec![command])
            });
            let response = access.router.ask_all(calls.collect()).await;
            for (bucket, response) in wanted.into_iter().zip(response) {
                let reply = response?.replies.pop().unwrap_or(Value::Nil);
                let found = redis::from_redis_value::<Vec<String>>(reply).map_err(|_| {
                    Error::new(
                        ErrorKind::Corrupt,
                        "the index of records holds something that this library did not write",
                    )
                })?;
                merge.add_piece(bucket, found);
            }
        }
    }
}

/// Merges the ordered indexes of all buckets. The indexes are read in small pieces, until the first
/// `limit` keys of all buckets together are known.
struct IndexMerge {
    /// An upper bound of the keys that start with the prefix.
    end: Vec<u8>,
    limit: usize,
    /// The number of keys in one piece.
    piece: usize,
    /// The start of each bucket's next piece; `None` after the last piece of its index.
    next: BTreeMap<Bucket, Option<Vec<u8>>>,
    known: BTreeMap<String, Bucket>,
}

impl IndexMerge {
    fn new(prefix: &str, after: Option<&RecordKey>, limit: usize) -> Self {
        let mut start = format!("[{prefix}").into_bytes();
        if let Some(after) = after
            && after.as_str() >= prefix
        {
            start = format!("({after}").into_bytes();
        }
        // The byte 0xff is in no UTF-8 text, so every key that starts with the prefix is below this
        // bound.
        let end = if prefix.is_empty() {
            b"+".to_vec()
        } else {
            [b"(", prefix.as_bytes(), b"\xff"].concat()
        };
        Self {
            end,
            limit,
            piece: (2 * limit).div_ceil(usize::from(BUCKETS)) + 4,
            next: Bucket::all()
                .map(|bucket| (bucket, Some(start.clone())))
                .collect(),
            known: BTreeMap::new(),
        }
    }

    /// Returns the buckets whose next piece may still contain one of the first `limit` keys.
    fn unfinished(&self) -> impl Iterator<Item = Bucket> {
        let last = (self.known.len() >= self.limit && self.limit > 0)
            .then(|| self.known.keys().nth(self.limit - 1))
            .flatten();
        self.next.iter().filter_map(move |(bucket, next)| {
            let next = next.as_ref()?;
            let wanted = self.limit > 0
                && last.is_none_or(|last| next.get(1..).is_some_and(|at| at < last.as_bytes()));
            wanted.then_some(*bucket)
        })
    }

    fn command(&self, bucket: Bucket, index: &[u8]) -> Cmd {
        let mut command = redis::cmd("ZRANGEBYLEX");
        let start = self.next.get(&bucket).and_then(Option::as_deref);
        command
            .arg(index)
            .arg(start.unwrap_or(b"+"))
            .arg(&self.end)
            .arg("LIMIT")
            .arg(0)
            .arg(self.piece);
        command
    }

    fn add_piece(&mut self, bucket: Bucket, keys: Vec<String>) {
        let more = keys.len() >= self.piece;
        let next = keys.last().filter(|_| more);
        self.next
            .insert(bucket, next.map(|last| format!("({last}").into_bytes()));
        self.known.extend(keys.into_iter().map(|key| (key, bucket)));
    }

    fn into_keys(self) -> Vec<RecordKey> {
        self.known
            .into_keys()
            .take(self.limit)
            .filter_map(|key| RecordKey::new(key).ok())
            .collect()
    }
}

#[async_trait]
impl Records for RedisRecords {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn tells_ages(&self) -> bool {
        true
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        let store = self.open()?.reopen().await;
        let store = store.map_err(|error| error.on(BACKEND).during("reopen"))?;
        Ok(Arc::new(Self::new(store)))
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let read = self.read(std::slice::from_ref(key)).await;
        let mut entries = read.map_err(|error| error.of_read().on(BACKEND).during("get"))?;
        Ok(entries.pop().flatten())
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let read = self.read(keys).await;
        read.map_err(|error| error.of_read().on(BACKEND).during("get_many"))
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        check_value(key, value).map_err(|error| error.on(BACKEND).during("put"))?;
        let op = Operation::put(key, value, expect);
        self.open()?.submit(None, op).await?.written()
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        let op = Operation::Delete(key.clone(), expect);
        self.open()?.submit(None, op).await?.deleted()
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        self.open()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut page = Vec::new();
        let mut after = after.cloned();
        // Records in the indexes may be deleted by now. The loop goes on, because a page must be
        // full unless it is the last one.
        while page.len() < limit {
            let scanned = async {
                let keys = self.keys(prefix, after.as_ref(), limit).await?;
                let entries = self.read(&keys).await?;
                Ok((keys, entries))
            };
            let (keys, entries) = scanned
                .await
                .map_err(|error: Error| error.of_read().on(BACKEND).during("scan"))?;
            let last = keys.len() < limit;
            after = keys.last().cloned();
            let present = keys.into_iter().zip(entries);
            page.extend(present.filter_map(|(key, entry)| Some((key, entry?))));
            if last {
                break;
            }
        }
        page.truncate(limit);
        Ok(page)
    }

    async fn close(&self) {
        if self.open.close() {
            self.store.close_part().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Returns the keys that a server would answer with.
    fn range(index: &BTreeSet<String>, start: &[u8], end: &[u8], piece: usize) -> Vec<String> {
        let inside = |key: &&String| {
            let key = key.as_bytes();
            let above = match start[0] {
                b'[' => key >= &start[1..],
                _ => key > &start[1..],
            };
            above && (end == b"+" || key < &end[1..])
        };
        index.iter().filter(inside).take(piece).cloned().collect()
    }

    proptest! {
        #[test]
        fn a_page_has_the_first_keys_in_order(
            keys in prop::collection::btree_set("[abé/~]{1,5}", 0..200),
            prefix in "[aé/]{0,2}",
            after in prop::option::of("[abé/]{1,4}"),
            limit in 0usize..40,
        ) {
            let mut indexes: BTreeMap<Bucket, BTreeSet<String>> = BTreeMap::new();
            for key in &keys {
                indexes.entry(Bucket::of(key)).or_default().insert(key.clone());
            }
            let after = after.map(|after| RecordKey::new(after).unwrap());
            let mut merge = IndexMerge::new(&prefix, after.as_ref(), limit);
            // Pieces of one key need the most rounds.
            merge.piece = 1;
            for round in 0.. {
                prop_assert!(round < 1000, "endless");
                let wanted: Vec<_> = merge.unfinished().collect();
                if wanted.is_empty() {
                    break;
                }
                for bucket in wanted {
                    let start = merge.next[&bucket].clone().unwrap();
                    let found = range(
                        indexes.get(&bucket).unwrap_or(&BTreeSet::new()),
                        &start,
                        &merge.end,
                        merge.piece,
                    );
                    merge.add_piece(bucket, found);
                }
            }
            let expected: Vec<_> = keys
                .iter()
                .filter(|key| key.starts_with(&prefix))
                .filter(|key| after.as_ref().is_none_or(|after| key.as_str() > after.as_str()))
                .take(limit)
                .cloned()
                .collect();
            let found = merge.into_keys();
            let found: Vec<_> = found.iter().map(|key| key.as_str().to_owned()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
