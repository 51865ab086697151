//! Reads of the whole directory for an administrator, and the end of the selected sessions.
//!
//! A session leaves the directory before its client gets the notice, so a login at the same time
//! cannot be lost. No operation here ends a session with a higher generation than the generation
//! that was read.

use std::sync::Arc;

use distlock_core::{Error, ErrorKind, Result};
use uuid::Uuid;

use crate::{
    admin::view::{EndingReason, Kicked, Target},
    directory::accounts::{PutOutcome, VersionedRecord},
    model::{
        event::Transition,
        ident::Uid,
        record::{Revocation, SlotEntry, UserRecord},
    },
    node::Node,
    peer::kick::settled_among,
};

/// Records in one read of the directory.
pub(crate) const PAGE: u32 = 256;
/// Attempts at one change of a record while other nodes keep changing the same record.
const MAX_ATTEMPTS: u32 = 8;

impl Node {
    /// Calls `visit` with every readable record. The sweeper logs unreadable records.
    pub(crate) async fn for_each_record(
        &self,
        mut visit: impl FnMut(&Uid, UserRecord) + Send,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.directory.page(after.as_ref(), PAGE).await?;
            let Some((last, ..)) = page.last() else {
                return Ok(());
            };
            after = Some(last.clone());
            for (_, uid, seen) in page {
                if let (Some(uid), Ok(seen)) = (uid, seen) {
                    visit(&uid, seen.record);
                }
            }
        }
    }

    /// The accounts with sessions that match the target, each with these sessions.
    pub(crate) async fn find_accounts(
        &self,
        target: &Target,
    ) -> Result<Vec<(Uid, Vec<SlotEntry>)>> {
        let mut accounts = Vec::new();
        let mut add_matching = |uid: &Uid, record: UserRecord| {
            let entries = record.slots.into_values();
            let matching: Vec<_> = entries.filter(|entry| target.matches(entry)).collect();
            if !matching.is_empty() {
                accounts.push((uid.clone(), matching));
            }
        };
        if let Target::Uid(uid) = target {
            add_matching(uid, self.directory.read(uid).await?.record);
        } else {
            self.for_each_record(add_matching).await?;
        }
        Ok(accounts)
    }

    /// Removes the sessions of an account for which `wanted` is true from the directory, then kicks
    /// them.
    pub(crate) async fn end_sessions(
        self: &Arc<Self>,
        uid: &Uid,
        wanted: impl Fn(&SlotEntry) -> bool + Send + Sync,
        ending: EndingReason<'_>,
    ) -> Result<Vec<Kicked>> {
        for _ in 0..MAX_ATTEMPTS {
            let VersionedRecord {
                version,
                mut record,
                ..
            } = self.directory.read(uid).await?;
            let ended: Vec<_> = record
                .slots
                .values()
                .filter(|it| wanted(it))
                .cloned()
                .collect();
            let revoked: Vec<_> = ended
                .iter()
                .map(|entry| Revocation {
                    key: entry.key.clone(),
                    // This is the generation that was read. A session with a higher generation must
                    // survive the kick.
                    gen_max: entry.r#gen,
                    reason: ending.code,
                    text: ending.text.map(str::to_owned),
                    by_device: None,
                    by_gen: None,
                    kick_id: Uuid::new_v4(),
                })
                .collect();
            if revoked.is_empty() && ending.ban.is_none() {
                return Ok(Vec::new());
            }
            if ending.ban.is_some() {
                record.ban = ending.ban.cloned();
            }
            for revocation in &revoked {
                record.evict(&revocation.key);
            }
            record.revocations.extend(revoked.iter().cloned());
            let outcome_in = |now: &UserRecord| {
                let gone = revoked.iter().all(|it| now.slot_of(&it.key).is_none());
                let marked = ending.ban.is_none_or(|ban| now.ban.as_ref() == Some(ban));
                (gone && marked).then_some(PutOutcome::Stored)
            };
            let until = self.clock.now() + self.settings.timers.kick_budget;
            let may_wait = || self.clock.now() < until;
            let put = self
                .directory
                .put(uid, version, &record, outcome_in, may_wait)
                .await?;
            if put == PutOutcome::Conflict {
                continue;
            }
            for revocation in &revoked {
                self.events.emit(Transition::Revoked, |event| {
                    event.set_revocation(uid, revocation);
                });
            }
            let budget = self.settings.timers.kick_budget;
            let kicked = self.kick_all(uid, &revoked, budget, None).await;
            let settled = settled_among(&kicked);
            let all_settled = settled.len() == revoked.len();
            let settled = self.settle(uid, &settled).await;
            if let Err(error) = &settled {
                // The sessions have ended; only their revocations stay in the record for now.
                tracing::warn!(?uid, %error, "the directory is told later that sessions are gone");
            }
            if settled.is_err() || !all_settled {
                self.keep_kicking(uid);
            }
            return Ok(revoked
                .into_iter()
                .zip(ended)
                .map(|(it, entry)| Kicked {
                    uid: uid.clone(),
                    device: entry.device,
                    gone: kicked.iter().any(|(key, _)| *key == it.key),
                    key: it.key,
                    kick_id: it.kick_id,
                    error: None,
                })
                .collect());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("record of account {uid:?} changed {MAX_ATTEMPTS} times in between"),
        ))
    }
}
