//! Listeners, as all parts of a node share them: connections, their quota, TLS, and the way a
//! connection ends.

mod connection;
mod http;
mod listener;
mod proxy;
mod quota;
mod tls;

pub(crate) use connection::{Connection, ConnectionHandle};
pub(crate) use http::{BodyTime, is_late_body, serve_http};
pub(crate) use listener::ConnectionListener;
pub(crate) use proxy::PROXY_BEGINNINGS;
#[cfg(feature = "fuzzing")]
pub(crate) use proxy::read_source;
pub(crate) use quota::{ConnectionBounds, ConnectionQuota};
pub(crate) use tls::{EXPIRY, ListenerKind, Tls};
