//! The web services of the operator that a node calls.

mod may_send;
mod profiles;
mod saver;
mod web_service;

pub(crate) use may_send::{MAX_MAY_SEND, WebMaySend};
pub use may_send::{MaySend, Permission};
pub(crate) use profiles::WebProfiles;
pub(crate) use saver::WebSaver;
pub(crate) use web_service::WebService;
pub use web_service::{connector, root_cause};
