//! The sweeper: clears what dead incarnations left behind, and what the directory still says of this one's ended sessions, a
//! bounded number of records at a time.

use std::{collections::HashSet, sync::Arc};

use distlock_core::{RecordKey, Result};
use futures_util::future::join_all;

use crate::{
    ban::Ban,
    directory::{AT_ONCE, Hint},
    event::Transition,
    flow::Inner,
    ident::{SessionKey, Uid},
    live::Phase,
    nodes::Standing,
    record::UserRecord,
    wait::jitter,
};

/// Records looked at per second.
const PACE: u64 = 500;
const PAGE: u32 = 250;

#[derive(Debug, Default)]
struct Progress {
    record: Option<RecordKey>,
    hint: Option<RecordKey>,
    pending: usize,
    /// More logouts failed than could wait: this pass over the directory is made at once.
    hurry: bool,
    /// What the rounds before found of this incarnation without its session: most of it is about to be deleted by its logout.
    ended: HashSet<(Uid, SessionKey)>,
}

impl Inner {
    pub(crate) async fn sweep(self: Arc<Self>) {
        let mut progress = Progress::default();
        // Nodes that were started together do not sweep together.
        let mut pause = jitter(self.timers.sweep);
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.clock.sleep(pause) => {}
            }
            pause = self.timers.sweep;
            if self.own.now().is_none() {
                continue;
            }
            if self.retries.take_overflow() {
                progress.record = None;
                progress.hurry = true;
            }
            let millis = u64::try_from(self.timers.sweep.as_millis()).unwrap_or(u64::MAX);
            let most = if progress.hurry {
                u64::MAX
            } else {
                (millis.saturating_mul(PACE) / 1000).max(u64::from(PAGE))
            };
            let swept = tokio::select! {
                biased;
                // A pass over a large directory does not keep a node from stopping; what is cut off here is done by others.
                () = self.stop.cancelled() => return,
                swept = self.sweep_some(&mut progress, most) => swept,
            };
            if let Err(error) = swept {
                tracing::warn!(node = %self.node, %error, "sweeping goes on later");
            }
        }
    }

    /// What fails for one record is tried again, the others have their turn all the same. Answers the first failure.
    async fn sweep_some(&self, progress: &mut Progress, most: u64) -> Result<()> {
        let mut outcome = Ok(());
        let ended: Vec<_> = std::mem::take(&mut progress.ended).into_iter().collect();
        for some in ended.chunks(AT_ONCE) {
            let all = join_all(some.iter().map(|(uid, key)| self.sweep_ended(uid, key))).await;
            for ((uid, key), swept) in some.iter().zip(all) {
                let swept = later_or_never(uid.as_str(), swept);
                if swept.is_err() {
                    progress.ended.insert((uid.clone(), key.clone()));
                }
                outcome = outcome.and(swept);
            }
        }
        let mut looked_at = 0;
        while looked_at < most {
            let page = match self.directory.page(progress.record.as_ref(), PAGE).await {
                Ok(page) => page,
                Err(error) => return outcome.and(Err(error)),
            };
            progress.record = page.last().map(|(key, ..)| key.clone());
            if page.is_empty() {
                metrics::gauge!("distlock_revocations_pending").set(count(progress.pending));
                progress.pending = 0;
                progress.hurry = false;
                let swept = later_or_never("drain/", self.sweep_drain_marks().await);
                outcome = outcome.and(swept);
                break;
            }
            looked_at += page.len() as u64;
            let mut records = Vec::with_capacity(page.len());
            for (key, uid, seen) in page {
                match (uid, seen) {
                    (Some(uid), Ok(seen)) => {
                        progress.pending += seen.record.revocations.len();
                        let ended = self.ended_in(&uid, &seen.record);
                        progress.ended.extend(ended.map(|key| (uid.clone(), key)));
                        records.push((uid, seen.record));
                    }
                    (_, Err(error)) => {
                        tracing::error!(?key, %error, "a record cannot be swept");
                    }
                    (None, Ok(_)) => {}
                }
            }
            for some in records.chunks(AT_ONCE) {
                let all = some.iter().map(|(uid, it)| self.sweep_record(uid, it));
                for ((uid, _), swept) in some.iter().zip(join_all(all).await) {
                    outcome = outcome.and(later_or_never(uid.as_str(), swept));
                }
            }
        }
        let hints = match self.directory.all_hints(progress.hint.as_ref(), PAGE).await {
            Ok(hints) => hints,
            Err(error) => return outcome.and(Err(error)),
        };
        progress.hint = hints.last().map(|hint| hint.key.clone());
        for some in hints.chunks(AT_ONCE) {
            let all = join_all(some.iter().map(|hint| self.sweep_hint(hint))).await;
            for (hint, swept) in some.iter().zip(all) {
                outcome = outcome.and(later_or_never(hint.key.as_str(), swept));
            }
        }
        outcome
    }

    /// Once per pass: there are only as many as nodes that were drained.
    async fn sweep_drain_marks(&self) -> Result<()> {
        for (node, mark) in self.directory.drain_marks().await? {
            if self.standing(&node, mark.boot).await? == Standing::Dead {
                self.directory.drop_drain_mark(&node, mark.boot).await?;
            }
        }
        Ok(())
    }

    async fn sweep_hint(&self, hint: &Hint) -> Result<()> {
        if self.standing(&hint.node, hint.boot).await? == Standing::Dead {
            self.directory.drop_hint(hint).await?;
        }
        Ok(())
    }

    /// What a record says of this incarnation without its session being here.
    pub(crate) fn ended_in<'a>(
        &'a self,
        uid: &'a Uid,
        record: &'a UserRecord,
    ) -> impl Iterator<Item = SessionKey> + 'a {
        let own = self.own.now();
        let slots = record.slots.values().map(|entry| &entry.key);
        let named = slots.chain(record.revocations.iter().map(|it| &it.key));
        named
            .filter(move |key| {
                let own = own.as_ref();
                own.is_some_and(|own| key.node == self.node && key.boot == own.boot)
            })
            // A session is here before the directory names it.
            .filter(|key| {
                let live = self.registry.get(uid, key);
                live.is_none_or(|live| live.phase() >= Phase::Closing)
            })
            .cloned()
    }

    /// A logout deletes its session itself. But a store that failed over may have forgotten the delete, and this incarnation
    /// goes on, so nothing else would void what the record says.
    async fn sweep_ended(&self, uid: &Uid, key: &SessionKey) -> Result<()> {
        let record = self.directory.read(uid).await?.record;
        if !self.ended_in(uid, &record).any(|ended| ended == *key) {
            return Ok(());
        }
        if record.slot_of(key).is_some() {
            self.delete(uid, key).await?;
        } else {
            self.settle(uid, std::slice::from_ref(key)).await?;
        }
        Ok(())
    }

    /// Takes the mark of a ban that has ended off the record of an account that did not come back.
    async fn sweep_ban(&self, uid: &Uid, mark: &Ban) -> Result<()> {
        if self.standing_ban(uid).await?.is_some() {
            return Ok(());
        }
        let (cleared, _) = self
            .directory
            .update(uid, |record| {
                record.ban.take_if(|ban| ban.id == mark.id).is_some()
            })
            .await?;
        if cleared {
            self.ban_has_ended(uid, mark).await;
        }
        Ok(())
    }

    async fn sweep_record(&self, uid: &Uid, record: &UserRecord) -> Result<()> {
        if let Some(mark) = &record.ban {
            self.sweep_ban(uid, mark).await?;
        }
        let dead = self.dead_in(record, self.timers.lock_ttl).await;
        if !dead.values().any(|dead| *dead) {
            return Ok(());
        }
        // A dead incarnation stays dead, so what was asked about one version of the record holds for the next.
        let mut ghosts = Vec::new();
        let (swept, _) = self
            .directory
            .update(uid, |record| {
                let (found, settled) =
                    record.sweep(|node, boot| dead.get(&(node.clone(), boot)) == Some(&true));
                let any = !found.is_empty() || settled > 0;
                if any {
                    ghosts = found;
                }
                any
            })
            .await?;
        if swept {
            for ghost in ghosts {
                metrics::counter!("distlock_ghosts_swept_total").increment(1);
                self.events.emit(Transition::GhostSwept, |event| {
                    event.uid = Some(uid.clone());
                    event.about(&ghost.key);
                    event.r#gen = Some(ghost.r#gen);
                    event.peer = Some(ghost.key.node.clone());
                });
            }
        }
        Ok(())
    }
}

/// What the store could not do now is tried again. What is wrong with a record itself is only reported.
fn later_or_never(key: &str, swept: Result<()>) -> Result<()> {
    match swept {
        Err(error) if !error.is_retryable() => {
            tracing::error!(?key, %error, "a record cannot be swept");
            Ok(())
        }
        swept => swept,
    }
}

fn count(pending: usize) -> f64 {
    f64::from(u32::try_from(pending).unwrap_or(u32::MAX))
}
