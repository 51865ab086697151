//! Once per key: an effect that is requested several times happens once, and every caller gets its
//! result.
//!
//! # What it promises
//!
//! - The beginning of an effect is recorded before the effect starts, with the holder's token. The
//!   result is recorded after the effect has succeeded. A later caller gets the recorded result.
//! - After the holder of a token has begun an effect, the holder of a lower token cannot begin that
//!   effect.
//! - An effect that returns an error counts as not made, and the next caller makes it. Return an
//!   error only if the effect surely did not happen.
//!
//! # What breaks it
//!
//! - A process that dies during the effect leaves a beginning without a result. Only the recipient
//!   of the effect can say whether it happened. So the next caller gets
//!   [`ErrorKind::OutcomeUnknown`]. With [`retry_unfinished`](Idempotent::retry_unfinished) the
//!   next caller tries again; then the recipient must recognise the key, or the effect may happen
//!   twice.
//! - A store that forgets acknowledged writes forgets results. The effect then happens again.
//!
//! The idea comes from the idempotency keys of payment interfaces.

use std::{fmt, sync::Arc, time::Duration};

use distlock_core::{
    Clock, Error, ErrorKind, Expect, FencingToken, RecordKey, Records, Result, Store, Version,
    Written,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

/// The format number of the records. A reader refuses a record with another number.
const FORMAT: u8 = 1;
/// The pause before a failed write is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The number of attempts at one write, after which its outcome stays unknown.
const MAX_TRIES: u32 = 50;
const EFFECTS: &str = "distlock_idempotent_total";

/// Runs effects once per key. A clone is cheap.
#[derive(Clone)]
pub struct Idempotent {
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    retry_unfinished: bool,
}

/// The result of an effect, and whether this call made the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once<T> {
    /// The effect happened now.
    Now(T),
    /// The effect had happened before, with this result.
    Before(T),
}

impl<T> Once<T> {
    /// The result of the effect.
    pub fn into_inner(self) -> T {
        match self {
            Self::Now(result) | Self::Before(result) => result,
        }
    }
}

/// The record of an effect.
#[derive(Serialize, Deserialize)]
struct Effect {
    /// The format of the record.
    v: u8,
    /// The token of the lock under which the effect was begun.
    token: FencingToken,
    /// Random id of one call. A caller whose write got no answer reads the record, and recognises
    /// its own write by this id.
    id: Uuid,
    state: State,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// The effect was begun, and its end is not recorded.
    Begun,
    /// The effect returned an error, so it counts as not made.
    Failed,
    /// The effect was made, with this result.
    Done(serde_json::Value),
}

impl Idempotent {
    /// Records the effects in this store.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        metrics::describe_counter!(EFFECTS, "Effects that happen once, by their result");
        Self {
            records: store.records(),
            clock: store.clock(),
            retry_unfinished: false,
        }
    }

    /// Repeats an effect without a recorded end. The effect then happens at least once; without
    /// this setting it happens at most once.
    #[must_use]
    pub const fn retry_unfinished(mut self) -> Self {
        self.retry_unfinished = true;
        self
    }

    /// Makes the effect `key`, unless it was made before. The caller holds the lock of `token`, so
    /// no other caller begins the effect at the same time. All callers of one key must hold the
    /// same lock, one after the other.
    ///
    /// # Errors
    /// The effect's own error; the effect then counts as not made. [`ErrorKind::Lost`] when the
    /// holder of a later lock has begun the effect, before this call or during it.
    /// [`ErrorKind::OutcomeUnknown`] when the effect was begun and its end is not recorded.
    /// [`ErrorKind::InvalidArgument`] for a result that cannot be written. [`ErrorKind::Corrupt`]
    /// for a record of another version, or a result of another type. [`ErrorKind::LimitExceeded`]
    /// for a result of more than about 64 KiB; the end is then not recorded. Failures of the store
    /// before the effect began.
    ///
    /// # Cancel safety
    /// Dropping the future drops the effect. Its beginning stays recorded.
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
        let outcome = self.run_once(key, token, effect).await;
        let result = match &outcome {
            Ok(Once::Now(_)) => "now",
            Ok(Once::Before(_)) => "before",
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => "unknown",
            Err(_) => "failed",
        };
        metrics::counter!(EFFECTS, "result" => result).increment(1);
        outcome
    }

    /// Makes the effect as [`once`](Self::once) does, without counting its result in the metrics.
    async fn run_once<T, F>(
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
        let before = match self.read_effect(&record).await? {
            None => None,
            Some((
                _,
                Effect {
                    state: State::Done(result),
                    ..
                },
            )) => {
                let result = serde_json::from_value(result);
                return result
                    .map(Once::Before)
                    .map_err(|error| corrupt_error(&record, &error.to_string()));
            }
            Some((_, begun)) if begun.token > token => {
                let message = format!("the holder of token {} has begun {key:?}", begun.token);
                return Err(Error::new(ErrorKind::Lost, message));
            }
            Some((version, before)) if self.retry_unfinished || before.state == State::Failed => {
                Some(version)
            }
            Some((_, begun)) => {
                let message = format!(
                    "{key:?} was begun under token {}, and its end is not on record",
                    begun.token
                );
                return Err(Error::new(ErrorKind::OutcomeUnknown, message));
            }
        };
        let mut entry = Effect {
            v: FORMAT,
            token,
            id: Uuid::new_v4(),
            state: State::Begun,
        };
        let expect = before.map_or(Expect::Absent, Expect::Version);
        let version = self.write_effect(&record, expect, &entry).await?;
        match effect().await {
            Ok(result) => {
                let value = serde_json::to_value(&result).map_err(|error| {
                    Error::new(ErrorKind::InvalidArgument, "the result cannot be written")
                        .caused_by(error)
                })?;
                entry.state = State::Done(value);
                self.write_effect(&record, Expect::Version(version), &entry)
                    .await?;
                Ok(Once::Now(result))
            }
            Err(error) => {
                // This record lets the next caller make the effect. Without it, the next caller
                // gets `OutcomeUnknown`, unless it uses `retry_unfinished`.
                entry.state = State::Failed;
                let written = self
                    .write_effect(&record, Expect::Version(version), &entry)
                    .await;
                if let Err(error) = written {
                    tracing::warn!(key, %error, "that an effect has failed is not on record");
                }
                Err(error)
            }
        }
    }

    /// Replaces the record that has the expected version. Repeats the write while its outcome is
    /// unknown. [`ErrorKind::Lost`]: another client has written in between.
    async fn write_effect(
        &self,
        record: &RecordKey,
        expect: Expect,
        entry: &Effect,
    ) -> Result<Version> {
        let value = serde_json::to_vec(entry).map_err(|error| {
            Error::new(ErrorKind::Internal, "an effect cannot be written").caused_by(error)
        })?;
        let mut unknown = None;
        for _ in 0..MAX_TRIES {
            match self.records.put(record, &value, expect).await {
                Ok(Written::Stored(version)) => return Ok(version),
                // The conflict comes from an earlier attempt that succeeded, or from another
                // client.
                Ok(_) => match self.read_effect(record).await {
                    Ok(Some((version, now))) if now.id == entry.id && now.state == entry.state => {
                        return Ok(version);
                    }
                    Err(error) if error.is_retryable() => {}
                    Err(error) => return Err(error),
                    Ok(_) => {
                        let message = format!("somebody else has written the record {record}");
                        return Err(Error::new(ErrorKind::Lost, message));
                    }
                },
                // Repeating the write is safe: both attempts expect the same version, and at most
                // one of them can find that version.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown = Some(error),
                // No effect has begun yet and nothing was written, so the caller may try again.
                Err(error) if entry.state == State::Begun && unknown.is_none() => {
                    return Err(error);
                }
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(unknown.unwrap_or(error)),
            }
            self.clock.sleep(RETRY_PAUSE).await;
        }
        let message = format!("whether the record {record} is written is not known");
        Err(Error::new(ErrorKind::OutcomeUnknown, message))
    }

    /// Reads the record of an effect, with its version.
    async fn read_effect(&self, record: &RecordKey) -> Result<Option<(Version, Effect)>> {
        let Some(entry) = self.records.get(record).await? else {
            return Ok(None);
        };
        let effect: Effect = serde_json::from_slice(&entry.value)
            .map_err(|error| corrupt_error(record, &error.to_string()))?;
        if effect.v != FORMAT {
            let unknown = effect.v;
            let why = format!("format {unknown} is not known here, only {FORMAT}");
            return Err(corrupt_error(record, &why));
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

fn corrupt_error(record: &RecordKey, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the record {record}: {why}"))
}
