//! The `[gateway]` table.

mod check;
mod error;
mod keys;
mod listen_options;
mod secret;
mod service;
mod table;
mod tls;

pub(crate) use error::config_error;
pub(crate) use listen_options::TlsFiles;
pub use listen_options::{ClientAddress, PeerAuth};
pub use secret::Secret;
pub(crate) use secret::constant_time_eq;
pub(crate) use service::ServiceSettings;
pub use table::GatewayConfig;
