//! One folder for each database, behind one private trait.

mod answers;
mod contract;
mod lock_row;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod prefix;
mod queue_entry;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::contract::REAPED_ROWS;
pub(crate) use self::{
    answers::{Effect, carried_out, lock_of_refusal, refused},
    contract::{CommonContext, Dialect, Reaped, ReapedPage},
    lock_row::{FORCED, LockRow},
    prefix::above_prefix,
    queue_entry::{QueueEntry, renewed_entry, shown_queue},
};
