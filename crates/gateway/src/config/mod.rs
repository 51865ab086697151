//! The `[gateway]` table.

mod check;
mod hooks;
mod keys;
mod login;
mod secret;
mod service;
mod table;
mod tls;

pub(crate) use check::{LEAST_TOKEN_BYTES, MAX_MAY_SEND, config_error};
pub use hooks::{HookConfig, HookEvent};
pub(crate) use login::{ExpectedClaims, LoginKeySettings, LoginKeySource, OWN_CLAIMS};
pub use secret::Secret;
pub(crate) use secret::constant_time_eq;
pub(crate) use service::ServiceSettings;
pub use table::GatewayConfig;
pub use tls::{ClientAddress, PeerAuth};
