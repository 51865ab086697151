//! Once per key: an effect that is asked for several times happens once, and everybody gets its
//! result.
//!
//! # What it promises
//!
//! - That the effect begins is on record before it does, with the holder's token; its result is on
//!   record when it has succeeded. Whoever asks again gets the result.
//! - A holder of an earlier lock begins nothing after a later one has.
//! - An effect that returns an error counts as not made, and the next one who asks makes it. Return one
//!   only if it surely did not happen.
//!
//! # What breaks it
//!
//! - A process that dies in the middle leaves a beginning without a result. Whether the effect has
//!   happened only its recipient can say, so the next one who asks gets
//!   [`ErrorKind::OutcomeUnknown`] - or, with [`retry_unfinished`](Idempotent::retry_unfinished), tries
//!   again: then the recipient must recognise the key, or the effect may happen twice.
//! - A store that forgets what it had acknowledged forgets results.
//!
//! Source of the idea: the idempotency keys of payment interfaces.

use std::{fmt, sync::Arc, time::Duration};

use distlock_core::{
    Clock, Error, ErrorKind, Expect, FencingToken, RecordKey, Records, Result, Store, Version,
    Written,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Format of the records; a reader refuses another one.
const FORMAT: u8 = 1;
/// Pause before a result that could not be written is written again, and for how often.
const PAUSE: Duration = Duration::from_millis(100);
const TRIES: u32 = 50;

/// Runs effects once per key. Cheap to clone.
#[derive(Clone)]
pub struct Idempotent {
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    retry_unfinished: bool,
}

/// What became of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once<T> {
    /// It happened now.
    Now(T),
    /// It had happened before, with this result.
    Before(T),
}

impl<T> Once<T> {
    /// The result, whenever it was.
    pub fn into_inner(self) -> T {
        match self {
            Self::Now(result) | Self::Before(result) => result,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Effect {
    v: u8,
    /// Of the lock under which it was begun.
    token: FencingToken,
    /// `None` = it was begun.
    result: Option<serde_json::Value>,
}

impl Idempotent {
    /// Over this store's records.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        Self {
            records: store.records(),
            clock: store.clock(),
            retry_unfinished: false,
        }
    }

    /// An effect whose end is not on record is tried again: at least once, where it is at most once
    /// without.
    #[must_use]
    pub const fn retry_unfinished(mut self) -> Self {
        self.retry_unfinished = true;
        self
    }

    /// Makes the effect `key` unless it was made before, for the holder of the lock that `token` is
    /// of: nobody else may begin it at the same time. All who ask for one key hold the same lock in turn.
    ///
    /// # Errors
    /// The effect's own error, after which it counts as not made; [`ErrorKind::Lost`] when the holder
    /// of a later lock has begun it, before this one or meanwhile; [`ErrorKind::OutcomeUnknown`] when it
    /// was begun and its end is not on record; [`ErrorKind::InvalidArgument`] for a result that cannot be
    /// written; [`ErrorKind::Corrupt`] for a record of another version, or a result of another type;
    /// [`ErrorKind::LimitExceeded`] for a result of more than about 64 KiB, which leaves the end off
    /// the record; failures of the store before it began.
    ///
    /// # Cancel safety
    /// When it is dropped the effect is dropped; that it was begun stays on record.
    pub async fn once<T, F>(
        &self,
        key: &str,
        token: FencingToken,
        effect: impl FnOnce() -> F,
    ) -> Result<Once<T>>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T>>,
    {
        let once = self.try_once(key, token, effect).await;
        let result = match &once {
            Ok(Once::Now(_)) => "now",
            Ok(Once::Before(_)) => "before",
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => "unknown",
            Err(_) => "failed",
        };
        metrics::counter!("distlock_idempotent_total", "result" => result).increment(1);
        once
    }

    async fn try_once<T, F>(
        &self,
        key: &str,
        token: FencingToken,
        effect: impl FnOnce() -> F,
    ) -> Result<Once<T>>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T>>,
    {
        let record = RecordKey::new(format!("once/{key}"))?;
        let before = match self.read(&record).await? {
            None => None,
            Some((_, effect)) if effect.result.is_some() => {
                return result_of(&record, effect).map(Once::Before);
            }
            Some((_, begun)) if begun.token > token => {
                let says = format!("the holder of token {} has begun {key:?}", begun.token);
                return Err(Error::new(ErrorKind::Lost, says));
            }
            Some((version, _)) if self.retry_unfinished => Some(version),
            Some((_, begun)) => {
                let says = format!(
                    "{key:?} was begun under token {}, and its end is not on record",
                    begun.token
                );
                return Err(Error::new(ErrorKind::OutcomeUnknown, says));
            }
        };
        let Some(version) = self.begin(&record, before, token).await? else {
            let says = format!("somebody else has begun {key:?} at the same time");
            return Err(Error::new(ErrorKind::Lost, says));
        };
        let result = match effect().await {
            Ok(result) => result,
            Err(error) => {
                // Nobody needs to ask whether it has happened. Where that cannot be written, they do.
                let undone = self.records.delete(&record, version).await;
                if let Err(error) = undone {
                    tracing::warn!(key, %error, "that an effect has failed is not on record");
                }
                return Err(error);
            }
        };
        self.end(&record, version, token, &result).await?;
        Ok(Once::Now(result))
    }

    /// Puts on record that it begins; `None` = somebody else was faster.
    async fn begin(
        &self,
        record: &RecordKey,
        before: Option<Version>,
        token: FencingToken,
    ) -> Result<Option<Version>> {
        let expect = before.map_or(Expect::Absent, Expect::Version);
        let begun = bytes(&Effect {
            v: FORMAT,
            token,
            result: None,
        })?;
        // A lost reply leaves a beginning behind, and nothing has happened: whoever knows that says so.
        match self.records.put(record, &begun, expect).await? {
            Written::Stored(version) => Ok(Some(version)),
            _ => Ok(None),
        }
    }

    /// Puts the result on record. It has happened, so this is tried for a while.
    async fn end<T: Serialize>(
        &self,
        record: &RecordKey,
        version: Version,
        token: FencingToken,
        result: &T,
    ) -> Result<()> {
        let result = serde_json::to_value(result).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, "the result cannot be written").caused_by(error)
        })?;
        let ended = bytes(&Effect {
            v: FORMAT,
            token,
            result: Some(result),
        })?;
        for _ in 0..TRIES {
            let put = self
                .records
                .put(record, &ended, Expect::Version(version))
                .await;
            match put {
                Ok(Written::Stored(_)) => return Ok(()),
                // An earlier try that was carried out, or somebody who has tried again meanwhile.
                Ok(_) => {
                    let now = self.read(record).await?.map(|(_, now)| now);
                    if now.is_some_and(|now| now.token == token && now.result.is_some()) {
                        return Ok(());
                    }
                    let says = format!("somebody else has begun what the record {record} is of");
                    return Err(Error::new(ErrorKind::Lost, says));
                }
                Err(error) if error.is_retryable() => {}
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
            self.clock.sleep(PAUSE).await;
        }
        let says = format!("it has happened, and the record {record} cannot be written");
        Err(Error::new(ErrorKind::OutcomeUnknown, says))
    }

    async fn read(&self, record: &RecordKey) -> Result<Option<(Version, Effect)>> {
        let Some(entry) = self.records.get(record).await? else {
            return Ok(None);
        };
        let effect: Effect = serde_json::from_slice(&entry.value)
            .map_err(|error| corrupt(record, &error.to_string()))?;
        if effect.v != FORMAT {
            let unknown = effect.v;
            let why = format!("format {unknown} is not known here, only {FORMAT}");
            return Err(corrupt(record, &why));
        }
        Ok(Some((entry.version, effect)))
    }
}

impl fmt::Debug for Idempotent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent")
            .field("backend", &self.records.backend())
            .field("retry_unfinished", &self.retry_unfinished)
            .finish_non_exhaustive()
    }
}

fn result_of<T: DeserializeOwned>(record: &RecordKey, effect: Effect) -> Result<T> {
    let result = effect.result.unwrap_or_default();
    serde_json::from_value(result).map_err(|error| corrupt(record, &error.to_string()))
}

fn bytes(effect: &Effect) -> Result<Vec<u8>> {
    serde_json::to_vec(effect).map_err(|error| {
        Error::new(ErrorKind::Internal, "an effect cannot be written").caused_by(error)
    })
}

fn corrupt(record: &RecordKey, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the record {record}: {why}"))
}
