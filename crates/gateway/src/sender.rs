//! Messages of the program's own servers, which need no session but a right of their own. Whoever
//! has it can send, and nothing else.

use std::sync::Arc;

use distlock_core::{Error, ErrorKind, Result};
use distlock_kickout::{Message, Uid};

use crate::{
    config::Secret,
    front::{
        Front,
        send::{self, Fate},
    },
};

#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) front: Front,
    /// Nobody may send unless it is set.
    pub(crate) token: Option<Arc<Secret>>,
}

/// Why somebody may not send.
pub(crate) enum NoRight {
    /// Nobody may.
    Off,
    /// The right was not shown.
    NotShown,
}

impl NoRight {
    pub(crate) const fn why(&self) -> &'static str {
        match self {
            Self::Off => "nobody may send: send_token is not set",
            Self::NotShown => "the bearer token of send_token is needed",
        }
    }
}

impl Sender {
    /// Whether whoever shows this `authorization` may send.
    pub(crate) fn check_right(&self, shown: Option<&str>) -> std::result::Result<(), NoRight> {
        let token = self.token.as_ref().ok_or(NoRight::Off)?;
        let bearer = shown.and_then(|shown| shown.strip_prefix("Bearer "));
        if bearer.is_some_and(|bearer| token.matches(bearer)) {
            Ok(())
        } else {
            Err(NoRight::NotShown)
        }
    }

    /// Delivers a message, or keeps it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a message that may not be sent as it is; failures of the
    /// store.
    pub(crate) async fn send(&self, to: &Uid, message: &Message) -> Result<Fate> {
        if let Err((_, why)) = send::check(message, self.front.max_frame) {
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        send::deliver(&self.front, to, message).await
    }
}
