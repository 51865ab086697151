//! What every listener of a node shares: its connections, their number, TLS, and how they end.

mod http;
mod line;
mod places;
mod proxy;
mod tls;

pub(crate) use http::serve_http;
pub(crate) use line::{Line, LineHandle, LineListener};
pub(crate) use places::{Bounds, Places};
#[cfg(feature = "fuzzing")]
pub(crate) use proxy::source as proxied_source;
pub(crate) use tls::{Side, Tls};
