//! Operations on single keys, and how several of them become one request.

mod answer;
pub(crate) mod executor;
mod history;
mod looks;
mod op;
mod replies;
mod request;
mod verbatim;

pub(crate) use self::{
    answer::Answer,
    history::Histories,
    looks::Looks,
    op::{Op, What},
    verbatim::Verbatim,
};
