//! The entry of a login.

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
    /// Logs a client in. Does everything that can fail before the account's lock is taken, holds the lock around one read and
    /// one write, and tells older sessions after it was released.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a resume token that is not valid; failures of the store. After
    /// [`ErrorKind::OutcomeUnknown`] the login counts as not admitted, and whatever it left is removed in the background.
    ///
    /// # Cancel safety
    /// Safe: a login whose caller went away is given up before the write, and logged out after it.
    pub async fn login(&self, login: Login) -> Result<LoginOutcome> {
        let gone = CancellationToken::new();
        let _tell = gone.clone().drop_guard();
        let (answer, outcome) = oneshot::channel();
        let run = LoginRun {
            parts: Arc::clone(&self.parts.logins),
            started: self.parts.clock.now(),
            login,
            gone,
        };
        self.parts.tasks.spawn(async move {
            let outcome = Box::pin(run.run_to_end()).await;
            // Nobody there any more: dropping an admitted session logs it out.
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
