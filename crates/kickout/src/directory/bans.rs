//! Bans, as logins and the background rounds see them.
//!
//! The mark in the account's record says that there is a ban; the record `ban/<uid>` says how long
//! it lasts. A mark without that record means nothing.

use std::time::Duration;

use distlock_core::Result;

use crate::{
    model::{ban::Ban, event::Transition, ident::Uid},
    node::Node,
    wait::wall_millis,
};

impl Node {
    /// The ban that holds for an account at this moment; `None` if the ban was lifted or has ended.
    pub(crate) async fn current_ban(&self, uid: &Uid) -> Result<Option<Ban>> {
        let Some((ban, age)) = self.directory.ban(uid).await? else {
            return Ok(None);
        };
        Ok((!self.ban_is_over(&ban, age)).then_some(ban))
    }

    /// Whether a ban of this age has ended.
    pub(crate) fn ban_is_over(&self, ban: &Ban, age: Option<Duration>) -> bool {
        match (ban.ttl_ms, age, ban.until_ms) {
            (Some(ttl), Some(age), _) => age >= Duration::from_millis(ttl),
            (Some(_), None, Some(until)) => wall_millis(&*self.clock) >= until,
            _ => false,
        }
    }

    /// Removes the ban record of an ended ban, after its mark was removed from the account's
    /// record.
    pub(crate) async fn remove_ended_ban(&self, uid: &Uid, ban: &Ban) {
        if let Err(error) = self.directory.remove_ban(uid, Some(ban.id)).await {
            // A ban record without a mark in the account's record has no effect.
            tracing::debug!(?uid, %error, "an ended ban was not removed");
        }
        self.events.emit(Transition::Unbanned, |event| {
            event.uid = Some(uid.clone());
            event.result = Some("the ban has ended".into());
        });
    }
}
