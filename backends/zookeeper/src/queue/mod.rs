//! The queue of one lock at the ensemble: the requests that enter it, read it, grant from it and
//! leave it.

mod container_watch;
pub(crate) mod delete;
pub(crate) mod enter;
pub(crate) mod grant;
pub(crate) mod holder;
pub(crate) mod inspect;
pub(crate) mod lease_watch;
pub(crate) mod list;
pub(crate) mod undo;
