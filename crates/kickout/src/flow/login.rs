//! The entry point of a login.

use std::sync::Arc;

use distlock_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{
    flow::handle::KickOut,
    login::{context::LoginRun, outcome::LoginOutcome},
    model::login::Login,
};

impl KickOut {
    /// Logs a client in. Every check that can refuse the login without the record runs before the
    /// account's lock is taken. The lock is held around one read and one write. Older sessions are
    /// kicked after the lock was released.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a resume token that is not valid; failures of the store.
    /// After [`ErrorKind::OutcomeUnknown`] the login counts as not admitted; a session that its
    /// write may have left is removed in the background.
    ///
    /// # Cancel safety
    /// Safe: a login that is dropped before its write stops, and a login that is dropped later is
    /// logged out.
    pub async fn login(&self, login: Login) -> Result<LoginOutcome> {
        let caller_gone = CancellationToken::new();
        let _cancel_on_drop = caller_gone.clone().drop_guard();
        let (answer, outcome) = oneshot::channel();
        let run = LoginRun {
            node: Arc::clone(&self.node),
            started: self.node.clock.now(),
            login,
            caller_gone,
        };
        self.node.tasks.spawn(async move {
            let outcome = Box::pin(run.run_to_end()).await;
            // The send fails if the caller dropped the future. The admitted session is then
            // dropped, and the drop logs the session out.
            drop(answer.send(outcome));
        });
        outcome.await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Internal,
                "login ended without an answer",
            ))
        })
    }
}
