//! One session with the ensemble: its connection, its state, and the proof that it is alive.

pub(crate) mod connection;
mod context;
pub(crate) mod dial;
pub(crate) mod io_thread;
pub(crate) mod keep_alive;
pub(crate) mod liveness;
pub(crate) mod login;
mod state;
pub(crate) mod tree;

pub(crate) use context::{EndedLeases, StoreContext};
pub(crate) use login::Login;
pub(crate) use state::{RequestStart, Session};
