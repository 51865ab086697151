//! A session: many operations over one stream.
//!
//! Invariant: a session ends only after all of its operations have ended, those of its waiters
//! among them. No frame is read after a newer connection of the same client has come.

mod clients;
mod held_names;
mod outgoing;
mod places;
mod stream;
mod waiter;

pub(crate) use clients::Clients;
pub(crate) use outgoing::Outgoing;
pub(crate) use places::{WaiterPlace, WaiterPlaces};
pub(crate) use stream::{SessionContext, start};
