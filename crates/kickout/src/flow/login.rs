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
    /// Logs a client in. Every step that can fail runs before the account's lock is taken. The lock
    /// is held around one read and one write. Older sessions are kicked after it was released.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a resume token that is not valid; failures of the store.
    /// After [`ErrorKind::OutcomeUnknown`] the login counts as not admitted; its remains are
    /// removed in the background.
    ///
    /// # Cancel safety
    /// Safe: a dropped login stops before the write, and is logged out after it.
    pub async fn login(&self, login: Login) -> Result<LoginOutcome> {
        let caller_gone = CancellationToken::new();
        let _cancel_on_drop = caller_gone.clone().drop_guard();
        let (answer, outcome) = oneshot::channel();
        let run = LoginRun {
            parts: Arc::clone(&self.parts.logins),
            started: self.parts.clock.now(),
            login,
            caller_gone,
        };
        self.parts.tasks.spawn(async move {
            let outcome = Box::pin(run.run_to_end()).await;
            // The send fails if the caller went away. The admitted session is then dropped, and the
            // drop logs it out.
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
