//! The types that callers hold.

pub(crate) mod builder;
pub(crate) mod guard;
pub(crate) mod guard_set;
pub(crate) mod locker;
pub(crate) mod scope;
pub(crate) mod store;
pub(crate) mod watch;
