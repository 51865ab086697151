//! The check of logins by a web service of the operator.
//!
//! This module must never let a login pass when the answer is unknown.

use async_trait::async_trait;
use distlock_core::Result;
use distlock_kickout::{
    Allowed, Class, Code, Denied, Device, Intent, Login, NodeId, Profiles, Uid,
};
use serde::Serialize;

use super::web_service::{Decision, WebService};

/// The reason for a client when the service gives none.
const REFUSED: &str = "the account may not log in now";

/// A web service that checks each login.
#[derive(Debug)]
pub(crate) struct WebProfiles {
    service: WebService,
    node: NodeId,
}

#[derive(Serialize)]
struct LoginQuestion<'a> {
    uid: &'a Uid,
    device: &'a Device,
    class: &'a Class,
    intent: Intent,
    node: &'a NodeId,
}

impl WebProfiles {
    pub(crate) const fn new(service: WebService, node: NodeId) -> Self {
        Self { service, node }
    }
}

#[async_trait]
impl Profiles for WebProfiles {
    async fn load(&self, login: &Login) -> Result<Allowed> {
        let question = LoginQuestion {
            uid: &login.uid,
            device: &login.device,
            class: &login.class,
            intent: login.intent,
            node: &self.node,
        };
        Ok(match self.service.ask(&question).await? {
            Decision::Allow => Allowed::Yes,
            Decision::Deny(reason) => {
                let mut denied = Denied::new(Code::Denied);
                denied.reason = reason.unwrap_or_else(|| REFUSED.into());
                Allowed::No(denied)
            }
        })
    }
}
