//! The admin HTTP: health, metrics, accounts and nodes, lists of sessions and bans, presence,
//! kicks, bans, messages, draining, and a log of all orders.

mod access;
mod audit;
mod events;
mod http;
mod lists;
mod orders;
mod presence;
mod send;
mod server;
mod tokens;
mod turn;

pub(crate) use access::AdminAccess;
pub(crate) use audit::AuditLog;
pub(crate) use http::{JsonBody, client_ip, http_error, mark_logged_in};
pub(crate) use server::{AdminContext, serve_admin};
pub(crate) use tokens::{AdminTokens, Administrator, Right};
