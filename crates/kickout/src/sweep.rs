//! The sweeper: clears what dead incarnations left behind, a bounded number of records at a time.

use std::sync::Arc;

use distlock_core::{RecordKey, Result};

use crate::{
    ban::Ban, event::Transition, flow::Inner, ident::Uid, nodes::Standing, record::UserRecord,
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
            let millis = u64::try_from(self.timers.sweep.as_millis()).unwrap_or(u64::MAX);
            let most = (millis.saturating_mul(PACE) / 1000).max(u64::from(PAGE));
            if let Err(error) = self.sweep_some(&mut progress, most).await {
                tracing::warn!(node = %self.node, %error, "sweeping goes on later");
            }
        }
    }

    async fn sweep_some(&self, progress: &mut Progress, most: u64) -> Result<()> {
        let mut looked_at = 0;
        while looked_at < most {
            let page = self.directory.page(progress.record.as_ref(), PAGE).await?;
            progress.record = page.last().map(|(key, ..)| key.clone());
            if page.is_empty() {
                metrics::gauge!("distlock_revocations_pending").set(count(progress.pending));
                progress.pending = 0;
                break;
            }
            looked_at += page.len() as u64;
            for (key, uid, seen) in page {
                match (uid, seen) {
                    (Some(uid), Ok(seen)) => {
                        progress.pending += seen.record.revocations.len();
                        self.sweep_record(&uid, &seen.record).await?;
                    }
                    (_, Err(error)) => {
                        tracing::error!(key = key.as_str(), %error, "a record cannot be swept");
                    }
                    (None, Ok(_)) => {}
                }
            }
        }
        let hints = self
            .directory
            .all_hints(progress.hint.as_ref(), PAGE)
            .await?;
        progress.hint = hints.last().map(|hint| hint.key.clone());
        for hint in hints {
            if self.standing(&hint.node, hint.boot).await? == Standing::Dead {
                self.directory.drop_hint(&hint).await?;
            }
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
        let dead = self.dead_in(record).await;
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

fn count(pending: usize) -> f64 {
    f64::from(u32::try_from(pending).unwrap_or(u32::MAX))
}
