//! The admin HTTP: health, metrics, accounts and nodes, kicks, bans, draining, and a log of all
//! orders.

mod access;
mod audit;
mod audit_log;
mod context;
mod http;
mod nodes;
mod pass;
mod send;
mod server;
mod sessions;

pub(crate) use access::AdminAccess;
pub(crate) use audit_log::AuditLog;
pub(crate) use context::AdminContext;
pub(crate) use http::{JsonBody, client_ip, http_error, mark_logged_in};
pub(crate) use server::serve_admin;
