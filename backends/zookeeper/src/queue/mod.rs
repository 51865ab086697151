//! The queue of one lock at the ensemble: the requests that enter the queue, read it, grant the
//! lock to its first contender, and leave it.

pub(crate) mod delete;
pub(crate) mod enter;
pub(crate) mod grant;
pub(crate) mod inspect;
pub(crate) mod lease_watch;
pub(crate) mod list;
pub(crate) mod undo;
