//! Messages of the operator's own servers, over HTTP and gRPC.
//!
//! Such a server shows the send token, and has no session. The send token must never allow anything
//! else.

use std::{net::IpAddr, sync::Arc};

use axum::http::HeaderMap;
use distlock_core::{Error, ErrorKind, Result};
use distlock_kickout::{Message, Uid};

use crate::{
    accounts::{Accounts, Turns},
    bearer::BearerToken,
    front::{FrontContext, MessageOutcome, check_message, deliver, deliver_to_many},
};

/// Checks the send token, and sends messages of servers.
#[derive(Clone)]
pub(crate) struct SendApi {
    front: Arc<FrontContext>,
    /// The send token; `None` if no server may send.
    bearer: Option<BearerToken>,
    turns: Turns,
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
    pub(crate) fn new(front: Arc<FrontContext>, bearer: Option<BearerToken>) -> Self {
        Self {
            turns: Turns::new(Arc::clone(&front.clock)),
            front,
            bearer,
        }
    }

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
        self.check(message)?;
        deliver(&self.front, to, message).await
    }

    /// Delivers a message to each of the accounts, or stores it for later. The failure of one
    /// account is the outcome of that account alone.
    ///
    /// # Errors
    /// The same as for [`send`](Self::send), and [`ErrorKind::Unavailable`] if too many such
    /// messages are in progress. Nothing was sent then.
    pub(crate) async fn send_to_many(
        &self,
        to: &Accounts,
        message: &Message,
    ) -> Result<Vec<Result<MessageOutcome>>> {
        self.check(message)?;
        if let [to] = to.uids() {
            return Ok(vec![deliver(&self.front, to, message).await]);
        }
        let _turn = self.turns.take().await?;
        deliver_to_many(&self.front, to.uids(), message).await
    }

    /// The number of messages that wait for an account.
    ///
    /// # Errors
    /// Failures of the store.
    pub(crate) async fn waiting(&self, uid: &Uid) -> Result<usize> {
        self.front.inbox.waiting(uid).await
    }

    fn check(&self, message: &Message) -> Result<()> {
        check_message(message, self.front.max_frame)
            .map_err(|(_, why)| Error::new(ErrorKind::InvalidArgument, why))
    }
}
