//! The admin HTTP: health, metrics, looking at accounts and nodes, ending sessions, bans, draining, and a log of all that.

mod audit;
mod audit_log;
mod guard;
mod http;
mod nodes;
mod pass;
mod send;
mod server;
mod sessions;
mod state;

pub(crate) use audit_log::Audit;
pub(crate) use guard::Guard;
pub(crate) use http::{from, let_in};
pub(crate) use server::serve_admin;
pub(crate) use state::Admin;
