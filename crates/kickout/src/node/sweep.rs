//! The sweeper: removes from the directory the records of dead incarnations, and the entries of
//! ended sessions of this incarnation.
//!
//! A fast pass reads the whole directory at a bounded rate. A fast pass starts when this node has
//! started, when another node has died, or when the store has a new epoch. Otherwise the sweeper
//! reads one page at a time with long pauses, so that an idle node costs little. The sweeper
//! removes a record only by a conditional write.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, atomic::Ordering},
};

use distlock_core::{Epoch, Moment, RecordKey, Result};
use futures_util::future::join_all;

use crate::{
    directory::accounts::CONCURRENT_CHANGES,
    model::{
        event::Transition,
        ident::{Boot, NodeId, SessionKey, Uid},
        record::{Ban, UserRecord},
    },
    node::{
        Node,
        liveness::{Incarnations, Liveness},
    },
    state::{incarnation::Incarnation, live_session::Phase},
    tasks::jitter,
};

/// Records per second in a fast pass.
const RECORDS_PER_SECOND: u64 = 500;
/// Records in one read.
const PAGE: u32 = 250;
/// Number of node leases between two pages of a slow pass.
const LEASES_PER_IDLE_PAGE: u32 = 5;

/// The pace of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Pace {
    /// One page at a time with long pauses. Such a pass finds ended bans, and records that no other
    /// rule finds.
    #[default]
    Slow,
    /// [`RECORDS_PER_SECOND`] records per second.
    Fast,
    /// All pages at once, because more logouts failed than could be queued.
    AllAtOnce,
}

/// The state of the current pass over the directory.
#[derive(Debug, Default)]
struct SweepProgress {
    pace: Pace,
    /// Key of the last record that was read.
    cursor: Option<RecordKey>,
    /// Number of revocations that this pass has counted.
    pending: usize,
    /// Whether a record could not be swept in this pass.
    missed: bool,
    /// Time of the next page of a slow pass.
    next_page: Option<Moment>,
    /// The incarnations that were known to be dead when this pass began. A complete pass removes
    /// all records of these incarnations.
    dead: BTreeSet<(NodeId, Boot)>,
    /// The epochs of the node's own lease, and of the records if they are in another store, when
    /// this pass began.
    epochs: [Option<Epoch>; 2],
    /// Entries that name a session of this incarnation which was not in the registry when the page
    /// was read. The next round removes these entries. The delay gives the logouts of these
    /// sessions time to delete the entries themselves.
    ended: HashSet<(Uid, SessionKey)>,
}

impl SweepProgress {
    /// Begins a pass at this pace, or at the current pace if that is faster.
    fn begin_pass(&mut self, pace: Pace) {
        self.pace = self.pace.max(pace);
        self.cursor = None;
        self.pending = 0;
        self.missed = false;
    }
}

impl Node {
    /// Sweeps until the flow stops.
    pub(crate) async fn run_sweeper(self: Arc<Self>) {
        let mut progress = SweepProgress::default();
        // The first pause is random, so that nodes that were started together sweep at different
        // times.
        let mut pause = jitter(self.settings.timers.sweep);
        loop {
            tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => return,
                () = self.clock.sleep(pause) => {}
            }
            pause = self.settings.timers.sweep;
            let Some(own) = self.this.current_incarnation() else {
                continue;
            };
            let swept = tokio::select! {
                biased;
                // A pass over a large directory must not delay the node's shutdown. Other nodes
                // sweep the remaining records.
                () = self.tasks.stop.cancelled() => return,
                swept = self.sweep_pages(&own, &mut progress) => swept,
            };
            if let Err(error) = swept {
                tracing::warn!(
                    node = %self.this.id, %error,
                    "the sweep met an error, and goes on in its next round"
                );
            }
        }
    }

    /// Sweeps as many pages as the pace allows. A failure for one record does not stop the pass.
    /// Returns the first failure that another try may avoid.
    async fn sweep_pages(
        self: &Arc<Self>,
        own: &Incarnation,
        progress: &mut SweepProgress,
    ) -> Result<()> {
        let mut outcome = self.begin_pass_if_needed(own, progress).await;
        let ended: Vec<_> = std::mem::take(&mut progress.ended).into_iter().collect();
        for batch in ended.chunks(CONCURRENT_CHANGES) {
            let all = join_all(batch.iter().map(|(uid, key)| self.sweep_ended(uid, key))).await;
            for ((uid, key), swept) in batch.iter().zip(all) {
                let swept = keep_retryable(uid.as_str(), swept);
                if swept.is_err() {
                    progress.ended.insert((uid.clone(), key.clone()));
                }
                outcome = outcome.and(swept);
            }
        }
        let millis = u64::try_from(self.settings.timers.sweep.as_millis()).unwrap_or(u64::MAX);
        let most = match progress.pace {
            Pace::Slow => {
                let now = self.clock.now();
                if progress.next_page.is_some_and(|next| now < next) {
                    return outcome;
                }
                progress.next_page =
                    Some(now + self.settings.timers.node_lease * LEASES_PER_IDLE_PAGE);
                u64::from(PAGE)
            }
            Pace::Fast => (millis.saturating_mul(RECORDS_PER_SECOND) / 1000).max(u64::from(PAGE)),
            Pace::AllAtOnce => u64::MAX,
        };
        let mut looked_at = 0;
        while looked_at < most {
            let page = match self
                .directory
                .page("", progress.cursor.as_ref(), PAGE)
                .await
            {
                Ok(page) => page,
                Err(error) => return outcome.and(Err(error)),
            };
            progress.cursor = page.last().map(|(key, ..)| key.clone());
            let is_last = page.len() < PAGE as usize;
            looked_at += page.len() as u64;
            let mut records = Vec::with_capacity(page.len());
            for (key, uid, seen) in page {
                match (uid, seen) {
                    (Some(uid), Ok(seen)) => {
                        progress.pending += seen.record.revocations.len();
                        let ended = self.ended_sessions_in(&uid, &seen.record);
                        progress.ended.extend(ended.map(|key| (uid.clone(), key)));
                        records.push((uid, seen.record));
                    }
                    (_, Err(error)) => {
                        tracing::error!(
                            ?key, %error,
                            "a record cannot be swept, and stays as it is"
                        );
                    }
                    (None, Ok(_)) => {}
                }
            }
            for batch in records.chunks(CONCURRENT_CHANGES) {
                let all = batch.iter().map(|(uid, it)| self.sweep_record(uid, it));
                for ((uid, _), swept) in batch.iter().zip(join_all(all).await) {
                    let swept = keep_retryable(uid.as_str(), swept);
                    progress.missed |= swept.is_err();
                    outcome = outcome.and(swept);
                }
            }
            if is_last {
                return outcome.and(self.end_pass(progress).await);
            }
        }
        outcome
    }

    /// Begins a new pass if there is a reason that the current pass does not cover.
    async fn begin_pass_if_needed(
        self: &Arc<Self>,
        own: &Incarnation,
        progress: &mut SweepProgress,
    ) -> Result<()> {
        if self.retries.take_overflow() {
            progress.begin_pass(Pace::AllAtOnce);
        }
        // The epoch differs after the start of this node, and after a failover. A failover may have
        // restored entries of ended sessions.
        let epochs = [own.lease.epoch(), self.epoch_of_records()];
        if progress.epochs != epochs {
            progress.epochs = epochs;
            progress.begin_pass(Pace::Fast);
        }
        let Incarnations { dead, up } = self.register_and_look_up().await?;
        self.call_nodes(up);
        if !dead.is_subset(&progress.dead) {
            progress.dead = dead;
            progress.begin_pass(Pace::Fast);
        }
        Ok(())
    }

    /// Ends a pass that has read every record.
    async fn end_pass(&self, progress: &mut SweepProgress) -> Result<()> {
        self.pending_revocations
            .store(progress.pending, Ordering::Relaxed);
        metrics::gauge!("distlock_revocations_pending").set(gauge_value(progress.pending));
        let was_fast = std::mem::take(&mut progress.pace) > Pace::Slow;
        let mut outcome = Ok(());
        if was_fast {
            let names = progress.dead.iter().map(|(node, _)| node.clone()).collect();
            outcome = keep_retryable("drain/", self.sweep_drain_marks(&names).await);
        }
        if progress.missed || outcome.is_err() {
            progress.begin_pass(Pace::Fast);
            return outcome;
        }
        progress.begin_pass(Pace::Slow);
        let dead = std::mem::take(&mut progress.dead);
        keep_retryable("nodes", self.remove_from_roster(&dead).await)
    }

    /// Removes the drain marks of dead incarnations of these nodes.
    async fn sweep_drain_marks(&self, names: &BTreeSet<NodeId>) -> Result<()> {
        for (node, mark) in self.directory.drain_marks(names).await? {
            if self.liveness_of(&node, mark.boot).await? == Liveness::Dead {
                self.directory.remove_drain_mark(&node, mark.boot).await?;
            }
        }
        Ok(())
    }

    /// The sessions of this incarnation that a record names, in an entry or a revocation, and that
    /// have ended.
    pub(crate) fn ended_sessions_in<'a>(
        &'a self,
        uid: &'a Uid,
        record: &'a UserRecord,
    ) -> impl Iterator<Item = SessionKey> + 'a {
        let own = self.this.current_incarnation();
        let slots = record.slots.values().map(|entry| &entry.key);
        let named = slots.chain(record.revocations.iter().map(|it| &it.key));
        named
            .filter(move |key| {
                let own = own.as_ref();
                own.is_some_and(|own| key.node == self.this.id && key.boot == own.boot)
            })
            // A session enters the registry before the directory names it. So a session that is not
            // in the registry has ended.
            .filter(|key| {
                let live = self.registry.get(uid, key);
                live.is_none_or(|live| live.phase() >= Phase::Closing)
            })
            .cloned()
    }

    /// Removes an ended session of this incarnation from its record. The logout has deleted the
    /// session, but a store that failed over may have lost that delete. The incarnation is alive,
    /// so no other node would remove the entry.
    async fn sweep_ended(&self, uid: &Uid, key: &SessionKey) -> Result<()> {
        let record = self.directory.read(uid).await?.record;
        if !self
            .ended_sessions_in(uid, &record)
            .any(|ended| ended == *key)
        {
            return Ok(());
        }
        if record.slot_of(key).is_some() {
            self.delete_session(uid, key).await?;
        } else {
            self.settle(uid, std::slice::from_ref(key)).await?;
        }
        Ok(())
    }

    /// Removes the mark of an ended ban. A login does the same; this function is for accounts that
    /// do not log in again.
    async fn sweep_ban(&self, uid: &Uid, mark: &Ban) -> Result<()> {
        if self.current_ban(uid).await?.is_some() {
            return Ok(());
        }
        let (cleared, _) = self
            .directory
            .update(uid, |record| {
                record.ban.take_if(|ban| ban.id == mark.id).is_some()
            })
            .await?;
        if cleared {
            self.remove_ended_ban(uid, mark).await;
        }
        Ok(())
    }

    /// Removes an ended ban, and the entries and revocations of dead incarnations, from one record.
    async fn sweep_record(&self, uid: &Uid, record: &UserRecord) -> Result<()> {
        if let Some(mark) = &record.ban {
            self.sweep_ban(uid, mark).await?;
        }
        let limit = self.settings.timers.lock_ttl;
        let dead = self.dead_among(record.incarnations(), limit).await;
        if dead.is_empty() {
            return Ok(());
        }
        // A dead incarnation stays dead. So an incarnation that was dead for one version of the
        // record is dead for the next version, too.
        let mut ghosts = Vec::new();
        let (swept, _) = self
            .directory
            .update(uid, |record| {
                let (found, settled) =
                    record.sweep(|node, boot| dead.contains(&(node.clone(), boot)));
                let any = !found.is_empty() || settled > 0;
                if any {
                    ghosts = found;
                }
                any
            })
            .await?;
        if swept {
            for ghost in ghosts {
                metrics::counter!("distlock_slots_swept_total").increment(1);
                self.events.emit(Transition::SlotSwept, |event| {
                    event.uid = Some(uid.clone());
                    event.set_session(&ghost.key);
                    event.r#gen = Some(ghost.r#gen);
                    event.peer = Some(ghost.key.node.clone());
                });
            }
        }
        Ok(())
    }
}

/// Returns an error that another try may avoid. An error of the record itself is only logged,
/// because another try would fail, too.
fn keep_retryable(key: &str, swept: Result<()>) -> Result<()> {
    match swept {
        Err(error) if !error.is_retryable() => {
            tracing::error!(?key, %error, "a record cannot be swept, and stays as it is");
            Ok(())
        }
        swept => swept,
    }
}

/// The number as the value of a gauge.
fn gauge_value(pending: usize) -> f64 {
    f64::from(u32::try_from(pending).unwrap_or(u32::MAX))
}
