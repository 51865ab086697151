//! One counter of a user, and the changes of it.

use std::fmt;

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind, Result};

/// The most that a total may come to: up to here scripts of Redis count exactly, too.
pub const MOST: u64 = (1 << 53) - 1;

/// Longest name of a user or a conversation, in bytes.
const LONGEST_NAME: usize = 128;

/// One user's counter for one conversation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Counter {
    user: String,
    conversation: String,
}

impl Counter {
    /// Checks the names.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a name that is not 1 to 128 bytes of UTF-8, or has a control
    /// character, `/`, `{` or `}` in it.
    pub fn new(user: impl Into<String>, conversation: impl Into<String>) -> Result<Self> {
        let counter = Self {
            user: user.into(),
            conversation: conversation.into(),
        };
        for (what, name) in [
            ("user", &counter.user),
            ("conversation", &counter.conversation),
        ] {
            let refused = |letter: char| letter.is_control() || "/{}".contains(letter);
            if !(1..=LONGEST_NAME).contains(&name.len()) || name.contains(refused) {
                let says = format!(
                    "the {what} {name:?} has {} bytes: 1 to {LONGEST_NAME} are allowed, without \
                     control characters, /, {{ and }}",
                    name.len()
                );
                return Err(Error::new(ErrorKind::InvalidName, says));
            }
        }
        Ok(counter)
    }

    /// Whose it is.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// What it counts.
    #[must_use]
    pub fn conversation(&self) -> &str {
        &self.conversation
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.conversation, self.user)
    }
}

/// What a user has not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// In the conversation that was asked for.
    pub conversation: u64,
    /// In all of the user's conversations.
    pub total: u64,
}

/// Counters whose totals are right.
#[async_trait]
pub trait UnreadCounters: fmt::Debug + Send + Sync {
    /// Counts so many messages more, and answers what is unread then. The first time makes the
    /// counter.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an amount below 1; [`ErrorKind::LimitExceeded`] when the
    /// total would be above [`MOST`]; [`ErrorKind::Corrupt`] when something else stands where a
    /// counter should be; [`ErrorKind::Unavailable`] after [`TRIES`] tries; failures of the store.
    /// With a lock also [`ErrorKind::Timeout`] after 30 s, and [`ErrorKind::Lost`]. After
    /// [`ErrorKind::OutcomeUnknown`] the change may have been made; after any other it was not.
    ///
    /// # Cancel safety
    /// When it is dropped the change is made or not, as a whole.
    async fn increment(&self, counter: &Counter, by: i64) -> Result<Unread>;

    /// Marks a conversation as read: none of its messages counts any more, and the total is so much
    /// lower. Answers what is unread then.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a counter that nobody has incremented; otherwise as
    /// [`increment`](Self::increment).
    ///
    /// # Cancel safety
    /// As [`increment`](Self::increment).
    async fn clear(&self, counter: &Counter) -> Result<Unread>;

    /// What is unread.
    ///
    /// # Errors
    /// As [`clear`](Self::clear).
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    async fn read(&self, counter: &Counter) -> Result<Unread>;

    /// How often changes of this handle were begun anew, because somebody was in between.
    fn retries(&self) -> u64;
}

/// What a change does to the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Add(u64),
    Clear,
}

impl Change {
    /// Counts this many more.
    pub(super) fn add(by: i64) -> Result<Self> {
        match u64::try_from(by) {
            Ok(by) if by > 0 => Ok(Self::Add(by)),
            _ => {
                let says = format!("the amount is {by}: at least 1 is needed");
                Err(Error::new(ErrorKind::InvalidArgument, says))
            }
        }
    }

    /// What the counters are after it, where the total is so high before; `None` = there is no such
    /// counter yet.
    pub(super) fn of(self, counter: &Counter, before: Option<u64>, total: u64) -> Result<Unread> {
        match (self, before) {
            (Self::Add(by), before) => match total.checked_add(by) {
                Some(total) if total <= MOST => Ok(Unread {
                    conversation: before.unwrap_or_default() + by,
                    total,
                }),
                _ => Err(too_many(counter, total, by)),
            },
            (Self::Clear, Some(before)) => Ok(Unread {
                conversation: 0,
                total: total.saturating_sub(before),
            }),
            (Self::Clear, None) => Err(unknown(counter)),
        }
    }
}

pub(super) fn unknown(counter: &Counter) -> Error {
    let says = format!("there is no counter for {counter}: nobody has incremented it");
    Error::new(ErrorKind::InvalidArgument, says)
}

pub(super) fn too_many(counter: &Counter, total: u64, by: u64) -> Error {
    let user = counter.user();
    let says = format!("the total of {user:?} is {total}, and {by} more are above {MOST}");
    Error::new(ErrorKind::LimitExceeded, says)
}
