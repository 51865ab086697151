//! Finding an account's sessions, and sending them a message.

use distlock_core::Result;

use crate::{
    flow::handle::KickOut,
    model::{event::Transition, ident::Uid, request::Message},
    peer::route::{Location, Receipt},
};

impl KickOut {
    /// Where the account's newest session lives, by a linearizable read; `None` when nobody is
    /// logged in. Sessions of dead nodes do not count.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn route(&self, uid: &Uid) -> Result<Option<Location>> {
        let current = self.parts.router.locate(uid).await?;
        Ok(current.into_iter().next().map(|(_, location)| location))
    }

    /// Where the sessions live that a message addresses, the newest first, as
    /// [`route`](Self::route) does.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn addressed(&self, uid: &Uid, message: &Message) -> Result<Vec<Location>> {
        let current = self.parts.router.addressed(uid, message).await?;
        Ok(current.into_iter().map(|(_, location)| location).collect())
    }

    /// Delivers a message to every current session that it addresses, wherever those live, at the
    /// same time. Answers what became of it at each; nothing when no such session is there.
    ///
    /// # Errors
    /// Failures of the store before anything was delivered; [`ErrorKind::Timeout`](distlock_core::ErrorKind::Timeout) when the locked mode did not get the lock.
    ///
    /// # Cancel safety
    /// Dropping it leaves the outcome unknown.
    pub async fn deliver(&self, uid: &Uid, message: Message) -> Result<Vec<Receipt>> {
        self.parts.router.deliver(uid, message).await
    }

    /// Puts on record that a message was kept until its account logs in, or the device that it is
    /// for.
    pub fn stored(&self, uid: &Uid, message: &Message) {
        self.parts.events.emit(Transition::Stored, |event| {
            event.uid = Some(uid.clone());
            event.device.clone_from(&message.to_device);
            event.message = Some(message.id.clone());
        });
    }
}
