//! The journalled change of two counters, which are two records.
//!
//! A change is decided by one write: its intent goes into the user's journal, if the journal is
//! still what it was when the counters were read. The counters are written after it, and only count
//! as far as the journal says so. A change whose author died there is finished by whoever changes
//! the counters next, and readers see it as made. So no order of crashes leaves half a change.
//!
//! Every change has a number, one more than that of the change before, and both the journal and the
//! counters carry it. The total is written last: when its number is the journal's, the change is
//! finished.

use std::sync::Arc;

use distlock_core::{
    Clock, Entry, Error, ErrorKind, Expect, FencingToken, RecordKey, Records, Result, Version,
    Written,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{
    counter::{Change, Counter, Unread, unknown},
    retries::{TRIES, Tries, restless},
};

/// Format of the records; a reader refuses another one.
const FORMAT: u8 = 1;

#[derive(Clone, Debug)]
pub(super) struct Journal {
    records: Arc<dyn Records>,
    tries: Tries,
}

/// The last change that was decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Intent {
    v: u8,
    /// How many changes there have been.
    number: u64,
    /// Tells two that were tried at the same time apart.
    id: Uuid,
    /// The highest token of a lock's holder who has made a change.
    token: Option<FencingToken>,
    conversation: String,
    /// What the counters are after it.
    unread: u64,
    total: u64,
    /// Which versions of their records it was decided upon; `None` = there was no record.
    unread_was: Option<u64>,
    total_was: Option<u64>,
}

/// A counter's record.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Count {
    v: u8,
    /// The change that wrote it.
    number: u64,
    count: u64,
}

/// A write of the journal whose reply was lost.
struct Doubt {
    /// The change that it was to make.
    number: u64,
    error: Error,
}

/// What was read of one user.
struct Look {
    intent: Option<(Version, Intent)>,
    conversation: Option<(Version, Count)>,
    total: Option<(Version, Count)>,
}

impl Look {
    fn number(&self) -> u64 {
        self.intent.as_ref().map_or(0, |(_, intent)| intent.number)
    }

    /// Whether the counters are not of one moment: one is of a change that the journal did not have
    /// yet when it was read, or this conversation was read before the journal's change was written
    /// to it.
    fn is_torn(&self, counter: &Counter) -> bool {
        let number = |count: &Option<(Version, Count)>| count.map_or(0, |(_, it)| it.number);
        let (conversation, total) = (number(&self.conversation), number(&self.total));
        let is_its = |(_, it): &(Version, Intent)| it.conversation == counter.conversation();
        let is_old = self.pending().is_none()
            && self.intent.as_ref().is_some_and(is_its)
            && conversation < self.number();
        conversation.max(total) > self.number() || is_old
    }

    /// The change that was decided and is perhaps not finished.
    fn pending(&self) -> Option<&Intent> {
        let (_, intent) = self.intent.as_ref()?;
        let written = self.total.as_ref().map_or(0, |(_, total)| total.number);
        (written < intent.number).then_some(intent)
    }

    fn total(&self) -> u64 {
        match self.pending() {
            Some(intent) => intent.total,
            None => self.total.as_ref().map_or(0, |(_, total)| total.count),
        }
    }

    /// What is unread in a conversation by the journal; `None` = there is no such counter.
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
            tries: Tries::new(mode, clock),
        }
    }

    pub(super) fn retries(&self) -> u64 {
        self.tries.count()
    }

    pub(super) async fn read(&self, counter: &Counter) -> Result<Unread> {
        for tries in 1..=TRIES {
            let look = self.look(counter).await?;
            if !look.is_torn(counter) {
                let unread = look.conversation(counter).map(|conversation| Unread {
                    conversation,
                    total: look.total(),
                });
                return unread.ok_or_else(|| unknown(counter));
            }
            self.tries.again(tries).await;
        }
        Err(restless(counter))
    }

    /// Makes a change. With a token, no holder of an earlier lock makes one after it.
    pub(super) async fn change(
        &self,
        counter: &Counter,
        change: Change,
        token: Option<FencingToken>,
    ) -> Result<Unread> {
        let id = Uuid::new_v4();
        let mut doubt = None;
        for tries in 1..=TRIES {
            match self
                .try_change(counter, change, token, id, &mut doubt)
                .await
            {
                Ok(Some(unread)) => return Ok(unread),
                Ok(None) => {}
                // What an earlier write came to is asked until it is known.
                Err(error) if doubt.is_some() && error.is_retryable() => {}
                Err(error) => return Err(doubt.map_or(error, |doubt| doubt.error)),
            }
            self.tries.again(tries).await;
        }
        Err(doubt.map_or_else(|| restless(counter), |doubt| doubt.error))
    }

    /// `None` when somebody else was in between, or what became of the write is not known.
    async fn try_change(
        &self,
        counter: &Counter,
        change: Change,
        token: Option<FencingToken>,
        id: Uuid,
        doubt: &mut Option<Doubt>,
    ) -> Result<Option<Unread>> {
        let look = self.look(counter).await?;
        if let Some(Doubt { number, error }) = doubt.take() {
            match &look.intent {
                Some((_, intent)) if intent.id == id => return Ok(Some(after(intent))),
                // It is another change that was made instead.
                _ if look.number() == number => {}
                // Nobody has made one yet. Writing the same again settles it: only one of the two
                // writes can find the journal that it expects.
                _ if look.number() < number => *doubt = Some(Doubt { number, error }),
                _ => return Err(error),
            }
        }
        if look.is_torn(counter) {
            return Ok(None);
        }
        if let Some(intent) = look.pending() {
            self.finish(counter.user(), intent).await?;
            return Ok(None);
        }
        let expect = match &look.intent {
            None => Expect::Absent,
            Some((version, _)) => Expect::Version(*version),
        };
        let intent = decide(counter, change, token, id, &look)?;
        let key = journal_key(counter.user())?;
        match self.records.put(&key, &bytes(&intent)?, expect).await {
            Ok(Written::Stored(_)) => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                let number = intent.number;
                *doubt = Some(Doubt { number, error });
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        // The change is made. Whoever comes next would finish it as well.
        if let Err(error) = self.finish(counter.user(), &intent).await {
            tracing::debug!(user = counter.user(), %error, "the counters are written later");
        }
        Ok(Some(after(&intent)))
    }

    /// Writes the counters of a change that was decided. A conflict means that somebody else has:
    /// nobody decides upon the next change before.
    async fn finish(&self, user: &str, intent: &Intent) -> Result<()> {
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
            self.records.put(&key, &bytes(&count)?, expect).await?;
        }
        Ok(())
    }

    /// The journal first: what it has is in the counters then, or pending, or newer than it.
    async fn look(&self, counter: &Counter) -> Result<Look> {
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
                .map(|entry| parsed(key, &entry))
                .transpose()
        };
        Ok(Look {
            intent: intent.map(|entry| parsed(&journal, &entry)).transpose()?,
            conversation: count(&keys[0])?,
            total: count(&keys[1])?,
        })
    }
}

/// The change, upon what was read.
fn decide(
    counter: &Counter,
    change: Change,
    token: Option<FencingToken>,
    id: Uuid,
    look: &Look,
) -> Result<Intent> {
    let seen = look.intent.as_ref().and_then(|(_, intent)| intent.token);
    if let (Some(seen), Some(token)) = (seen, token)
        && token < seen
    {
        let says = format!("a later holder, {seen}, has changed the counters of {counter}");
        return Err(Error::new(ErrorKind::Lost, says));
    }
    let after = change.of(counter, look.conversation(counter), look.total())?;
    let version = |count: &Option<(Version, Count)>| count.map(|(version, _)| version.get());
    Ok(Intent {
        v: FORMAT,
        number: look.number() + 1,
        id,
        token: token.max(seen),
        conversation: counter.conversation().to_owned(),
        unread: after.conversation,
        total: after.total,
        unread_was: version(&look.conversation),
        total_was: version(&look.total),
    })
}

const fn after(intent: &Intent) -> Unread {
    Unread {
        conversation: intent.unread,
        total: intent.total,
    }
}

/// A record, and its version.
fn parsed<T: DeserializeOwned>(key: &RecordKey, entry: &Entry) -> Result<(Version, T)> {
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

fn bytes(record: &impl Serialize) -> Result<Vec<u8>> {
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
