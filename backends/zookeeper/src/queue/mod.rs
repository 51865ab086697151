//! The queue of one lock: the requests that enter it, look at it and leave it.

mod container_watch;
pub(crate) mod delete;
pub(crate) mod enter;
pub(crate) mod grant;
pub(crate) mod holder;
pub(crate) mod inspect;
pub(crate) mod lease_watch;
pub(crate) mod list;
pub(crate) mod undo;
