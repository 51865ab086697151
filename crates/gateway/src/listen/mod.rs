//! Listeners, as all parts of a node share them: connections, their quota, TLS, and the way a
//! connection ends.

mod body_time;
mod certificate_dates;
mod connection;
mod handle;
mod http;
mod listener;
mod proxy;
mod quota;
mod tls;
mod transport;

pub(crate) use body_time::{BodyTime, is_late_body};
pub(crate) use certificate_dates::EXPIRY;
pub(crate) use connection::Connection;
pub(crate) use handle::ConnectionHandle;
pub(crate) use http::serve_http;
pub(crate) use listener::ConnectionListener;
pub(crate) use proxy::PROXY_BEGINNINGS;
#[cfg(feature = "fuzzing")]
pub(crate) use proxy::read_source;
pub(crate) use quota::{ConnectionBounds, ConnectionQuota};
pub(crate) use tls::{ListenerKind, Tls};
