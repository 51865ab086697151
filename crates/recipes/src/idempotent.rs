//! Once per key: an effect that is asked for several times happens once, and everybody gets its
//! result.
//!
//! # What it promises
//!
//! - That the effect begins is on record before it does, with the holder's token; its result is on
//!   record when it has succeeded. Whoever asks again gets the result.
//! - A holder of an earlier lock begins nothing after a later one has.
//! - An effect that returns an error counts as not made, and the next one who asks makes it. Return
//!   one only if it surely did not happen.
//!
//! # What breaks it
//!
//! - A process that dies in the middle leaves a beginning without a result. Whether the effect has
//!   happened only its recipient can say, so the next one who asks gets
//!   [`ErrorKind::OutcomeUnknown`] - or, with [`retry_unfinished`](Idempotent::retry_unfinished),
//!   tries again: then the recipient must recognise the key, or the effect may happen twice.
//! - A store that forgets what it had acknowledged forgets results.
//!
//! Source of the idea: the idempotency keys of payment interfaces.

use std::{fmt, sync::Arc, time::Duration};

use distlock_core::{
    Clock, Error, ErrorKind, Expect, FencingToken, RecordKey, Records, Result, Store, Version,
    Written,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

/// Format of the records; a reader refuses another one.
const FORMAT: u8 = 1;
/// Pause before what could not be written is written again, and how often it is.
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
    /// Tells a write whose reply was lost from another one's.
    id: Uuid,
    state: State,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It was begun, and its end is not on record.
    Begun,
    /// It was not made.
    Failed,
    /// It was made, with this result.
    Done(serde_json::Value),
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
    /// of: nobody else may begin it at the same time. All who ask for one key hold the same lock in
    /// turn.
    ///
    /// # Errors
    /// The effect's own error, after which it counts as not made; [`ErrorKind::Lost`] when the
    /// holder of a later lock has begun it, before this one or meanwhile;
    /// [`ErrorKind::OutcomeUnknown`] when it was begun and its end is not on record;
    /// [`ErrorKind::InvalidArgument`] for a result that cannot be written; [`ErrorKind::Corrupt`]
    /// for a record of another version, or a result of another type; [`ErrorKind::LimitExceeded`]
    /// for a result of more than about 64 KiB, which leaves the end off the record; failures of the
    /// store before it began.
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
                    .map_err(|error| corrupt(&record, &error.to_string()));
            }
            Some((_, begun)) if begun.token > token => {
                let says = format!("the holder of token {} has begun {key:?}", begun.token);
                return Err(Error::new(ErrorKind::Lost, says));
            }
            Some((version, before)) if self.retry_unfinished || before.state == State::Failed => {
                Some(version)
            }
            Some((_, begun)) => {
                let says = format!(
                    "{key:?} was begun under token {}, and its end is not on record",
                    begun.token
                );
                return Err(Error::new(ErrorKind::OutcomeUnknown, says));
            }
        };
        let mut it = Effect {
            v: FORMAT,
            token,
            id: Uuid::new_v4(),
            state: State::Begun,
        };
        let expect = before.map_or(Expect::Absent, Expect::Version);
        let version = self.write(&record, expect, &it).await?;
        match effect().await {
            Ok(result) => {
                let value = serde_json::to_value(&result).map_err(|error| {
                    Error::new(ErrorKind::InvalidArgument, "the result cannot be written")
                        .caused_by(error)
                })?;
                it.state = State::Done(value);
                self.write(&record, Expect::Version(version), &it).await?;
                Ok(Once::Now(result))
            }
            Err(error) => {
                // Nobody needs to ask whether it has happened. Where that cannot be written, they
                // do.
                it.state = State::Failed;
                let written = self.write(&record, Expect::Version(version), &it).await;
                if let Err(error) = written {
                    tracing::warn!(key, %error, "that an effect has failed is not on record");
                }
                Err(error)
            }
        }
    }

    /// Writes a state on top of the one before, for as long as that may have been written and is
    /// not known. [`ErrorKind::Lost`] when somebody else has written meanwhile.
    async fn write(&self, record: &RecordKey, expect: Expect, it: &Effect) -> Result<Version> {
        let value = serde_json::to_vec(it).map_err(|error| {
            Error::new(ErrorKind::Internal, "an effect cannot be written").caused_by(error)
        })?;
        let mut unknown = None;
        for _ in 0..TRIES {
            match self.records.put(record, &value, expect).await {
                Ok(Written::Stored(version)) => return Ok(version),
                // An earlier try that was carried out, or somebody else.
                Ok(_) => match self.read(record).await {
                    Ok(Some((version, now))) if now.id == it.id && now.state == it.state => {
                        return Ok(version);
                    }
                    Err(error) if error.is_retryable() => {}
                    Err(error) => return Err(error),
                    Ok(_) => {
                        let says = format!("somebody else has written the record {record}");
                        return Err(Error::new(ErrorKind::Lost, says));
                    }
                },
                // Writing the same again settles it: one of the two finds what it expects.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown = Some(error),
                Err(error) if it.state == State::Begun && unknown.is_none() => return Err(error),
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(unknown.unwrap_or(error)),
            }
            self.clock.sleep(PAUSE).await;
        }
        let says = format!("whether the record {record} is written is not known");
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

fn corrupt(record: &RecordKey, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the record {record}: {why}"))
}
