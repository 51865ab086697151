//! Unread counters: how many messages of a conversation a user has not read, and of all of them.
//!
//! # What they promise
//!
//! - A user's total is the sum of the user's conversations whenever no change is under way,
//!   whatever crashed, failed or raced before: a change of the two counters is seen as a whole or
//!   not at all.
//! - [`increment`](UnreadCounters::increment) and [`clear`](UnreadCounters::clear) of one user come
//!   one after the other, as if each had been alone.
//! - A change is begun anew at most [`TRIES`] times when others are in between, and each time is
//!   counted.
//!
//! Cures for the two failures of counters that are written one by one (the second write fails;
//! an increment comes between the read and the write of a clear), equal in result:
//!
//! | | cure | store |
//! |---|---|---|
//! | [`LockedCounters`] | the user's lock around a journalled change | every store |
//! | [`OptimisticCounters`] | the same change without a lock: compare and swap | every store |
#![cfg_attr(
    feature = "redis",
    doc = "| [`RedisCounters::watching`] | `WATCH`, `MULTI`, `EXEC` | one Redis server |"
)]
#![cfg_attr(
    feature = "redis",
    doc = "| [`RedisCounters::scripted`] | a script | one Redis server |"
)]
#![cfg_attr(
    feature = "sql",
    doc = "| [`SqlCounters`] | a transaction | SQLite, MySQL, MariaDB, Postgres |"
)]
//!
//! # What breaks them
//!
//! - A store that forgets what it had acknowledged forgets changes. Where it can forget one of two
//!   records and keep the other (eviction, a failover in the middle), the journal finds that out
//!   only if it is the journal that was kept.
//! - Somebody who writes the counters by another way.
//! - [`ErrorKind::OutcomeUnknown`] means that the change is made or not; whoever repeats it may
//!   count a message twice.

mod journal;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sql")]
mod sql;
mod stores;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{Clock, Error, ErrorKind, Result};

#[cfg(feature = "redis")]
pub use self::redis::RedisCounters;
#[cfg(feature = "sql")]
pub use self::sql::SqlCounters;
pub use self::stores::{LockedCounters, OptimisticCounters};

/// How often a change is tried at most, when others are in between each time.
pub const TRIES: u32 = 64;

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
enum Change {
    Add(u64),
    Clear,
}

impl Change {
    /// Counts this many more.
    fn add(by: i64) -> Result<Self> {
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
    fn of(self, counter: &Counter, before: Option<u64>, total: u64) -> Result<Unread> {
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

fn unknown(counter: &Counter) -> Error {
    let says = format!("there is no counter for {counter}: nobody has incremented it");
    Error::new(ErrorKind::InvalidArgument, says)
}

fn too_many(counter: &Counter, total: u64, by: u64) -> Error {
    let user = counter.user();
    let says = format!("the total of {user:?} is {total}, and {by} more are above {MOST}");
    Error::new(ErrorKind::LimitExceeded, says)
}

/// Others were in between each time.
fn restless(counter: &Counter) -> Error {
    let says = format!("others changed the counters of {counter} each of {TRIES} times");
    Error::new(ErrorKind::Unavailable, says)
}

/// How often changes were begun anew, and the pauses before.
#[derive(Clone, Debug)]
struct Tries {
    mode: &'static str,
    clock: Arc<dyn Clock>,
    anew: Arc<AtomicU64>,
}

impl Tries {
    fn new(mode: &'static str, clock: Arc<dyn Clock>) -> Self {
        Self {
            mode,
            clock,
            anew: Arc::default(),
        }
    }

    /// After so many tries: counts a further one, and waits before it. Not before the second, which
    /// often has nobody to give way to; then longer each time, and never as long as somebody else.
    async fn again(&self, tries: u32) {
        metrics::counter!("distlock_unread_retries_total", "mode" => self.mode).increment(1);
        self.anew.fetch_add(1, Ordering::Relaxed);
        if tries > 1 {
            let most = 250 << tries.min(7);
            let pause = Duration::from_micros(fastrand::u64(0..most));
            self.clock.sleep(pause).await;
        }
    }

    fn count(&self) -> u64 {
        self.anew.load(Ordering::Relaxed)
    }
}
