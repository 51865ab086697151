//! What a round found to write. A write may be held up for long, by somebody who keeps rows or a table locked, so all of them
//! come last, when everybody was told who had to be.

use std::sync::Arc;

use distlock_core::{Clock, Error, ErrorKind, Result};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::{
    directory::{access::Directory, accounts::CONCURRENT_CHANGES},
    events::Events,
    model::{
        event::Transition,
        ident::{SessionKey, Uid},
        settings::Settings,
    },
    node::history::History,
    session::{
        live::{LiveSession, Phase},
        removal::Removals,
    },
};

/// A write. Whoever does not get through is found again in a later round.
#[derive(Debug)]
pub(crate) enum PendingWrite {
    /// Sessions that were told are taken out of their account's record.
    Settle(Uid, Vec<SessionKey>),
    /// A session that the store forgot is written again. With it, the ban of the record that is known to have ended, if there
    /// is one.
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

#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) settings: Arc<Settings>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) history: Arc<History>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) removals: Arc<Removals>,
    pub(crate) events: Arc<Events>,
}

impl Writer {
    /// Writes what is owed, and goes on past what fails. For no longer than until the next round is
    /// due: there may be somebody to be told. Answers what could not be written, unless the next
    /// comparison finds it again by itself.
    ///
    /// # Errors
    /// That of the store when none of many could be written: then it takes no write, and the rest is not tried. An error as well
    /// when there was no time for the rest.
    pub(super) async fn write_all(
        &self,
        mut writes: Vec<PendingWrite>,
    ) -> (Vec<PendingWrite>, Result<()>) {
        let registers = writes
            .iter()
            .any(|it| matches!(it, PendingWrite::Register(..)));
        if registers && !self.others_see_the_lease().await {
            writes.retain(|it| matches!(it, PendingWrite::Settle(..)));
        }
        // Rows that somebody keeps locked are not the first ones every time.
        fastrand::shuffle(&mut writes);
        let mut left = Vec::new();
        let outcome = self.write_in_batches(&mut writes, &mut left).await;
        left.append(&mut writes);
        // Of a session that was told nothing is left to be compared.
        left.retain(|it| matches!(it, PendingWrite::Settle(..)));
        (left, outcome)
    }

    /// Whoever reads of a session whose node has no lease takes the node for dead.
    async fn others_see_the_lease(&self) -> bool {
        let lease = self.history.inspect_own_lease().await;
        lease.is_ok_and(|lease| lease.held.is_some())
    }

    async fn write_in_batches(
        &self,
        writes: &mut Vec<PendingWrite>,
        left: &mut Vec<PendingWrite>,
    ) -> Result<()> {
        let until = self.clock.now() + self.settings.timers.tick();
        while !writes.is_empty() {
            if self.clock.now() >= until {
                let says = "writing takes so long that the rest waits for the next round";
                return Err(Error::new(ErrorKind::Unavailable, says));
            }
            let some: Vec<_> = writes
                .drain(..writes.len().min(CONCURRENT_CHANGES))
                .collect();
            let writing = some.iter().map(async |writes| {
                let written = self.write(writes).await;
                written.or_else(|error| log_failed_account(writes.uid(), error))
            });
            let written = join_all(writing).await;
            let none = written.len() == CONCURRENT_CHANGES && written.iter().all(Result::is_err);
            let first = written.iter().find_map(|it| it.as_ref().err().cloned());
            let missed = some.into_iter().zip(written);
            left.extend(missed.filter_map(|(it, written)| written.is_err().then_some(it)));
            if none && let Some(error) = first {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn write(&self, writes: &PendingWrite) -> Result<()> {
        match writes {
            PendingWrite::Settle(uid, gone) => {
                self.removals.settle(uid, gone).await?;
            }
            PendingWrite::Register(live, ended) => self.register_again(live, *ended).await?,
        }
        Ok(())
    }

    /// The store lost its memory of this session (a failover to a replica that lagged behind).
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
            // It logged out in between and may have found nothing to delete.
            self.removals.delete(&live.uid, &live.key).await?;
        }
        Ok(())
    }
}

/// What the store could not do now for one account is tried again, and the others have their turn all the same. Answers the
/// error unless it is the account's own.
pub(crate) fn log_failed_account(uid: &Uid, error: Error) -> Result<()> {
    tracing::warn!(?uid, %error, "an account's sessions are looked after later");
    if error.is_retryable() {
        Err(error)
    } else {
        Ok(())
    }
}
