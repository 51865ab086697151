//! Bans of accounts.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result};
use uuid::Uuid;

use crate::{
    admin::{
        operations::PAGE,
        view::{Banned, EndingReason, Kicked},
    },
    flow::handle::KickOut,
    model::{ban::Ban, event::Transition, ident::Uid, notice::Code},
    wait::wall_millis,
};

/// Longest TTL of a ban.
const MAX_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl KickOut {
    /// Bans an account and ends its sessions with code 5. The ban lasts for `ttl` by the store's
    /// clock, or without end. This ban replaces an earlier ban. A login at the same time is either
    /// refused or ended.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a TTL of zero or more than ten years; failures of the
    /// store. After [`ErrorKind::OutcomeUnknown`] the account may be banned; another ban is safe.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown; another ban is safe.
    pub async fn ban(
        &self,
        uid: &Uid,
        ttl: Option<Duration>,
        reason: Option<&str>,
    ) -> Result<(Ban, Vec<Kicked>)> {
        let node = &self.node;
        if let Some(ttl) = ttl
            && (ttl.is_zero() || ttl > MAX_TTL)
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("ban ttl is {ttl:?}: more than zero and at most {MAX_TTL:?} are allowed"),
            ));
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let ban = Ban {
            id: Uuid::new_v4(),
            reason: reason.map(str::to_owned),
            ttl_ms: ttl.map(millis),
            until_ms: ttl.map(|ttl| wall_millis(&*node.clock).saturating_add(millis(ttl))),
        };
        // The ban record is written before the mark. Otherwise a login could find the mark without
        // the record, treat the ban as lifted, and remove the mark.
        node.directory.put_ban(uid, &ban).await?;
        let ending = EndingReason {
            code: Code::Banned,
            text: reason,
            ban: Some(&ban),
        };
        let kicked = node.end_sessions(uid, |_| true, ending).await?;
        node.events.emit(Transition::Banned, |event| {
            event.uid = Some(uid.clone());
            event.result.clone_from(&ban.reason);
        });
        Ok((ban, kicked))
    }

    /// At most `most` bans that hold, sorted by account, and how many there are in all. A ban whose
    /// order failed may be among them.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn bans(&self, most: usize) -> Result<(Vec<Banned>, usize)> {
        let node = &self.node;
        let (mut bans, mut total, mut after) = (Vec::new(), 0, None);
        loop {
            let page = node.directory.ban_page(after.as_ref(), PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok((bans, total));
            };
            after = Some(last.clone());
            for (uid, ban, age) in page.into_iter().filter_map(|(_, read)| read) {
                if node.ban_is_over(&ban, age) {
                    continue;
                }
                total += 1;
                if bans.len() < most {
                    bans.push(Banned { uid, ban });
                }
            }
        }
    }

    /// Lifts an account's ban. Returns true if there was a ban.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown; repeating the call is safe.
    pub async fn unban(&self, uid: &Uid) -> Result<bool> {
        let node = &self.node;
        let there = node.directory.remove_ban(uid, None).await?;
        let (marked, _) = node
            .directory
            .update(uid, |record| record.ban.take().is_some())
            .await?;
        if there || marked {
            node.events.emit(Transition::Unbanned, |event| {
                event.uid = Some(uid.clone());
            });
        }
        Ok(there || marked)
    }
}
