//! One folder for each database, behind one private trait.

mod answers;
mod contract;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::contract::REAPED_ROWS;
pub(crate) use self::{
    answers::{Effect, carried_out, lock_of_refusal, refused},
    contract::{CommonContext, Configured, Dialect, Reaped, ReapedPage, above_prefix},
};
