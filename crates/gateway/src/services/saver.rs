//! The web service that saves an account's state after a session has ended.
//!
//! This module must never count a save as done when the answer is unknown.

use distlock_kickout::{Class, Device, Generation, NodeId, Session, SessionId, Uid};
use serde::Serialize;

use super::web_service::{Decision, WebService};

/// A web service that saves after each session of this node.
#[derive(Clone, Debug)]
pub(crate) struct WebSaver(WebService);

#[derive(Serialize)]
struct SaveRequest<'a> {
    uid: &'a Uid,
    device: &'a Device,
    class: &'a Class,
    session: SessionId,
    node: &'a NodeId,
    /// The service refuses a save with a lower generation than that of the last save.
    r#gen: Generation,
}

impl WebSaver {
    pub(crate) const fn new(service: WebService) -> Self {
        Self(service)
    }

    /// Asks the service to save. Tells the flow if the service has saved within its time.
    pub(crate) async fn save(&self, session: &Session) {
        let request = SaveRequest {
            uid: session.uid(),
            device: session.device(),
            class: session.class(),
            session: session.key().session,
            node: &session.key().node,
            r#gen: session.generation(),
        };
        match self.0.ask(&request).await {
            Ok(Decision::Allow) => session.saved(),
            Ok(Decision::Deny(_)) => {
                tracing::warn!(uid = ?session.uid(), "the save service refused to save");
            }
            Err(error) => {
                tracing::warn!(uid = ?session.uid(), %error, "the save service did not save");
            }
        }
    }
}
