//! Messages for accounts that are not logged in.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind, Expect, RecordKey, Records, Result, Version, Written};
use distlock_kickout::{Message, Uid};
use serde::{Deserialize, Serialize};

/// Messages kept per account; the oldest goes when a further one comes.
const MAX_MESSAGES: usize = 100;
/// Their bodies together, so that an account's record stays well under the store's limit.
const MAX_BYTES: usize = 128 * 1024;
/// The same as it is stored: a text of quotes and backslashes takes twice its room, and one account's messages must not make
/// another's record too large for the store.
const MAX_STORED: usize = 192 * 1024;
const ROUNDS: u32 = 16;

/// Keeps messages until their account logs in.
#[async_trait]
pub trait OfflineStore: fmt::Debug + Send + Sync + 'static {
    /// Keeps a message.
    ///
    /// # Errors
    /// Failures of the store; after [`ErrorKind::OutcomeUnknown`] the message may have been kept.
    ///
    /// # Cancel safety
    /// Dropping it leaves the outcome unknown.
    async fn keep(&self, uid: &Uid, message: &Message) -> Result<()>;

    /// What is kept for an account, oldest first, for a session that hands it out now. From here on, [`withdraw`](Self::withdraw)
    /// takes none of it back; a later session gets what was not forgotten.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe: what was claimed waits for the next session.
    async fn claim(&self, uid: &Uid) -> Result<Vec<Message>>;

    /// Forgets messages that were handed out.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Dropping it leaves the outcome unknown; repeating it is safe.
    async fn forget(&self, uid: &Uid, messages: &[Message]) -> Result<()>;

    /// Takes back a message that no session has claimed, and answers whether there was one: then nobody else hands it out.
    ///
    /// # Errors
    /// Failures of the store; after [`ErrorKind::OutcomeUnknown`] it may have been taken back.
    ///
    /// # Cancel safety
    /// Dropping it leaves the outcome unknown.
    async fn withdraw(&self, uid: &Uid, message: &Message) -> Result<bool>;
}

/// The bundled store: the last messages of each account in one record.
#[derive(Clone, Debug)]
pub struct RecordsInbox {
    records: Arc<dyn Records>,
}

#[derive(Default, Deserialize, Serialize)]
struct Inbox {
    messages: Vec<Message>,
    /// How many of them, from the oldest on, a session hands out or was about to.
    #[serde(default, skip_serializing_if = "is_zero")]
    claimed: usize,
}

const fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Inbox {
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

    /// Changes the inbox on top of what was read. `change` answers `None` when there is nothing to do; it is asked again when
    /// the reply of a write was lost, and sees then whether it was done.
    async fn update<T: Default>(
        &self,
        uid: &Uid,
        mut change: impl FnMut(&mut Inbox) -> Option<T> + Send,
    ) -> Result<T> {
        let mut done = T::default();
        for _ in 0..ROUNDS {
            let (key, version, mut inbox) = self.read(uid).await?;
            let Some(changed) = change(&mut inbox) else {
                return Ok(done);
            };
            done = changed;
            let value = serde_json::to_vec(&inbox).map_err(|error| {
                Error::new(ErrorKind::Internal, "inbox cannot be written").caused_by(error)
            })?;
            let expect = version.map_or(Expect::Absent, Expect::Version);
            match self.records.put(&key, &value, expect).await {
                Ok(Written::Stored(_)) => return Ok(done),
                Ok(Written::Conflict) => done = T::default(),
                // Looked up in the next round.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("inbox of account {uid:?} changed {ROUNDS} times in between"),
        ))
    }
}

#[async_trait]
impl OfflineStore for RecordsInbox {
    async fn keep(&self, uid: &Uid, message: &Message) -> Result<()> {
        let mut written = false;
        self.update(uid, |inbox| {
            if std::mem::replace(&mut written, true) && inbox.messages.last() == Some(message) {
                return None;
            }
            inbox.messages.push(message.clone());
            let (mut bytes, mut stored) = (0, 0);
            let fit = inbox
                .messages
                .iter()
                .rev()
                .take(MAX_MESSAGES)
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
            Some(())
        })
        .await
    }

    async fn claim(&self, uid: &Uid) -> Result<Vec<Message>> {
        let mut all = Vec::new();
        self.update(uid, |inbox| {
            all.clone_from(&inbox.messages);
            let unclaimed = inbox.claimed < inbox.messages.len();
            inbox.claimed = inbox.messages.len();
            unclaimed.then_some(())
        })
        .await?;
        Ok(all)
    }

    async fn forget(&self, uid: &Uid, messages: &[Message]) -> Result<()> {
        self.update(uid, |inbox| {
            let before = inbox.messages.len();
            for message in messages {
                if let Some(at) = inbox.messages.iter().position(|kept| kept == message) {
                    inbox.remove(at);
                }
            }
            (inbox.messages.len() < before).then_some(())
        })
        .await
    }

    async fn withdraw(&self, uid: &Uid, message: &Message) -> Result<bool> {
        self.update(uid, |inbox| {
            let at = inbox.messages.iter().rposition(|kept| kept == message);
            inbox.remove(at.filter(|at| *at >= inbox.claimed)?);
            Some(true)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use distlock_memory::Memory;

    use super::*;

    fn message(id: &str) -> Message {
        Message {
            from: Uid::new("otto").unwrap(),
            id: id.into(),
            body: "hello".into(),
        }
    }

    #[tokio::test]
    async fn a_message_is_either_handed_out_or_taken_back() {
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
        // A claim is about messages that were there, not about equal ones that come later.
        inbox.keep(&anna, &one).await.unwrap();
        assert!(inbox.withdraw(&anna, &one).await.unwrap());
    }

    #[tokio::test]
    async fn messages_that_take_more_room_stored_do_not_fill_the_record() {
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
