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

    /// What is kept for an account, oldest first.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    async fn kept(&self, uid: &Uid) -> Result<Vec<Message>>;

    /// Forgets these messages and answers how many of them were kept.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Dropping it leaves the outcome unknown; repeating it is safe.
    async fn forget(&self, uid: &Uid, messages: &[Message]) -> Result<usize>;
}

/// The bundled store: the last messages of each account in one record.
#[derive(Clone, Debug)]
pub struct RecordsInbox {
    records: Arc<dyn Records>,
}

#[derive(Default, Deserialize, Serialize)]
struct Inbox {
    messages: Vec<Message>,
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
            let mut bytes = 0;
            let fit = inbox
                .messages
                .iter()
                .rev()
                .take(MAX_MESSAGES)
                .take_while(|message| {
                    bytes += message.body.len() + message.id.len();
                    bytes <= MAX_BYTES
                })
                .count()
                .max(1);
            inbox.messages.drain(..inbox.messages.len() - fit);
            Some(())
        })
        .await
    }

    async fn kept(&self, uid: &Uid) -> Result<Vec<Message>> {
        Ok(self.read(uid).await?.2.messages)
    }

    async fn forget(&self, uid: &Uid, messages: &[Message]) -> Result<usize> {
        self.update(uid, |inbox| {
            let before = inbox.messages.len();
            let mut left = messages.to_vec();
            inbox.messages.retain(|kept| {
                let found = left.iter().position(|message| message == kept);
                if let Some(found) = found {
                    left.swap_remove(found);
                }
                found.is_none()
            });
            let forgotten = before - inbox.messages.len();
            (forgotten > 0).then_some(forgotten)
        })
        .await
    }
}
