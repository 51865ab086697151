//! The comparison: a node finds what became of its sessions without anybody telling it.

use std::sync::Arc;

use distlock_core::Result;
use uuid::Uuid;

use super::{Memory, later};
use crate::{
    directory::Seen,
    event::Transition,
    flow::Inner,
    ident::{SessionKey, Uid},
    live::{Live, Phase},
    offline::{Code, Offline},
    record::SlotEntry,
};

/// Sessions compared with the directory per round at least; after the store was away, all of them.
pub(super) const COMPARED: usize = 1024;
/// Rounds within which every session has its turn: as many as there are in a node lease.
pub(super) const PASS: usize = 3;
const COMPARE_PAGE: usize = 128;
impl Inner {
    /// Compares active sessions with the directory: what it names elsewhere is superseded, what it forgot is written again.
    pub(super) async fn compare_sessions(&self, memory: &mut Memory) -> Result<()> {
        let here = self.registry.len();
        let mut left = if memory.store_was_away {
            memory.cursor = None;
            here.max(COMPARED)
        } else {
            here.div_ceil(PASS).max(COMPARED)
        };
        // The pass before may have ended with the last session of its last page.
        let mut may_begin_anew = memory.cursor.is_some();
        while left > 0 {
            let page = self.registry.page(memory.cursor, COMPARE_PAGE.min(left));
            memory.cursor = page.last().map(|live| live.key.session);
            if page.is_empty() {
                if std::mem::take(&mut may_begin_anew) {
                    continue;
                }
                break;
            }
            may_begin_anew = false;
            left -= page.len();
            let active: Vec<_> = page
                .into_iter()
                .filter(|live| live.phase() == Phase::Active)
                .collect();
            if active.is_empty() {
                continue;
            }
            let uids: Vec<_> = active.iter().map(|live| live.uid.clone()).collect();
            let records = self.directory.read_many(&uids).await?;
            for (live, seen) in active.iter().zip(records) {
                match seen {
                    Ok(seen) => {
                        if let Err(error) = self.compare(live, &seen, &mut memory.told).await {
                            later(&live.uid, &error);
                        }
                    }
                    Err(error) => {
                        tracing::error!(uid = ?live.uid, %error, "a session cannot be compared");
                    }
                }
                self.count_duplicates(live);
            }
        }
        Ok(())
    }

    async fn compare(
        &self,
        live: &Arc<Live>,
        seen: &Seen,
        told: &mut Vec<(Uid, Vec<SessionKey>)>,
    ) -> Result<()> {
        let record = &seen.record;
        if record.slot_of(&live.key).is_some() || live.phase() != Phase::Active {
            return Ok(());
        }
        if let Some(revocation) = record.revocations.iter().find(|it| it.key == live.key) {
            self.apply(&live.uid, revocation);
            told.push((live.uid.clone(), vec![revocation.key.clone()]));
            return Ok(());
        }
        if !record.is_over(&live.slot, live.generation()) {
            let ban = match &record.ban {
                Some(_) => self.standing_ban(&live.uid).await?,
                None => None,
            };
            let Some(ban) = ban else {
                let ended = record.ban.as_ref().map(|mark| mark.id);
                return self.register_again(live, ended).await;
            };
            // Whoever set it could not see this session.
            let mut notice = Offline::new(Code::Banned);
            if let Some(reason) = ban.reason {
                notice = notice.reason(reason);
            }
            self.end(live, notice, false, |_| {});
            return Ok(());
        }
        let by = record.slots.get(&live.slot).map(|it| it.device.clone());
        let notice = Offline::new(Code::Superseded).by(by, Some(record.r#gen));
        self.end(live, notice, false, |event| {
            event.result = Some("the directory names another session".into());
        });
        Ok(())
    }

    /// The store lost its memory of this session (a failover to a replica that lagged behind). `ended` is the ban of the
    /// record that is known to have ended, if there is one.
    async fn register_again(&self, live: &Arc<Live>, ended: Option<Uuid>) -> Result<()> {
        let (registered, _) = self
            .directory
            .update(&live.uid, |record| {
                let banned = record.ban.as_ref().map(|mark| mark.id);
                if live.phase() != Phase::Active
                    || banned.is_some_and(|ban| Some(ban) != ended)
                    || record.is_over(&live.slot, live.generation())
                    || record.slot_of(&live.key).is_some()
                {
                    return false;
                }
                record.restore(
                    &live.slot,
                    SlotEntry {
                        key: live.key.clone(),
                        r#gen: live.generation(),
                        device: live.device.clone(),
                        class: live.class.clone(),
                        since: live.since,
                    },
                );
                true
            })
            .await?;
        if registered {
            self.events
                .emit(Transition::Registered, |event| event.of(live));
        }
        if live.phase() >= Phase::Closing {
            // It logged out in between and may have found nothing to delete.
            self.delete(&live.uid, &live.key).await?;
        }
        Ok(())
    }

    fn count_duplicates(&self, live: &Live) {
        let active = self
            .registry
            .of(&live.uid)
            .iter()
            .filter(|other| other.slot == live.slot && other.check().is_ok())
            .count();
        if active > 1 {
            metrics::counter!("distlock_duplicates_detected_total").increment(1);
            tracing::error!(uid = ?live.uid, "two sessions are active in one slot");
        }
    }
}
