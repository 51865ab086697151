//! The pull path: a node looks for kicks that never reached it, so that a lost call heals by itself.

mod compare;
mod owed;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, mem, sync::Arc};

use distlock_core::{Epoch, Error, Moment, RecordKey, Result, Version};

use crate::{
    directory::Hint,
    flow::Inner,
    ident::{SessionId, Uid},
    live::Incarnation,
};

use owed::Owed;

const HINT_PAGE: u32 = 256;

/// Notes without a revocation, and since when: the login that wrote one may be about to write the record. A note that was
/// written again is another one.
type Idle = HashMap<(RecordKey, Version), Moment>;

/// What the rounds remember.
#[derive(Debug, Default)]
struct Memory {
    /// Where the comparison goes on.
    cursor: Option<SessionId>,
    idle: Idle,
    /// What this round found to write.
    owed: Vec<Owed>,
    /// The last round failed, or the store's history is another: it was away, and may have forgotten something.
    store_was_away: bool,
    /// The store's history, as the node's own lease knows it.
    epoch: Option<Epoch>,
}

impl Inner {
    /// Rounds at the pace of lease renewals.
    pub(crate) async fn pull(self: Arc<Self>) {
        let mut memory = Memory::default();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.clock.sleep(self.timers.tick()) => {}
            }
            let Some(own) = self.own.now() else {
                continue;
            };
            metrics::gauge!("distlock_lease_remaining_seconds")
                .set(own.lease.remaining().as_secs_f64());
            let round = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                round = self.round(&own, &mut memory) => round,
            };
            if let Err(error) = &round {
                tracing::warn!(node = %self.node, %error, "a look at the directory failed");
            }
            memory.store_was_away = round.is_err();
        }
    }

    /// Whatever fails for one account is tried again in a later round and keeps no other account from its turn in this one. A
    /// write that fails is no failure of the round, because somebody may keep its row locked; a read that fails is the store's.
    async fn round(&self, own: &Incarnation, memory: &mut Memory) -> Result<()> {
        let epoch = own.lease.fence().epoch;
        if memory.epoch.as_ref() != Some(&epoch) {
            // A failover may be over before any request has failed.
            memory.epoch = Some(epoch);
            memory.store_was_away = true;
        }
        let read = self.read_hints(own, memory).await;
        let compared = self.compare_sessions(memory).await;
        let written = self.write_owed(mem::take(&mut memory.owed)).await;
        read.and(compared).and(written)
    }

    async fn read_hints(&self, own: &Incarnation, memory: &mut Memory) -> Result<()> {
        let mut idle = Idle::new();
        let mut after = None;
        let mut read = Ok(());
        loop {
            let page = self
                .directory
                .hints(&self.node, own.boot, after.as_ref(), HINT_PAGE)
                .await;
            let page = match page {
                Ok(page) => page,
                Err(error) => {
                    memory.idle.extend(idle);
                    return Err(error);
                }
            };
            let Some(last) = page.last() else {
                break;
            };
            after = Some(last.key.clone());
            for hint in page {
                let this = (hint.key.clone(), hint.version);
                let before = memory.idle.get(&this).copied();
                let since = match self.act_on(&hint, before, &mut memory.owed).await {
                    Ok(since) => since,
                    Err(error) => {
                        read = read.and(later(&hint.uid, error));
                        before
                    }
                };
                idle.extend(since.map(|since| (this, since)));
            }
        }
        memory.idle = idle;
        read
    }

    /// Answers since when the note has been idle, if it is and stays.
    async fn act_on(
        &self,
        hint: &Hint,
        idle: Option<Moment>,
        owed: &mut Vec<Owed>,
    ) -> Result<Option<Moment>> {
        // The note alone decides nothing: the record does.
        let record = match self.directory.read(&hint.uid).await {
            Ok(seen) => seen.record,
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                tracing::error!(uid = ?hint.uid, %error, "a kick cannot be looked up");
                return Ok(None);
            }
        };
        let (gone, ended) = self.apply_all(&hint.uid, &record);
        if let Some(age) = hint.age {
            for _ in 0..ended {
                metrics::histogram!("distlock_takeover_seconds", "path" => "pull")
                    .record(age.as_secs_f64());
            }
        }
        if !gone.is_empty() {
            owed.push(Owed::Settle(hint.uid.clone(), gone));
            return Ok(None);
        }
        // Written before its record, so a record without a revocation may only be a moment away. A login that takes longer
        // than this has lost its lock.
        let now = self.clock.now();
        let since = idle.unwrap_or(now);
        if now.since(since) > self.timers.lock_ttl * 2 {
            owed.push(Owed::DropHint(hint.clone()));
        }
        Ok(Some(since))
    }
}

/// What the store could not do now for one account is tried again, and the others have their turn all the same. Answers the
/// error unless it is the account's own.
fn later(uid: &Uid, error: Error) -> Result<()> {
    tracing::warn!(?uid, %error, "an account's sessions are looked after later");
    if error.is_retryable() {
        Err(error)
    } else {
        Ok(())
    }
}
