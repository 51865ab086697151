//! Operations on locks and records, and the batches that carry them.
//!
//! Each operation has one key and one answer. This folder builds the requests, reads the replies,
//! and keeps data that a later answer is compared with. The folder never chooses a server.

mod answer;
pub(crate) mod executor;
mod history;
mod request;
mod waiter_checks;

pub(crate) use self::{history::Histories, request::KeyedOperation, waiter_checks::WaiterChecks};
