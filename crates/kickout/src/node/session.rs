//! The handle of an admitted session, for the connection that owns it.

use std::{fmt, sync::Arc};

use tokio::sync::{Mutex, mpsc};

use crate::{
    model::{
        event::Transition,
        ident::{Class, Device, Generation, SessionKey, Uid},
        login::{ConfirmedBy, ResumeToken},
        notice::{Code, Offline},
    },
    node::{Node, logout::LoggedOut},
    state::{
        live_session::{LiveSession, Phase},
        message::{Outgoing, QueuedMessage},
    },
};

/// A session of this node. The connection of the session waits for
/// [`superseded`](Self::superseded), writes the messages of [`next_message`](Self::next_message),
/// calls [`check`](Self::check) before it accepts anything from its client, and ends with
/// [`logout`](Self::logout).
///
/// A program that keeps the account's state in memory saves it after the session has ended, calls
/// [`saved`](Self::saved), and then logs out.
///
/// The drop of the handle logs the session out in the background.
#[must_use = "dropping it logs out"]
pub struct Session {
    node: Arc<Node>,
    live: Arc<LiveSession>,
    messages: Mutex<mpsc::Receiver<Box<QueuedMessage>>>,
    pub(crate) old_confirmed: ConfirmedBy,
}

impl Session {
    pub(crate) fn new(
        node: Arc<Node>,
        live: Arc<LiveSession>,
        messages: mpsc::Receiver<Box<QueuedMessage>>,
    ) -> Self {
        Self {
            node,
            live,
            messages: Mutex::new(messages),
            old_confirmed: ConfirmedBy::Nobody,
        }
    }

    /// The account.
    #[must_use]
    pub fn uid(&self) -> &Uid {
        &self.live.uid
    }

    /// The session's identity.
    #[must_use]
    pub fn key(&self) -> &SessionKey {
        &self.live.key
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.live.device
    }

    /// The class of the device.
    #[must_use]
    pub fn class(&self) -> &Class {
        &self.live.class
    }

    /// Whether the session's client acknowledges messages.
    #[must_use]
    pub fn acknowledges(&self) -> bool {
        self.live.acks
    }

    /// Whether the session's program says when it has saved.
    #[must_use]
    pub fn saves(&self) -> bool {
        self.live.saves
    }

    /// The generation of this login. A store that remembers the highest generation with which an
    /// account was saved, and refuses a lower one, is safe from a late save of an older session.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.live.generation()
    }

    /// The phase of the session.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.live.phase()
    }

    /// The part that had confirmed the end of the older sessions when this session was admitted.
    #[must_use]
    pub const fn old_confirmed(&self) -> ConfirmedBy {
        self.old_confirmed
    }

    /// The token with which the client resumes this session after a broken connection.
    #[must_use]
    pub fn resume_token(&self) -> String {
        ResumeToken::new(
            self.live.uid.clone(),
            self.live.slot.clone(),
            self.live.key.session,
            self.live.generation(),
        )
        .to_text()
    }

    /// Whether the session may send and receive at this moment: it is active, and its node's lease
    /// is valid. The check does no I/O.
    ///
    /// Call this for everything that the client sends, because the call starts the session's idle
    /// time again.
    ///
    /// # Errors
    /// The notice that the client gets, or got before.
    pub fn check(&self) -> Result<(), Offline> {
        self.live.touch(self.node.clock.now());
        self.live.check()
    }

    /// Whether the session may send and receive at this moment, as in [`check`](Self::check),
    /// without a change of its idle time. For actions of the server itself.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.live.check().is_ok()
    }

    /// Whether the session must end: it was superseded, or its node's lease has ended. The client
    /// may then get nothing but the notice. A client that leaves by itself still gets the answers
    /// to its requests.
    #[must_use]
    pub fn must_go(&self) -> bool {
        self.live.must_go()
    }

    /// Waits until the session must end, and returns the notice. The call never returns if the
    /// session ends in another way.
    ///
    /// # Cancel safety
    /// Safe: any number of waiters can read the notice, at any time.
    pub async fn superseded(&self) -> Offline {
        self.live.superseded().await
    }

    /// The next message for the client. The call never returns once the session may no longer
    /// receive.
    ///
    /// # Cancel safety
    /// Safe: a dropped call takes no message.
    pub async fn next_message(&self) -> Outgoing {
        let mut messages = self.messages.lock().await;
        loop {
            let Some(queued) = messages.recv().await else {
                return std::future::pending().await;
            };
            let Some(message) = queued.take(self.live.overdue_mark()) else {
                continue;
            };
            if self.live.check().is_ok() {
                return message;
            }
            message.refused();
        }
    }

    /// Waits until messages were stored for the account while this session could not be reached.
    /// The connection then hands out the stored messages, as it does at the start of a session.
    ///
    /// # Cancel safety
    /// Safe: an order that came before the call, or while nobody waits, is not lost.
    pub async fn hand_out_asked(&self) {
        self.live.hand_out_asked().await;
    }

    /// Ends the session with a notice, for example because the client is silent or the node drains.
    /// From now on the session can neither send nor receive. The directory keeps the session until
    /// [`logout`](Self::logout).
    pub fn end(&self, code: Code) {
        self.node
            .end_session(&self.live, Offline::new(code), true, |_| {});
    }

    /// Records that the notice was written to the session's connection.
    pub fn told(&self) {
        self.node
            .events
            .emit(Transition::Told, |event| self.live.describe(event));
    }

    /// Records that the client did not leave within the grace period, so the node closed its
    /// connection.
    pub fn cut_off(&self) {
        self.node
            .events
            .emit(Transition::Cut, |event| self.live.describe(event));
    }

    /// Says that nothing of this session is left to save. Call this after the session has ended
    /// ([`superseded`](Self::superseded)) or its client has left, and before
    /// [`logout`](Self::logout). A login that ended the session waits for this call if the session
    /// was admitted with [`Login::saves`](crate::Login::saves). A logout without this call ends
    /// that wait, too: the login then learns only that the session has ended.
    pub fn saved(&self) {
        self.live.mark_saved();
    }

    /// Logs out: removes exactly this session from the directory. The first call makes the removal;
    /// a later call returns [`LoggedOut::AlreadyGone`].
    ///
    /// # Cancel safety
    /// Safe: the logout continues in the background.
    pub async fn logout(&self) -> LoggedOut {
        let (node, live) = (Arc::clone(&self.node), Arc::clone(&self.live));
        let (answer, outcome) = tokio::sync::oneshot::channel();
        self.node.tasks.spawn(async move {
            let _ = answer.send(node.retire(&live).await);
        });
        outcome.await.unwrap_or(LoggedOut::Queued)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.live.phase() < Phase::Closing {
            let (node, live) = (Arc::clone(&self.node), Arc::clone(&self.live));
            self.node.tasks.spawn(async move {
                node.retire(&live).await;
            });
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("uid", &self.live.uid)
            .field("key", &self.live.key)
            .field("phase", &self.live.phase())
            .finish_non_exhaustive()
    }
}
