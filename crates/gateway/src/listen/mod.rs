//! What every listener of a node shares: its connections, their number, TLS, and how they state.

mod connection;
mod handle;
mod http;
mod listener;
mod proxy;
mod quota;
mod tls;
mod transport;

pub(crate) use connection::Connection;
pub(crate) use handle::ConnectionHandle;
pub(crate) use http::serve_http;
pub(crate) use listener::ConnectionListener;
#[cfg(feature = "fuzzing")]
pub(crate) use proxy::source as proxied_source;
pub(crate) use quota::{ConnectionBounds, ConnectionQuota};
pub(crate) use tls::{ListenerKind, Tls};
