//! Listeners, as all parts of a program share them: connections, their quota, TLS, and the way a
//! connection ends. This module knows no key of a configuration.

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
pub(crate) use tls::{EXPIRY, IdentityFiles, ListenerKind, NamedFile, PeerFiles, Tls, TlsFiles};
