//! The writes that the comparison of a round needs.
//!
//! A locked row or table may delay a write for a long time. So all writes run at the end of a
//! round, after every ended session got its notice.

use std::sync::Arc;

use distlock_core::{Error, ErrorKind, Moment, Result};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::{
    directory::accounts::CONCURRENT_CHANGES,
    model::{
        event::Transition,
        ident::{SessionKey, Uid},
    },
    node::Node,
    session::live::{LiveSession, Phase},
};

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
                let says = "writing takes so long that the rest waits for the next round";
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
    tracing::warn!(?uid, %error, "an account's sessions are looked after later");
    if error.is_retryable() {
        Err(error)
    } else {
        Ok(())
    }
}
