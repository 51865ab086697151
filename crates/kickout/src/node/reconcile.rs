//! Reconciliation: a node compares its sessions with the directory and corrects both.
//!
//! A session whose kick was lost ends within one node lease. A round first compares: a session that
//! the directory has replaced is superseded, and a session that the store has lost is noted. The
//! comparison writes nothing, because a locked row or table may delay a write for a long time, and
//! an ended session must get its notice before any write. All writes run at the end of the round. A
//! failure for one account never prevents the comparison of another account.

use std::{mem, sync::Arc};

use distlock_core::{Error, ErrorKind, Moment, Result};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::{
    directory::accounts::{CONCURRENT_CHANGES, VersionedRecord},
    model::{
        event::Transition,
        ident::{SessionId, SessionKey, Uid},
        notice::{Code, Offline},
    },
    node::Node,
    state::{
        incarnation::Incarnation,
        live_session::{LiveSession, Phase},
    },
};

impl Node {
    /// Runs the rounds until the flow stops.
    pub(crate) async fn run_reconciliation(self: Arc<Self>) {
        let mut state = RoundState::default();
        loop {
            tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => return,
                () = self.reconcile_requested() => {}
                () = self.clock.sleep(self.settings.timers.reconcile_period()) => {}
            }
            let Some(own) = self.this.current_incarnation() else {
                continue;
            };
            metrics::gauge!("distlock_lease_remaining_seconds")
                .set(own.lease.remaining().as_secs_f64());
            let round = tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => return,
                round = self.round_and_probe(&own, &mut state) => round,
            };
            if let Err(error) = &round {
                tracing::warn!(
                    node = %self.this.id, %error,
                    "not all sessions could be compared with the directory; the next round tries \
                     again"
                );
            }
            state.store_was_away = round.is_err();
        }
    }

    /// Runs one round. If the store refused the last change, a write of no effect follows: without
    /// it, a node without logins would not notice that the store takes changes again.
    async fn round_and_probe(&self, own: &Incarnation, state: &mut RoundState) -> Result<()> {
        let round = self.reconcile(own, state).await;
        self.probe_if_refused(&round).await;
        self.probe_locks_if_refused().await;
        round
    }

    /// Runs one round: compares sessions, then makes the writes. A failed account is tried again in
    /// a later round. A failed read fails the round. A failed write of one account does not fail
    /// the round, because another client of the database may have locked the row.
    pub(super) async fn reconcile(&self, own: &Incarnation, state: &mut RoundState) -> Result<()> {
        // A failover may happen without any failed request. Only a new epoch shows such a failover.
        if let Some(epoch) = own.lease.epoch() {
            self.observe_epoch(&epoch);
        }
        let observed = self.observe_epoch_of_records().await;
        state.store_was_away |= self.grants_suspended_for().is_some();
        let compared = self.compare_sessions(state).await;
        let written;
        (state.writes, written) = self.write_all(mem::take(&mut state.writes)).await;
        observed.and(compared).and(written)
    }
}

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
                if mem::take(&mut may_wrap_around) {
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
                        tracing::error!(
                            uid = ?live.uid, %error,
                            "the record of a session's account cannot be read, so the session is \
                             not compared"
                        );
                    }
                }
                self.count_duplicates(live);
            }
            // A store in this process answers at once, so without this a round over many sessions
            // would be one long step, and the logins on this thread would wait for it.
            tokio::task::yield_now().await;
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

/// A write that a round makes.
#[derive(Debug)]
pub(crate) enum PendingWrite {
    /// Removes the revocations of ended sessions from the account's record. This waits for a later
    /// round while the program of such a session may be saving.
    Settle(Uid, Vec<SessionKey>),
    /// Writes a session that the store has lost to the directory again. The id belongs to an ended
    /// ban whose mark was in the record.
    Register(Arc<LiveSession>, Option<Uuid>),
}

impl PendingWrite {
    fn uid(&self) -> &Uid {
        match self {
            Self::Settle(uid, _) => uid,
            Self::Register(live, _) => &live.uid,
        }
    }
}

impl Node {
    /// Writes the roster as it is, if the store refused the last change or failed this round.
    pub(super) async fn probe_if_refused(&self, round: &Result<()>) {
        if round.is_err() {
            self.directory.note_change(round);
        }
        if !self.directory.takes_changes() {
            // The write itself notes its outcome. An empty roster may mean lost data, so its
            // absence must stay visible.
            let write = self.directory.update_roster(|roster| !roster.is_empty());
            drop(write.await);
        }
    }

    /// Makes the writes, and continues after a failure. Stops when the next round is due, because
    /// that round may have sessions to end. Returns the writes that a later round has to repeat,
    /// and the outcome.
    ///
    /// # Errors
    /// The store's error if all writes of a full batch failed: the store takes no write, and the
    /// remaining writes are not tried. [`ErrorKind::Unavailable`] if there was no time for all
    /// writes.
    pub(super) async fn write_all(
        &self,
        mut writes: Vec<PendingWrite>,
    ) -> (Vec<PendingWrite>, Result<()>) {
        let has_registration = writes
            .iter()
            .any(|it| matches!(it, PendingWrite::Register(..)));
        if has_registration && !self.is_lease_visible().await {
            writes.retain(|it| matches!(it, PendingWrite::Settle(..)));
        }
        let now = self.clock.now();
        let (mut left, mut writes): (Vec<_>, Vec<_>) =
            writes.into_iter().partition(|it| self.is_saving(it, now));
        // With a fixed order, the same locked rows could use up the time of every round.
        fastrand::shuffle(&mut writes);
        let outcome = self.write_in_batches(&mut writes, &mut left).await;
        left.append(&mut writes);
        // The next comparison covers active sessions only. So the write for an ended session is
        // kept, and a session that is missing in the directory is found again.
        left.retain(|it| matches!(it, PendingWrite::Settle(..)));
        (left, outcome)
    }

    /// Whether a write is for a session whose program may still be saving.
    fn is_saving(&self, write: &PendingWrite, now: Moment) -> bool {
        let PendingWrite::Settle(uid, gone) = write else {
            return false;
        };
        let mut live = gone.iter().filter_map(|key| self.registry.get(uid, key));
        live.any(|live| live.is_saving(now))
    }

    /// Whether other nodes can see this node's lease. Otherwise other nodes count this node as dead
    /// and remove its sessions again.
    async fn is_lease_visible(&self) -> bool {
        let lease = self.inspect_own_lease().await;
        lease.is_ok_and(|lease| lease.held.is_some())
    }

    /// Makes the writes in batches, and adds the failed writes to `left`. Writes that were not
    /// tried stay in `writes`.
    async fn write_in_batches(
        &self,
        writes: &mut Vec<PendingWrite>,
        left: &mut Vec<PendingWrite>,
    ) -> Result<()> {
        let until = self.clock.now() + self.settings.timers.reconcile_period();
        while !writes.is_empty() {
            if self.clock.now() >= until {
                let says = "not all sessions could be written in this round; the rest waits for \
                    the next round";
                return Err(Error::new(ErrorKind::Unavailable, says));
            }
            let batch: Vec<_> = writes
                .drain(..writes.len().min(CONCURRENT_CHANGES))
                .collect();
            let writing = batch.iter().map(async |writes| {
                let written = self.make_write(writes).await;
                written.or_else(|error| log_failed_account(writes.uid(), error))
            });
            let written = join_all(writing).await;
            let none = written.len() == CONCURRENT_CHANGES && written.iter().all(Result::is_err);
            let first = written.iter().find_map(|it| it.as_ref().err().cloned());
            let missed = batch.into_iter().zip(written);
            left.extend(missed.filter_map(|(it, written)| written.is_err().then_some(it)));
            if none && let Some(error) = first {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn make_write(&self, writes: &PendingWrite) -> Result<()> {
        match writes {
            PendingWrite::Settle(uid, gone) => {
                self.settle(uid, gone).await?;
            }
            PendingWrite::Register(live, ended) => self.register_again(live, *ended).await?,
        }
        Ok(())
    }

    /// Adds a session of this node to the directory again, after the store has lost the session's
    /// entry. A failover to a replica that lagged behind can lose an entry. `ended` is the id of a
    /// ban that has ended; under any other ban, nothing is written.
    async fn register_again(&self, live: &Arc<LiveSession>, ended: Option<Uuid>) -> Result<()> {
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
                record.restore(&live.slot, live.entry());
                true
            })
            .await?;
        if registered {
            self.events
                .emit(Transition::Registered, |event| live.describe(event));
        }
        if live.phase() >= Phase::Closing {
            // The session logged out meanwhile. Its logout may have run before this write and found
            // nothing to delete.
            self.delete_session(&live.uid, &live.key).await?;
        }
        Ok(())
    }
}

/// Logs a failure for one account. Returns an error that another try may avoid, and `Ok` for an
/// error of the account's record itself.
pub(crate) fn log_failed_account(uid: &Uid, error: Error) -> Result<()> {
    tracing::warn!(
        ?uid, %error,
        "an account's record could not be changed; a later round tries again"
    );
    if error.is_retryable() {
        Err(error)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
