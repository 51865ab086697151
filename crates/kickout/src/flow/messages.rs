//! Look-ups of an account's sessions, and messages to them.

use distlock_core::Result;

use crate::{
    flow::handle::KickOut,
    model::{event::Transition, ident::Uid, request::Message},
    peer::route::{Location, Receipt},
};

impl KickOut {
    /// The location of the account's newest session, by a linearizable read; `None` if the account
    /// has no session. Sessions of dead nodes do not count.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn route(&self, uid: &Uid) -> Result<Option<Location>> {
        let current = self.node.locate(uid).await?;
        Ok(current.into_iter().next().map(|(_, location)| location))
    }

    /// The locations of all sessions that a message addresses, the newest first. The read is the
    /// same as in [`route`](Self::route).
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn addressed(&self, uid: &Uid, message: &Message) -> Result<Vec<Location>> {
        let current = self.node.locate_addressed(uid, message).await?;
        Ok(current.into_iter().map(|(_, location)| location).collect())
    }

    /// Delivers a message to every current session that the message addresses, on all nodes at the
    /// same time. Returns one receipt for each such session.
    ///
    /// # Errors
    /// Failures of the store before anything was delivered.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown.
    pub async fn deliver(&self, uid: &Uid, message: Message) -> Result<Vec<Receipt>> {
        self.node.deliver(uid, message).await
    }

    /// Notes that a message was stored for the sessions that missed it, by the receipts of its
    /// delivery. Call this after the message was stored. If such a session still lives, its node
    /// lets it hand out the stored messages: at once on this node, and on another one as soon as
    /// that node can be called.
    pub fn hand_out_later(&self, uid: &Uid, receipts: &[Receipt]) {
        self.node.note_stored(uid, receipts);
    }

    /// Records the event that a message was stored until its account, or its device, logs in.
    pub fn stored(&self, uid: &Uid, message: &Message) {
        self.node.events.emit(Transition::Stored, |event| {
            event.uid = Some(uid.clone());
            event.device.clone_from(&message.to_device);
            event.message = Some(message.id.clone());
        });
    }
}
