//! A cache in the records of a lock's store.
//!
//! Invariant: value and floor are one record, and each change is a compare-and-swap.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{
    Entry, Error, ErrorKind, Expect, FencingToken, RecordKey, Records, Result, Store, Written,
};
use serde::{Deserialize, Serialize};

use super::cache::{Cache, Found, Loaded, Mark, Seen};

/// The format of the records. A record of another format counts as no value.
const FORMAT: u8 = 1;
/// The number of attempts at one change. The change fails when other clients changed the record in
/// between at each attempt.
const TRIES: usize = 16;

/// A cache beside the locks, for values of up to 64 KiB. This cache suits a few hot keys in a store
/// that a program uses for locks anyway: a record is never removed, so its floor is kept for ever.
#[derive(Clone, Debug)]
pub struct RecordsCache(Arc<dyn Records>);

/// The header before the value in a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Header {
    /// The format of the record.
    v: u8,
    /// The highest token with which a value was stored.
    token: Option<FencingToken>,
    /// The number of deletes of the key.
    voids: u64,
    /// `None`: the record has only a floor.
    kept: Option<Kept>,
}

/// The times of the value that follows the header.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    /// Whether the loader has said that there is no value.
    none: bool,
    ttl: Duration,
    stale: Duration,
    load: Duration,
}

impl RecordsCache {
    /// A cache in this store's records.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where records have no ages.
    pub fn new(store: &Store) -> Result<Self> {
        let records = store.records();
        if !records.tells_ages() {
            let says = "its records tell no ages, so nobody can say when a value is stale";
            return Err(Error::new(ErrorKind::Unsupported, says).on(records.backend()));
        }
        Ok(Self(records))
    }

    /// Changes a record by compare-and-swap. `change` gets the present header, and returns the new
    /// header and value, or `None` to leave the record unchanged. Returns whether the record was
    /// written.
    async fn change_record(
        &self,
        key: &str,
        change: impl Fn(Header) -> Option<(Header, Arc<[u8]>)>,
    ) -> Result<bool> {
        let record = record_key(key)?;
        for _ in 0..TRIES {
            let entry = self.0.get(&record).await?;
            let before = entry
                .as_ref()
                .and_then(|entry| parse_record(entry).map(|(header, _)| header));
            let Some((header, value)) = change(before.unwrap_or_else(empty_header)) else {
                return Ok(false);
            };
            let mut bytes = serde_json::to_vec(&header).map_err(|error| {
                Error::new(ErrorKind::Internal, "a value cannot be written").caused_by(error)
            })?;
            bytes.push(b'\n');
            bytes.extend_from_slice(&value);
            let expect = entry.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            match self.0.put(&record, &bytes, expect).await {
                Ok(Written::Stored(_)) => return Ok(true),
                Ok(_) => {}
                // The next read shows whether the write happened.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
        }
        let says = format!("others changed the cache's {key:?} each of {TRIES} times");
        Err(Error::new(ErrorKind::Unavailable, says))
    }
}

#[async_trait]
impl Cache for RecordsCache {
    async fn get(&self, key: &str) -> Result<Seen> {
        let entry = self.0.get(&record_key(key)?).await?;
        let Some((header, value)) = entry.as_ref().and_then(parse_record) else {
            return Ok(Seen {
                found: None,
                mark: Mark(0),
            });
        };
        let age = entry.as_ref().and_then(|entry| entry.age);
        let found = |kept: Kept, token, age: Duration| {
            (age < kept.ttl + kept.stale).then(|| Found {
                value: (!kept.none).then(|| value.into()),
                token,
                fresh_for: kept.ttl.saturating_sub(age),
                load: kept.load,
            })
        };
        Ok(Seen {
            mark: Mark(header.voids),
            found: match (header.kept, header.token, age) {
                (Some(kept), Some(token), Some(age)) => found(kept, token, age),
                _ => None,
            },
        })
    }

    async fn put(&self, key: &str, loaded: &Loaded, mark: Mark) -> Result<bool> {
        self.change_record(key, |before| {
            let late = before.token.is_some_and(|token| token > loaded.token);
            if late || before.voids != mark.0 {
                return None;
            }
            let header = Header {
                v: FORMAT,
                token: Some(loaded.token),
                voids: before.voids,
                kept: Some(Kept {
                    none: loaded.value.is_none(),
                    ttl: loaded.ttl,
                    stale: loaded.stale,
                    load: loaded.load,
                }),
            };
            Some((header, loaded.value.clone().unwrap_or_default()))
        })
        .await
    }

    async fn delete(&self, key: &str, _floor: Duration) -> Result<()> {
        let deleting = self.change_record(key, |before| {
            let header = Header {
                voids: before.voids + 1,
                kept: None,
                ..before
            };
            Some((header, Arc::default()))
        });
        deleting.await.map(drop)
    }
}

/// The header of a key without a record.
const fn empty_header() -> Header {
    Header {
        v: FORMAT,
        token: None,
        voids: 0,
        kept: None,
    }
}

/// The header and the value of a record. `None`: the record has another format.
fn parse_record(entry: &Entry) -> Option<(Header, &[u8])> {
    let end = entry.value.iter().position(|byte| *byte == b'\n')?;
    let (header, value) = entry.value.split_at(end);
    let header: Header = serde_json::from_slice(header).ok()?;
    (header.v == FORMAT).then_some((header, &value[1..]))
}

fn record_key(key: &str) -> Result<RecordKey> {
    RecordKey::new(format!("cache/{key}"))
}
