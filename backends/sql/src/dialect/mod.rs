//! What differs between databases, behind one private trait.

mod contract;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

pub(crate) use self::contract::{
    Dialect, FORCED, LockRow, Place, Reaped, ReapedPage, above_prefix, why_lost,
};
