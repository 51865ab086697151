//! A counter of one user, the trait of all stores of counters, and the arithmetic of a change.
//!
//! Invariant: a total never exceeds [`MOST`], and a change that would exceed it is refused as a
//! whole.

use std::fmt;

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind, Result};

/// The largest total. A Redis script counts exactly up to this number, because numbers in Lua are
/// doubles.
pub const MOST: u64 = (1 << 53) - 1;

/// The longest name of a user or a conversation, in bytes.
const LONGEST_NAME: usize = 128;

/// One user's counter for one conversation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Counter {
    user: String,
    conversation: String,
}

impl Counter {
    /// A counter with checked names.
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

    /// The user.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The conversation.
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

/// The unread messages of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// The unread messages of the requested conversation.
    pub conversation: u64,
    /// The unread messages of all conversations of the user.
    pub total: u64,
}

/// A store of counters. A user's total is always the sum of the user's conversations.
#[async_trait]
pub trait UnreadCounters: fmt::Debug + Send + Sync {
    /// Adds `by` unread messages, and returns the counters after the change. The first increment
    /// creates the counter.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an amount below 1. [`ErrorKind::LimitExceeded`] when the
    /// total would be above [`MOST`]. [`ErrorKind::Corrupt`] when the stored value is not a
    /// counter. [`ErrorKind::Unavailable`] after [`TRIES`](super::TRIES) attempts. Failures of the
    /// store. With a lock also [`ErrorKind::Timeout`] after 30 s, and [`ErrorKind::Lost`]. After
    /// [`ErrorKind::OutcomeUnknown`] the change may have been made; after any other error the
    /// change was not made.
    ///
    /// # Cancel safety
    /// A dropped future makes the change as a whole, or not at all.
    async fn increment(&self, counter: &Counter, by: i64) -> Result<Unread>;

    /// Marks a conversation as read: its counter becomes zero, and the total falls by as much.
    /// Returns the counters after the change.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a counter without any increment; otherwise as
    /// [`increment`](Self::increment).
    ///
    /// # Cancel safety
    /// As [`increment`](Self::increment).
    async fn clear(&self, counter: &Counter) -> Result<Unread>;

    /// Reads the counters.
    ///
    /// # Errors
    /// As [`clear`](Self::clear).
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    async fn read(&self, counter: &Counter) -> Result<Unread>;

    /// The number of attempts that this handle and its clones repeated, mostly because another
    /// client wrote in between. Repeated reads and repeated changes both count.
    fn retries(&self) -> u64;
}

/// A change of one conversation's counter and of the user's total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Add(u64),
    Clear,
}

impl Change {
    /// A change that adds this many messages.
    pub(super) fn add(by: i64) -> Result<Self> {
        match u64::try_from(by) {
            Ok(by) if by > 0 => Ok(Self::Add(by)),
            _ => {
                let says = format!("the amount is {by}: at least 1 is needed");
                Err(Error::new(ErrorKind::InvalidArgument, says))
            }
        }
    }

    /// Computes the counters after this change. `before` and `total` are the conversation's counter
    /// and the user's total before the change. `None`: the counter does not exist yet.
    pub(super) fn apply_to(
        self,
        counter: &Counter,
        before: Option<u64>,
        total: u64,
    ) -> Result<Unread> {
        match (self, before) {
            (Self::Add(by), before) => match total.checked_add(by) {
                Some(total) if total <= MOST => Ok(Unread {
                    conversation: before.unwrap_or_default() + by,
                    total,
                }),
                _ => Err(too_many_error(counter, total, by)),
            },
            (Self::Clear, Some(before)) => Ok(Unread {
                conversation: 0,
                total: total.saturating_sub(before),
            }),
            (Self::Clear, None) => Err(unknown_counter_error(counter)),
        }
    }
}

/// The error of a read or a clear of a counter that does not exist.
pub(super) fn unknown_counter_error(counter: &Counter) -> Error {
    let says = format!("there is no counter for {counter}: nobody has incremented it");
    Error::new(ErrorKind::InvalidArgument, says)
}

/// The error of an increment by which the total would exceed [`MOST`].
pub(super) fn too_many_error(counter: &Counter, total: u64, by: u64) -> Error {
    let user = counter.user();
    let says = format!("the total of {user:?} is {total}, and {by} more are above {MOST}");
    Error::new(ErrorKind::LimitExceeded, says)
}
