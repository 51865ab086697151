//! Messages of the program's own servers, which need no session but a right of their own. Whoever
//! has it can send, and nothing else.

use std::net::IpAddr;

use axum::http::HeaderMap;
use distlock_core::{Error, ErrorKind, Result};
use distlock_kickout::{Message, Uid};

use crate::{
    bearer::Bearer,
    front::{Fate, Front, check, deliver},
};

#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) front: Front,
    /// Nobody may send unless it is set.
    pub(crate) bearer: Option<Bearer>,
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
    /// Whether whoever asks with these headers may send.
    pub(crate) async fn check_right(
        &self,
        headers: &HeaderMap,
        from: IpAddr,
    ) -> std::result::Result<(), NoRight> {
        let bearer = self.bearer.as_ref().ok_or(NoRight::Off)?;
        if bearer.admits(headers, from).await {
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
        if let Err((_, why)) = check(message, self.front.max_frame) {
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        deliver(&self.front, to, message).await
    }
}
