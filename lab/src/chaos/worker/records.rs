//! Reads and writes of records. Each write has a unique value, so a read shows the write that it
//! saw.

use distlock::{Clock as _, Deleted, Entry, Error, Expect, RecordKey, SystemClock, Written};

use super::task::WorkerTask;
use crate::chaos::history::{Event, Micros, RecordOperation, RecordStep, WriteOutcome, now};

/// Time for which a key is used. Few operations on a key keep the search for an order short.
const KEY_TIME: Micros = 500_000;
/// Number of keys that are used at a time.
const KEYS: u32 = 6;

impl WorkerTask {
    /// Reads a record and tries to change it.
    pub(super) async fn use_record(&mut self) {
        let key = format!("chaos-{}-{}", now() / KEY_TIME, self.rng.u32(..KEYS));
        let Ok(at) = RecordKey::new(&key) else { return };
        let from = now();
        let Ok(seen) = self.records.get(&at).await else {
            return self.pause().await;
        };
        let value = seen.as_ref().map(stored_number);
        let step = RecordOperation::Get {
            seen: seen
                .as_ref()
                .map(|it| (stored_number(it), it.version.get())),
        };
        self.record_step(self.history.next_number(), &key, from, Some(now()), step);
        if self.rng.bool() {
            self.pause().await;
        }
        let (asked, from) = (self.history.next_number(), now());
        let step = match (seen, value) {
            (Some(entry), Some(expected)) if self.rng.u32(..4) == 0 => {
                let step = |outcome| RecordOperation::Delete { expected, outcome };
                self.record_step(asked, &key, from, None, step(WriteOutcome::Unknown));
                let deleted = self.records.delete(&at, entry.version).await;
                step(write_outcome(&deleted.map(|it| it == Deleted::Done)))
            }
            (seen, expected) => {
                let value = self.rng.u64(..);
                let expect = seen.map_or(Expect::Absent, |it| Expect::Version(it.version));
                let step = |outcome, version| RecordOperation::Put {
                    expected,
                    value,
                    outcome,
                    version,
                };
                self.record_step(asked, &key, from, None, step(WriteOutcome::Unknown, None));
                let written = self.records.put(&at, &value.to_le_bytes(), expect).await;
                let version = match &written {
                    Ok(Written::Stored(version)) => Some(version.get()),
                    _ => None,
                };
                step(
                    write_outcome(&written.map(|it| it != Written::Conflict)),
                    version,
                )
            }
        };
        self.record_step(asked, &key, from, Some(now()), step);
        SystemClock.sleep(std::time::Duration::from_millis(2)).await;
    }

    /// Records an operation. `to` is `None` for a request that is about to be sent.
    fn record_step(
        &self,
        number: u64,
        key: &str,
        from: Micros,
        to: Option<Micros>,
        step: RecordOperation,
    ) {
        self.history.record(Event::Record(RecordStep {
            number,
            key: key.to_owned(),
            from,
            to,
            step,
        }));
    }
}

/// Converts the answer to a conditional write; `Ok(true)` means that the write happened.
fn write_outcome(answer: &Result<bool, Error>) -> WriteOutcome {
    match answer {
        Ok(true) => WriteOutcome::Done,
        Ok(false) => WriteOutcome::Conflict,
        // Even an error that says that nothing happened counts as unknown: the search for an order
        // decides.
        Err(_) => WriteOutcome::Unknown,
    }
}

/// Returns the value that a worker wrote.
fn stored_number(entry: &Entry) -> u64 {
    let bytes = entry.value.as_slice().try_into();
    bytes.map_or(0, u64::from_le_bytes)
}
