//! Messages of the operator's own servers, over HTTP and gRPC.
//!
//! Such a server shows the send token, and has no session. The send token must never allow anything
//! else.

use std::net::IpAddr;

use axum::http::HeaderMap;
use distlock_core::{Error, ErrorKind, Result};
use distlock_kickout::{Message, Uid};

use crate::{
    bearer::BearerToken,
    front::{FrontContext, MessageOutcome, check_message, deliver},
};

/// Checks the send token, and sends messages of servers.
#[derive(Clone)]
pub(crate) struct SendApi {
    pub(crate) front: FrontContext,
    /// The send token; `None` if no server may send.
    pub(crate) bearer: Option<BearerToken>,
}

/// The reason why a server may not send.
pub(crate) enum SendDenied {
    /// The configuration has no send token.
    Disabled,
    /// The request does not show the token.
    NotShown,
}

impl SendDenied {
    /// The reason as text for the server.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Disabled => "nobody may send: send_token is not set",
            Self::NotShown => "the bearer token of send_token is needed",
        }
    }
}

impl SendApi {
    /// Checks that a request with these headers may send.
    pub(crate) async fn authorise(
        &self,
        headers: &HeaderMap,
        from: IpAddr,
    ) -> std::result::Result<(), SendDenied> {
        let bearer = self.bearer.as_ref().ok_or(SendDenied::Disabled)?;
        if bearer.verify_request(headers, from).await {
            Ok(())
        } else {
            Err(SendDenied::NotShown)
        }
    }

    /// Delivers a message, or stores it for later.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a message with an id or a body that is too long; failures
    /// of the store.
    pub(crate) async fn send(&self, to: &Uid, message: &Message) -> Result<MessageOutcome> {
        if let Err((_, why)) = check_message(message, self.front.max_frame) {
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        deliver(&self.front, to, message).await
    }
}
