//! Operations on single keys, and how several of them become one request.

mod history;
mod looks;
pub(crate) mod op;
pub(crate) mod request;
mod verbatim;

pub(crate) use self::{history::Histories, looks::Looks, verbatim::Verbatim};
