//! The web services of the operator that a node calls.

mod operator;
mod web_service;

pub(crate) use operator::{MAX_MAY_SEND, WebMaySend, WebProfiles, WebSaver};
pub use operator::{MaySend, Permission};
pub(crate) use web_service::WebService;
pub use web_service::{connector, root_cause};
