//! A change of two counters that takes effect as a whole, though each counter is a record of its
//! own.
//!
//! This module owns the records of a user: the journal, the counters of the conversations, and the
//! total.
//!
//! One write decides a change: it stores the intent in the user's journal, on condition that the
//! journal has not changed since the counters were read. The counters are written afterwards. Until
//! then, readers take the values from the intent. When a client dies in between, the next client
//! that changes the counters writes them first. So no order of crashes leaves half a change.
//!
//! Every change has a number, one more than the change before, and both the journal and the
//! counters carry it. The total is written last. When the number in the total equals the journal's
//! number, the change is finished.

use std::sync::Arc;

use distlock_core::{
    Clock, Entry, Error, ErrorKind, Expect, FencingToken, RecordKey, Records, Result, Version,
    Written,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{
    counter::{Change, Counter, Unread, unknown_counter_error},
    retries::{Retries, TRIES, too_contended_error},
};

/// The format number of the records. A reader refuses a record with another number.
const FORMAT: u8 = 1;

/// The journals and counters of all users in one store.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    records: Arc<dyn Records>,
    retries: Retries,
}

/// The journal's record: the latest change that was decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Intent {
    /// The format of the record.
    v: u8,
    /// The number of this change: the number of this user's changes, this one included.
    number: u64,
    /// Random id of one call. It shows a caller whether an intent with this number is its own.
    id: Uuid,
    /// The highest fencing token of a holder that has made a change.
    token: Option<FencingToken>,
    conversation: String,
    /// The counters after the change.
    unread: u64,
    total: u64,
    /// The versions of the two counters before the change. `None`: there was no record.
    unread_was: Option<u64>,
    total_was: Option<u64>,
}

/// A counter's record.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Count {
    /// The format of the record.
    v: u8,
    /// The number of the change that wrote this counter.
    number: u64,
    count: u64,
}

/// A write of the journal with an unknown outcome.
struct UnknownWrite {
    /// The number of the change in the write.
    number: u64,
    error: Error,
}

/// The records of one user, as read.
struct Snapshot {
    intent: Option<(Version, Intent)>,
    conversation: Option<(Version, Count)>,
    total: Option<(Version, Count)>,
}

impl Snapshot {
    /// The number of the journal's change; 0: there was no change yet.
    fn last_change_number(&self) -> u64 {
        self.intent.as_ref().map_or(0, |(_, intent)| intent.number)
    }

    /// Whether another client wrote between the reads of these records, so that the records do not
    /// fit together. Either a counter has a change that came after the journal was read, or the
    /// conversation was read before the journal's change was written to it.
    fn is_inconsistent(&self, counter: &Counter) -> bool {
        let number = |count: &Option<(Version, Count)>| count.map_or(0, |(_, it)| it.number);
        let (conversation, total) = (number(&self.conversation), number(&self.total));
        let is_its = |(_, it): &(Version, Intent)| it.conversation == counter.conversation();
        let is_old = self.pending().is_none()
            && self.intent.as_ref().is_some_and(is_its)
            && conversation < self.last_change_number();
        conversation.max(total) > self.last_change_number() || is_old
    }

    /// The change that was decided, and whose counters may not be written yet. `None`: the total
    /// has the number of the journal's change, so the change is finished.
    fn pending(&self) -> Option<&Intent> {
        let (_, intent) = self.intent.as_ref()?;
        let written = self.total.as_ref().map_or(0, |(_, total)| total.number);
        (written < intent.number).then_some(intent)
    }

    /// The user's total, with a pending change counted as made.
    fn total(&self) -> u64 {
        match self.pending() {
            Some(intent) => intent.total,
            None => self.total.as_ref().map_or(0, |(_, total)| total.count),
        }
    }

    /// The unread messages of a conversation, with a pending change counted as made. `None`: there
    /// is no such counter.
    fn conversation(&self, counter: &Counter) -> Option<u64> {
        match self.pending() {
            Some(intent) if intent.conversation == counter.conversation() => Some(intent.unread),
            _ => self.conversation.as_ref().map(|(_, it)| it.count),
        }
    }
}

impl Journal {
    pub(super) fn new(
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
        mode: &'static str,
    ) -> Self {
        Self {
            records,
            retries: Retries::new(mode, clock),
        }
    }

    pub(super) fn retries(&self) -> u64 {
        self.retries.count()
    }

    /// Reads the counters. Repeats the reads when another client wrote in between. A change in the
    /// journal counts as made, also before its counters are written.
    pub(super) async fn read(&self, counter: &Counter) -> Result<Unread> {
        for attempt in 1..=TRIES {
            let snapshot = self.read_snapshot(counter).await?;
            if !snapshot.is_inconsistent(counter) {
                let unread = snapshot.conversation(counter).map(|conversation| Unread {
                    conversation,
                    total: snapshot.total(),
                });
                return unread.ok_or_else(|| unknown_counter_error(counter));
            }
            self.retries.pause_before_retry(attempt).await;
        }
        Err(too_contended_error(counter))
    }

    /// Makes a change, and repeats an attempt when another client wrote in between. After a change
    /// with a token, a change with a lower token is refused.
    pub(super) async fn change(
        &self,
        counter: &Counter,
        change: Change,
        token: Option<FencingToken>,
    ) -> Result<Unread> {
        let id = Uuid::new_v4();
        let mut unknown_write = None;
        for attempt in 1..=TRIES {
            match self
                .try_change(counter, change, token, id, &mut unknown_write)
                .await
            {
                Ok(Some(unread)) => return Ok(unread),
                Ok(None) => {}
                // An earlier write may have happened. A failure that may pass does not end the
                // change: the next attempt reads the journal, and finds that write if it happened.
                Err(error) if unknown_write.is_some() && error.is_retryable() => {}
                Err(error) => {
                    return Err(unknown_write.map_or(error, |unknown_write| unknown_write.error));
                }
            }
            self.retries.pause_before_retry(attempt).await;
        }
        Err(unknown_write.map_or_else(
            || too_contended_error(counter),
            |unknown_write| unknown_write.error,
        ))
    }

    /// Makes one attempt. `None`: another client wrote in between, or the outcome of the write is
    /// unknown.
    async fn try_change(
        &self,
        counter: &Counter,
        change: Change,
        token: Option<FencingToken>,
        id: Uuid,
        unknown_write: &mut Option<UnknownWrite>,
    ) -> Result<Option<Unread>> {
        let snapshot = self.read_snapshot(counter).await?;
        if let Some(UnknownWrite { number, error }) = unknown_write.take() {
            match &snapshot.intent {
                Some((_, intent)) if intent.id == id => return Ok(Some(counters_after(intent))),
                // Another client's change has this number, so the write failed for good.
                _ if snapshot.last_change_number() == number => {}
                // The journal has not changed. The same write is repeated below: the first attempt
                // may still arrive, and only one of the two can find the journal that it expects.
                _ if snapshot.last_change_number() < number => {
                    *unknown_write = Some(UnknownWrite { number, error });
                }
                // Several changes came after the write. The journal keeps only the last change, so
                // it does not show whether this write was one of them.
                _ => return Err(error),
            }
        }
        if snapshot.is_inconsistent(counter) {
            return Ok(None);
        }
        if let Some(intent) = snapshot.pending() {
            self.write_counters(counter.user(), intent).await?;
            return Ok(None);
        }
        let expect = match &snapshot.intent {
            None => Expect::Absent,
            Some((version, _)) => Expect::Version(*version),
        };
        let intent = new_intent(counter, change, token, id, &snapshot)?;
        let key = journal_key(counter.user())?;
        match self.records.put(&key, &to_json(&intent)?, expect).await {
            Ok(Written::Stored(_)) => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                let number = intent.number;
                *unknown_write = Some(UnknownWrite { number, error });
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        // The change is decided, so a failure here does not undo it. The next client that changes
        // the counters writes them.
        if let Err(error) = self.write_counters(counter.user(), &intent).await {
            tracing::debug!(user = counter.user(), %error, "the counters are written later");
        }
        Ok(Some(counters_after(&intent)))
    }

    /// Writes the counters of a decided change. A conflict means that another client has written
    /// the counters of the same change: no client decides the next change before the counters of
    /// this change are written.
    async fn write_counters(&self, user: &str, intent: &Intent) -> Result<()> {
        let counts = [
            (
                conversation_key(user, &intent.conversation)?,
                intent.unread,
                intent.unread_was,
            ),
            (total_key(user)?, intent.total, intent.total_was),
        ];
        for (key, count, was) in counts {
            let count = Count {
                v: FORMAT,
                number: intent.number,
                count,
            };
            let expect = was.map_or(Expect::Absent, |was| Expect::Version(Version::new(was)));
            self.records.put(&key, &to_json(&count)?, expect).await?;
        }
        Ok(())
    }

    /// Reads the journal, and the counters after it. In this order, the counters have every change
    /// that came before the journal's change.
    async fn read_snapshot(&self, counter: &Counter) -> Result<Snapshot> {
        let user = counter.user();
        let journal = journal_key(user)?;
        let intent = self.records.get(&journal).await?;
        let keys = [
            conversation_key(user, counter.conversation())?,
            total_key(user)?,
        ];
        let mut counts = self.records.get_many(&keys).await?.into_iter();
        let mut count = |key| {
            counts
                .next()
                .flatten()
                .map(|entry| parse(key, &entry))
                .transpose()
        };
        Ok(Snapshot {
            intent: intent.map(|entry| parse(&journal, &entry)).transpose()?,
            conversation: count(&keys[0])?,
            total: count(&keys[1])?,
        })
    }
}

/// The intent of a change, computed from the records that were read. [`ErrorKind::Lost`]: a holder
/// of a later lock has made a change.
fn new_intent(
    counter: &Counter,
    change: Change,
    token: Option<FencingToken>,
    id: Uuid,
    snapshot: &Snapshot,
) -> Result<Intent> {
    let seen = snapshot
        .intent
        .as_ref()
        .and_then(|(_, intent)| intent.token);
    if let (Some(seen), Some(token)) = (seen, token)
        && token < seen
    {
        let says = format!("a later holder, {seen}, has changed the counters of {counter}");
        return Err(Error::new(ErrorKind::Lost, says));
    }
    let after = change.apply_to(counter, snapshot.conversation(counter), snapshot.total())?;
    let version = |count: &Option<(Version, Count)>| count.map(|(version, _)| version.get());
    Ok(Intent {
        v: FORMAT,
        number: snapshot.last_change_number() + 1,
        id,
        token: token.max(seen),
        conversation: counter.conversation().to_owned(),
        unread: after.conversation,
        total: after.total,
        unread_was: version(&snapshot.conversation),
        total_was: version(&snapshot.total),
    })
}

/// The counters after a decided change.
const fn counters_after(intent: &Intent) -> Unread {
    Unread {
        conversation: intent.unread,
        total: intent.total,
    }
}

/// Parses a record, with its version.
fn parse<T: DeserializeOwned>(key: &RecordKey, entry: &Entry) -> Result<(Version, T)> {
    #[derive(Deserialize)]
    struct Format {
        v: u8,
    }
    let corrupt = |why: String| Error::new(ErrorKind::Corrupt, format!("the record {key}: {why}"));
    let broken = |error: serde_json::Error| corrupt(error.to_string());
    let Format { v } = serde_json::from_slice(&entry.value).map_err(broken)?;
    if v != FORMAT {
        return Err(corrupt(format!(
            "format {v} is not known here, only {FORMAT}"
        )));
    }
    let record = serde_json::from_slice(&entry.value).map_err(broken)?;
    Ok((entry.version, record))
}

fn to_json(record: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(|error| {
        Error::new(ErrorKind::Internal, "a counter cannot be written").caused_by(error)
    })
}

fn journal_key(user: &str) -> Result<RecordKey> {
    RecordKey::new(format!("unread/{user}/journal"))
}

fn total_key(user: &str) -> Result<RecordKey> {
    RecordKey::new(format!("unread/{user}/total"))
}

fn conversation_key(user: &str, conversation: &str) -> Result<RecordKey> {
    RecordKey::new(format!("unread/{user}/of/{conversation}"))
}
