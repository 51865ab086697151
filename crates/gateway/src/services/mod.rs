//! The web services of the operator that a node calls.

mod operator;
mod web_document;
mod web_service;

pub use operator::{MaySend, Permission};
pub(crate) use operator::{WebMaySend, WebProfiles, WebSaver};
pub(crate) use web_document::WebDocument;
pub(crate) use web_service::{WebClient, WebService, client_over};
pub use web_service::{connector, root_cause};
