//! Reads and writes of records. Each write has a unique value, so a read shows which write it saw.

use distlock::{Clock as _, Deleted, Entry, Error, Expect, RecordKey, SystemClock, Written};

use super::task::Task;
use crate::chaos::history::{Event, Micros, Outcome, RecordStep, Step, now};

/// Keys are used for so long, so many at a time: the order of few operations is soon found.
const WINDOW: Micros = 500_000;
const KEYS: u32 = 6;

impl Task {
    /// Reads a record and tries to change it.
    pub(super) async fn use_a_record(&mut self) {
        let key = format!("chaos-{}-{}", now() / WINDOW, self.rng.u32(..KEYS));
        let Ok(at) = RecordKey::new(&key) else { return };
        let from = now();
        let Ok(seen) = self.records.get(&at).await else {
            return self.rest().await;
        };
        let value = seen.as_ref().map(number);
        let step = Step::Get {
            seen: seen.as_ref().map(|it| (number(it), it.version.get())),
        };
        self.record(self.notes.number(), &key, from, Some(now()), step);
        if self.rng.bool() {
            self.rest().await;
        }
        let (asked, from) = (self.notes.number(), now());
        let step = match (seen, value) {
            (Some(entry), Some(expected)) if self.rng.u32(..4) == 0 => {
                let step = |outcome| Step::Delete { expected, outcome };
                self.record(asked, &key, from, None, step(Outcome::Unknown));
                let deleted = self.records.delete(&at, entry.version).await;
                step(outcome(&deleted.map(|it| it == Deleted::Done)))
            }
            (seen, expected) => {
                let value = self.rng.u64(..);
                let expect = seen.map_or(Expect::Absent, |it| Expect::Version(it.version));
                let step = |outcome, version| Step::Put {
                    expected,
                    value,
                    outcome,
                    version,
                };
                self.record(asked, &key, from, None, step(Outcome::Unknown, None));
                let written = self.records.put(&at, &value.to_le_bytes(), expect).await;
                let version = match &written {
                    Ok(Written::Stored(version)) => Some(version.get()),
                    _ => None,
                };
                step(outcome(&written.map(|it| it != Written::Conflict)), version)
            }
        };
        self.record(asked, &key, from, Some(now()), step);
        SystemClock.sleep(std::time::Duration::from_millis(2)).await;
    }

    fn record(&self, number: u64, key: &str, from: Micros, to: Option<Micros>, step: Step) {
        self.notes.note(Event::Record(RecordStep {
            number,
            key: key.to_owned(),
            from,
            to,
            step,
        }));
    }
}

fn outcome(answer: &Result<bool, Error>) -> Outcome {
    match answer {
        Ok(true) => Outcome::Done,
        Ok(false) => Outcome::Conflict,
        // Also of an error that says that nothing happened: the search finds out whether it did.
        Err(_) => Outcome::Unknown,
    }
}

/// The value that a worker wrote.
fn number(entry: &Entry) -> u64 {
    let bytes = entry.value.as_slice().try_into();
    bytes.map_or(0, u64::from_le_bytes)
}
