//! What every listener of a node shares: its connections, their number, TLS, and how they end.

mod connection;
mod handle;
mod http;
mod listener;
mod places;
mod proxy;
mod tls;
mod transport;

pub(crate) use connection::Line;
pub(crate) use handle::LineHandle;
pub(crate) use http::serve_http;
pub(crate) use listener::LineListener;
pub(crate) use places::{Bounds, Places};
#[cfg(feature = "fuzzing")]
pub(crate) use proxy::source as proxied_source;
pub(crate) use tls::{Side, Tls};
