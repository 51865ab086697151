//! Messages for accounts that are not logged in.
//!
//! Invariant of this module: a message is either withdrawn, or delivered by a session. Only after a
//! lost answer of the store, a message may be both. This module must never grow the record of one
//! account beyond its limits.

use std::{collections::HashMap, fmt, sync::Arc};

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind, Expect, RecordKey, Records, Result, Version, Written};
use distlock_kickout::{Message, Uid};
use serde::{Deserialize, Serialize};

/// Messages stored per account. If one more comes, the oldest message of the sender with most
/// messages is dropped. So no sender can displace the messages of others.
const MAX_MESSAGES: usize = 100;
/// Longest sum of the bodies of an account's messages. The bound keeps the account's record well
/// under the store's limit.
const MAX_BYTES: usize = 128 * 1024;
/// Longest stored form of all messages of an account. A text of quotes and backslashes takes twice
/// its length there, and must not make the record too large for the store.
const MAX_STORED: usize = 192 * 1024;
const MAX_ATTEMPTS: u32 = 16;

/// Stores messages until their account logs in.
#[async_trait]
pub trait OfflineStore: fmt::Debug + Send + Sync + 'static {
    /// Stores a message.
    ///
    /// # Errors
    /// Failures of the store; after [`ErrorKind::OutcomeUnknown`] the message may have been stored.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown.
    async fn keep(&self, uid: &Uid, message: &Message) -> Result<()>;

    /// The messages stored for an account, oldest first, for a session that delivers them now.
    /// After this call, [`withdraw`](Self::withdraw) refuses these messages. A later session gets
    /// the messages that were not forgotten.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe: claimed messages wait for the next session.
    async fn claim(&self, uid: &Uid) -> Result<Vec<Message>>;

    /// Removes messages that were delivered.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown; repeating the call is safe.
    async fn forget(&self, uid: &Uid, messages: &[Message]) -> Result<()>;

    /// Removes a message that no session has claimed. Returns whether there was such a message; if
    /// so, only the caller still delivers it.
    ///
    /// # Errors
    /// Failures of the store; after [`ErrorKind::OutcomeUnknown`] the message may have been
    /// removed.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown.
    async fn withdraw(&self, uid: &Uid, message: &Message) -> Result<bool>;

    /// The number of messages that are stored for an account.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    async fn waiting(&self, uid: &Uid) -> Result<usize>;
}

/// The bundled store: the last messages of each account in one record.
#[derive(Clone, Debug)]
pub struct RecordsInbox {
    records: Arc<dyn Records>,
}

#[derive(Default, Deserialize, Serialize)]
struct Inbox {
    messages: Vec<Message>,
    /// The number of messages that a session has claimed, counted from the oldest message.
    #[serde(default, skip_serializing_if = "is_zero")]
    claimed: usize,
}

/// The change that an inbox needs.
enum Change<T> {
    /// The inbox must be written; the value is returned after that.
    Write(T),
    /// There is nothing to write.
    Nothing(T),
}

const fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Inbox {
    /// Drops the oldest message of the sender with most messages.
    fn drop_oldest_of_busiest_sender(&mut self) {
        let mut each: HashMap<&Uid, usize> = HashMap::new();
        for message in &self.messages {
            *each.entry(&message.from).or_default() += 1;
        }
        let most = each.values().copied().max();
        let oldest = |message: &Message| each.get(&message.from).copied() == most;
        if let Some(at) = self.messages.iter().position(oldest) {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: usize) {
        self.messages.remove(at);
        if at < self.claimed {
            self.claimed -= 1;
        }
    }
}

impl RecordsInbox {
    /// Keeps messages in `records`, under `inbox/`.
    #[must_use]
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self { records }
    }

    async fn read(&self, uid: &Uid) -> Result<(RecordKey, Option<Version>, Inbox)> {
        let key = RecordKey::new(format!("inbox/{uid}"))?;
        Ok(match self.records.get(&key).await? {
            None => (key, None, Inbox::default()),
            Some(entry) => {
                let inbox = serde_json::from_slice(&entry.value).map_err(|error| {
                    Error::new(
                        ErrorKind::Corrupt,
                        format!("inbox of account {uid:?} cannot be read: {error}"),
                    )
                })?;
                (key, Some(entry.version), inbox)
            }
        })
    }

    /// Changes the inbox by compare-and-swap. Each round reads the inbox and calls `change` again.
    /// The flag tells `change` whether the write of an earlier round may have happened, because its
    /// reply was lost.
    async fn update<T: Send>(
        &self,
        uid: &Uid,
        mut change: impl FnMut(&mut Inbox, bool) -> Change<T> + Send,
    ) -> Result<T> {
        let mut unknown = false;
        for _ in 0..MAX_ATTEMPTS {
            let (key, version, mut inbox) = self.read(uid).await?;
            let done = match change(&mut inbox, unknown) {
                Change::Write(done) => done,
                Change::Nothing(answer) => return Ok(answer),
            };
            let value = serde_json::to_vec(&inbox).map_err(|error| {
                Error::new(ErrorKind::Internal, "inbox cannot be written").caused_by(error)
            })?;
            let expect = version.map_or(Expect::Absent, Expect::Version);
            match self.records.put(&key, &value, expect).await {
                Ok(Written::Stored(_)) => return Ok(done),
                Ok(Written::Conflict) => {}
                // The next round reads the record, which shows whether the write happened.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown = true,
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("inbox of account {uid:?} changed {MAX_ATTEMPTS} times in between"),
        ))
    }
}

#[async_trait]
impl OfflineStore for RecordsInbox {
    async fn keep(&self, uid: &Uid, message: &Message) -> Result<()> {
        self.update(uid, |inbox, unknown| {
            // If the message is in the inbox, the lost write happened. Other messages may have been
            // stored after it.
            if unknown && inbox.messages.contains(message) {
                return Change::Nothing(());
            }
            inbox.messages.push(message.clone());
            while inbox.messages.len() > MAX_MESSAGES {
                inbox.drop_oldest_of_busiest_sender();
            }
            let (mut bytes, mut stored) = (0, 0);
            let fit = inbox
                .messages
                .iter()
                .rev()
                .take_while(|message| {
                    bytes += message.body.len() + message.id.len();
                    stored += serde_json::to_vec(message).map_or(MAX_STORED, |it| it.len());
                    bytes <= MAX_BYTES && stored <= MAX_STORED
                })
                .count()
                .max(1);
            let over = inbox.messages.len() - fit;
            inbox.messages.drain(..over);
            inbox.claimed = inbox.claimed.saturating_sub(over);
            Change::Write(())
        })
        .await
    }

    async fn claim(&self, uid: &Uid) -> Result<Vec<Message>> {
        self.update(uid, |inbox, _| {
            let all = inbox.messages.clone();
            if inbox.claimed == all.len() {
                return Change::Nothing(all);
            }
            inbox.claimed = all.len();
            Change::Write(all)
        })
        .await
    }

    async fn forget(&self, uid: &Uid, messages: &[Message]) -> Result<()> {
        self.update(uid, |inbox, _| {
            let before = inbox.messages.len();
            for message in messages {
                if let Some(at) = inbox.messages.iter().position(|kept| kept == message) {
                    inbox.remove(at);
                }
            }
            if inbox.messages.len() < before {
                Change::Write(())
            } else {
                Change::Nothing(())
            }
        })
        .await
    }

    async fn withdraw(&self, uid: &Uid, message: &Message) -> Result<bool> {
        self.update(uid, |inbox, unknown| {
            match inbox.messages.iter().rposition(|kept| kept == message) {
                Some(at) if at >= inbox.claimed => {
                    inbox.remove(at);
                    Change::Write(true)
                }
                Some(_) => Change::Nothing(false),
                // After a lost reply, either this call withdrew the message or a session has
                // delivered it. The message is reported as withdrawn, because a message that
                // arrives twice is better than a lost message.
                None => Change::Nothing(unknown),
            }
        })
        .await
    }
    async fn waiting(&self, uid: &Uid) -> Result<usize> {
        let (_, _, inbox) = self.read(uid).await?;
        Ok(inbox.messages.len())
    }
}

#[cfg(test)]
mod tests {
    use distlock_conformance::RecordsLayer;
    use distlock_core::sync::Mutex;
    use distlock_memory::Memory;

    use super::*;

    fn message(id: &str) -> Message {
        Message {
            id: id.into(),
            ..Message::new(Uid::new("otto").unwrap(), "hello")
        }
    }

    #[tokio::test]
    async fn a_message_is_either_delivered_or_withdrawn() {
        let inbox = RecordsInbox::new(Memory::default().records());
        let anna = Uid::new("anna").unwrap();
        let (one, two) = (message("one"), message("two"));
        assert!(inbox.claim(&anna).await.unwrap().is_empty());
        inbox.keep(&anna, &one).await.unwrap();
        assert_eq!(
            inbox.claim(&anna).await.unwrap(),
            std::slice::from_ref(&one)
        );
        inbox.keep(&anna, &two).await.unwrap();
        assert!(!inbox.withdraw(&anna, &one).await.unwrap(), "it is claimed");
        assert!(inbox.withdraw(&anna, &two).await.unwrap());
        assert!(!inbox.withdraw(&anna, &two).await.unwrap(), "it is gone");
        assert_eq!(
            inbox.claim(&anna).await.unwrap(),
            std::slice::from_ref(&one),
            "whoever claimed it may have gone away"
        );
        inbox
            .forget(&anna, std::slice::from_ref(&one))
            .await
            .unwrap();
        assert!(inbox.claim(&anna).await.unwrap().is_empty());
        // A claim covers only the messages that were stored at that time, not equal messages that
        // come later.
        inbox.keep(&anna, &one).await.unwrap();
        assert!(inbox.withdraw(&anna, &one).await.unwrap());
    }

    /// Records that lose the answer to the next write. [`Between`] says whether that write is done,
    /// and which other call happens before its caller learns of the loss.
    #[derive(Clone, Debug)]
    struct Lossy {
        records: Arc<dyn Records>,
        loses: Arc<Mutex<Option<Between>>>,
    }

    #[derive(Clone, Debug)]
    enum Between {
        /// The write is lost, and a session claims the stored messages.
        Claims,
        /// The write is done, and another message is stored.
        Keeps(Message),
    }

    #[async_trait]
    impl RecordsLayer for Lossy {
        fn below(&self) -> &Arc<dyn Records> {
            &self.records
        }

        async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
            let between = self.loses.lock().take();
            let anna = Uid::new("anna").unwrap();
            let others = RecordsInbox::new(Arc::clone(&self.records));
            match between {
                None => return self.records.put(key, value, expect).await,
                Some(Between::Claims) => drop(others.claim(&anna).await?),
                Some(Between::Keeps(message)) => {
                    self.records.put(key, value, expect).await?;
                    others.keep(&anna, &message).await?;
                }
            }
            Err(Error::new(ErrorKind::OutcomeUnknown, "no answer"))
        }
    }

    #[tokio::test]
    async fn after_a_lost_answer_the_inbox_reads_whether_the_write_happened() {
        let records = Lossy {
            records: Memory::default().records(),
            loses: Arc::default(),
        };
        let inbox = RecordsInbox::new(records.clone().into_records());
        let loses = |between| *records.loses.lock() = Some(between);
        let anna = Uid::new("anna").unwrap();
        let [one, two, three] = ["one", "two", "three"].map(message);
        inbox.keep(&anna, &one).await.unwrap();
        loses(Between::Claims);
        assert!(!inbox.withdraw(&anna, &one).await.unwrap(), "it is claimed");
        loses(Between::Keeps(three.clone()));
        inbox.keep(&anna, &two).await.unwrap();
        let all = [one, two.clone(), three];
        assert_eq!(inbox.claim(&anna).await.unwrap(), all, "none comes twice");
        inbox.forget(&anna, &all).await.unwrap();
        inbox.keep(&anna, &two).await.unwrap();
        loses(Between::Keeps(message("four")));
        assert!(inbox.withdraw(&anna, &two).await.unwrap(), "it was taken");
    }

    #[tokio::test]
    async fn a_sender_of_many_messages_displaces_only_its_own() {
        let inbox = RecordsInbox::new(Memory::default().records());
        let anna = Uid::new("anna").unwrap();
        let of = |from: &str, number: usize| Message {
            id: format!("{from}{number}"),
            ..Message::new(Uid::new(from).unwrap(), "hello")
        };
        let friends = [of("bob", 1), of("carl", 1), of("bob", 2)];
        inbox.keep(&anna, &friends[0]).await.unwrap();
        inbox.keep(&anna, &friends[1]).await.unwrap();
        for number in 0..MAX_MESSAGES * 2 {
            inbox.keep(&anna, &of("spammer", number)).await.unwrap();
        }
        inbox.keep(&anna, &friends[2]).await.unwrap();
        let kept = inbox.claim(&anna).await.unwrap();
        assert_eq!(kept.len(), MAX_MESSAGES);
        assert!(friends.iter().all(|message| kept.contains(message)));
        let last = of("spammer", MAX_MESSAGES * 2 - 1);
        assert!(kept.contains(&last), "its own oldest went");
    }

    #[tokio::test]
    async fn messages_that_are_longer_when_stored_keep_the_record_within_its_limit() {
        let inbox = RecordsInbox::new(Memory::default().records());
        let anna = Uid::new("anna").unwrap();
        for length in [40_000, 20_000, 5_000, 100] {
            for number in 0..12 {
                let mut message = message(&format!("{length}/{number}"));
                message.body = "\"".repeat(length);
                inbox.keep(&anna, &message).await.unwrap();
                let kept = inbox.claim(&anna).await.unwrap();
                assert_eq!(kept.last(), Some(&message));
            }
        }
        let plain = message("plain");
        inbox.keep(&anna, &plain).await.unwrap();
        assert_eq!(inbox.claim(&anna).await.unwrap().last(), Some(&plain));
    }
}
