//! The two records of a job: its last start, and the last end that was recorded.
//!
//! Invariant: a record names the holder that wrote it by its fencing token. An end belongs to a
//! start only if both have the same token.

use std::time::Duration;

use distlock_core::{
    Clock, Entry, Error, ErrorKind, Guard, LockName, RecordKey, Result, unix_time,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The format number of the records. A reader refuses a record with another number.
const FORMAT: u8 = 1;

/// The keys of the starts begin with this, followed by the name of the job.
pub(super) const STARTS: &str = "periodic/start/";

/// The format of either record.
#[derive(Deserialize)]
struct Format {
    v: u8,
}

/// The record of the last start.
#[derive(Serialize, Deserialize)]
pub(super) struct Start {
    /// The format of the record.
    v: u8,
    /// The fencing token of the holder that started the job.
    pub(super) token: u64,
    /// The label of that holder.
    pub(super) by: String,
    /// The time of the write in milliseconds since 1970, by the writer's clock. A reader uses this
    /// time when the store does not tell the age of the record.
    at_ms: u64,
    /// The time in milliseconds from the first start of this period to this start. A period counts
    /// from its first start, so a repeated job does not move the period.
    pub(super) since_ms: u64,
    /// The period that the holder asked for, in milliseconds. It serves for display; the next
    /// caller brings its own period.
    pub(super) every_ms: u64,
}

/// The record of the last end.
#[derive(Serialize, Deserialize)]
pub(super) struct End {
    /// The format of the record.
    v: u8,
    /// The fencing token of the holder that started the job.
    pub(super) token: u64,
    /// Whether the job has succeeded.
    pub(super) ok: bool,
    /// The time of the write in milliseconds since 1970, by the writer's clock, for display.
    at_ms: u64,
}

impl Start {
    /// The record of a start that happens now, `since` the first start of the period.
    pub(super) fn now(guard: &Guard, every: Duration, since: Duration, clock: &dyn Clock) -> Self {
        Self {
            v: FORMAT,
            token: guard.token().get(),
            by: guard.holder().as_str().to_owned(),
            at_ms: millis(unix_time(clock)),
            since_ms: millis(since),
            every_ms: millis(every),
        }
    }

    pub(super) fn parse(key: &RecordKey, entry: &Entry) -> Result<Self> {
        parse(key, entry)
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        encode(self)
    }

    /// The time since the start was recorded. The store tells no age when its clock has started
    /// anew since the write. For example, the clock of a store in a file starts anew at each
    /// reboot. Then the wall clock of this host gives the time.
    pub(super) fn age(
        &self,
        key: &RecordKey,
        entry: &Entry,
        clock: &dyn Clock,
    ) -> Result<Duration> {
        if let Some(age) = entry.age {
            return Ok(age);
        }
        let (now, then) = (unix_time(clock), Duration::from_millis(self.at_ms));
        now.checked_sub(then).ok_or_else(|| {
            let ahead = then.saturating_sub(now);
            corrupt_error(
                key,
                &format!("it was written {ahead:.1?} from now, by this host's clock"),
            )
        })
    }
}

impl End {
    /// The record of an end that happens now.
    pub(super) fn now(guard: &Guard, ok: bool, clock: &dyn Clock) -> Self {
        Self {
            v: FORMAT,
            token: guard.token().get(),
            ok,
            at_ms: millis(unix_time(clock)),
        }
    }

    /// Whether this is the end of the run that began with `start`. A holder that keeps its lock
    /// starts several runs under one token, so the time of the same host decides among those. It
    /// serves for display.
    pub(super) const fn is_of(&self, start: &Start) -> bool {
        self.token == start.token && self.at_ms >= start.at_ms
    }

    pub(super) fn parse(key: &RecordKey, entry: &Entry) -> Result<Self> {
        parse(key, entry)
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        encode(self)
    }
}

pub(super) fn start_key(name: &LockName) -> Result<RecordKey> {
    RecordKey::new(format!("{STARTS}{name}"))
}

pub(super) fn end_key(name: &LockName) -> Result<RecordKey> {
    RecordKey::new(format!("periodic/end/{name}"))
}

fn parse<T: DeserializeOwned>(key: &RecordKey, entry: &Entry) -> Result<T> {
    // The format comes first: a record of another format may lack the fields of this one.
    let Format { v } = parse_fields(key, entry)?;
    if v != FORMAT {
        let why = format!("format {v} is not known here, only {FORMAT}");
        return Err(corrupt_error(key, &why));
    }
    parse_fields(key, entry)
}

fn parse_fields<T: DeserializeOwned>(key: &RecordKey, entry: &Entry) -> Result<T> {
    serde_json::from_slice(&entry.value).map_err(|error| corrupt_error(key, &error.to_string()))
}

fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(|error| {
        Error::new(ErrorKind::Internal, "a run cannot be written").caused_by(error)
    })
}

fn corrupt_error(key: &RecordKey, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the record {key}: {why}"))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
