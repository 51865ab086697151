//! The comparison of one round: a session that the directory has replaced is superseded, and a
//! session that the store has lost is written again.
//!
//! This module writes nothing. A write may hang, and an ended session must get its notice before
//! any write.

use std::sync::Arc;

use distlock_core::Result;

use crate::{
    directory::accounts::VersionedRecord,
    model::{
        ident::SessionId,
        notice::{Code, Offline},
    },
    node::Node,
    session::live::{LiveSession, Phase},
    upkeep::reconcile::writes::{PendingWrite, log_failed_account},
};

/// Lowest number of sessions that a round compares; a node with fewer sessions compares all of
/// them. After a failed round or a loss of data, the next round compares all sessions.
pub(super) const MIN_COMPARED: usize = 1024;
/// Number of rounds that compare every session once. A node lease has as many rounds.
pub(super) const ROUNDS_PER_PASS: usize = 3;
/// Account records in one read.
const COMPARE_PAGE: usize = 128;

/// State between the rounds.
#[derive(Debug, Default)]
pub(crate) struct RoundState {
    /// The last session that was compared.
    pub(crate) cursor: Option<SessionId>,
    /// The writes of this round, and the failed writes of earlier rounds.
    pub(crate) writes: Vec<PendingWrite>,
    /// Whether the last round failed, or the store has lost data. The next round then compares all
    /// sessions.
    pub(crate) store_was_away: bool,
}

impl Node {
    /// Compares the next part of the active sessions with the directory. Adds the writes that are
    /// needed to `state`.
    pub(super) async fn compare_sessions(&self, state: &mut RoundState) -> Result<()> {
        let here = self.registry.len();
        let mut left = if state.store_was_away {
            state.cursor = None;
            here.max(MIN_COMPARED)
        } else {
            here.div_ceil(ROUNDS_PER_PASS).max(MIN_COMPARED)
        };
        // If the last round ended with the last session, the first page of this round is empty. The
        // round then starts at the first session. It starts there only once, so that an empty
        // registry ends the loop.
        let mut may_wrap_around = state.cursor.is_some();
        let mut read = Ok(());
        while left > 0 {
            let page = self.registry.page(state.cursor, COMPARE_PAGE.min(left));
            state.cursor = page.last().map(|live| live.key.session);
            if page.is_empty() {
                if std::mem::take(&mut may_wrap_around) {
                    continue;
                }
                break;
            }
            may_wrap_around = false;
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
                        if let Err(error) =
                            self.compare_session(live, &seen, &mut state.writes).await
                        {
                            read = read.and(log_failed_account(&live.uid, error));
                        }
                    }
                    Err(error) => {
                        tracing::error!(uid = ?live.uid, %error, "a session cannot be compared");
                    }
                }
                self.count_duplicates(live);
            }
        }
        read
    }

    /// Compares one session with its account's record. Ends a session that the record has replaced.
    async fn compare_session(
        &self,
        live: &Arc<LiveSession>,
        seen: &VersionedRecord,
        writes: &mut Vec<PendingWrite>,
    ) -> Result<()> {
        let record = &seen.record;
        if record.slot_of(&live.key).is_some() || live.phase() != Phase::Active {
            return Ok(());
        }
        if let Some(revocation) = record.revocations.iter().find(|it| it.key == live.key) {
            if self.end_revoked(&live.uid, revocation).ended_now
                && let Some(age) = seen.age
            {
                metrics::histogram!("distlock_takeover_seconds", "path" => "pull")
                    .record(age.as_secs_f64());
            }
            writes.push(PendingWrite::Settle(
                live.uid.clone(),
                vec![live.key.clone()],
            ));
            return Ok(());
        }
        if !record.is_over(&live.slot, live.generation()) {
            let ban = match &record.ban {
                Some(_) => self.current_ban(&live.uid).await?,
                None => None,
            };
            let Some(ban) = ban else {
                let ended = record.ban.as_ref().map(|mark| mark.id);
                writes.push(PendingWrite::Register(Arc::clone(live), ended));
                return Ok(());
            };
            // The record did not name this session when the ban was set, so the ban did not end
            // this session.
            let notice = Offline::new(Code::Banned).with_reason(ban.reason);
            self.end_session(live, notice, false, |_| {});
            return Ok(());
        }
        if let Some(notice) = live.end_notice_in(record) {
            self.end_session(live, notice, false, |event| {
                event.result = Some("the directory names another session".into());
            });
        }
        Ok(())
    }

    /// Counts and logs two active sessions in one slot of the account.
    fn count_duplicates(&self, live: &LiveSession) {
        let active = self
            .registry
            .sessions_of(&live.uid)
            .iter()
            .filter(|other| other.slot == live.slot && other.check().is_ok())
            .count();
        if active > 1 {
            metrics::counter!("distlock_duplicates_detected_total").increment(1);
            tracing::error!(uid = ?live.uid, "two sessions are active in one slot");
        }
    }
}
