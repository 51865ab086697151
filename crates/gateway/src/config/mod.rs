//! The `[gateway]` table.

mod check;
mod error;
mod keys;
mod listen;
mod secret;
mod service;
mod table;
mod tls;

pub(crate) use error::invalid;
pub(crate) use listen::TlsFiles;
pub use listen::{ClientAddress, PeerAuth};
pub use secret::Secret;
pub(crate) use secret::same;
pub(crate) use service::ServiceSettings;
pub use table::GatewayConfig;
