//! Locks that several holders share: readers and writers, and permits.
//!
//! Each holder has an exclusive lock of its own, its slot, which is renewed like every lock. One
//! record lists the holders with the tokens of their slots. Whoever enters writes the record with
//! its own entry, on condition of the version that it has read, so the entries are compatible at
//! all times. The version that it wrote is the fencing token: one rising sequence for all modes.
//!
//! # What it promises
//!
//! - A writer and another holder are never both valid, and all valid permits together are no more
//!   than the capacity. A guard is valid while the lease of its slot is, and for one lease after
//!   the last read that showed its entry.
//! - First come, first served, between processes as well, where the store keeps a queue: endless
//!   readers do not starve a writer, nor small requests a large one. Somebody who comes later
//!   passes the first in the line for at most 250 ms.
//! - Whatever a dead holder leaves behind is removed once it blocks somebody: whoever got its slot
//!   knows that it is gone.
//!
//! # What breaks it
//!
//! - A store that forgets acknowledged writes of the record. The guards whose entries are gone are
//!   lost within one lease.
//! - What breaks every lock: a holder that works on after its lease. Show the token to the
//!   resource.
//!
//! # What it does not have
//!
//! - An upgrade from reader to writer. Two readers that upgrade wait for each other for ever,
//!   unless one of them loses its place. Release, take the lock as a writer, and compare the token.
//! - Tickets. Two locks stand behind one guard, and a ticket that renews one of them is no proof of
//!   the other.

mod blockers;
mod enter;
mod guard;
mod holder;
mod hub;
mod inspect;
mod line;
mod locks;
mod meters;
mod plan;
mod record;
mod seat;
mod slot;
mod task;

pub use guard::{SharedGuard, SharedMode, SharedWatch};
pub use inspect::{HolderState, SharedHolder, SharedInfo, SharedKind, inspect, list};
pub use locks::{RwLock, Semaphore, SharedBuilder};

/// The kinds of shared locks. Each has its own records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ReadWrite,
    Semaphore,
}

impl Kind {
    /// The kind of the lock that has this number of permits.
    const fn of(capacity: Option<u32>) -> Self {
        match capacity {
            None => Self::ReadWrite,
            Some(_) => Self::Semaphore,
        }
    }

    /// The beginning of the keys of the records that list holders.
    const fn records(self) -> &'static str {
        match self {
            Self::ReadWrite => "shared/rw/",
            Self::Semaphore => "shared/sem/",
        }
    }

    /// The beginning of the keys of the words that somebody waits.
    const fn words(self) -> &'static str {
        match self {
            Self::ReadWrite => "shared/waiting/rw/",
            Self::Semaphore => "shared/waiting/sem/",
        }
    }
}
