//! Operations on single keys, and how several of them become one request.

mod answer;
pub(crate) mod executor;
mod history;
mod operation;
mod release_cache;
mod replies;
mod request;
mod waiter_checks;

pub(crate) use self::{
    answer::Answer,
    history::Histories,
    operation::{Action, Operation},
    release_cache::ReleaseCache,
    waiter_checks::WaiterChecks,
};
