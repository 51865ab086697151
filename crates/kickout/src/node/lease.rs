//! The keeper of this node's lease: it takes the lease at the start, watches it, and takes it again
//! after a loss.
//!
//! If the store has lost the lease with other data, the incarnation continues. After any other loss
//! all sessions end, and the node starts a new incarnation with a higher boot number. Two
//! incarnations of one node never serve at the same time.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use distlock_core::{Capabilities, Guard, LossReason, Result, at_most};

use crate::{
    locks::{renewing, wanted_lock},
    model::{
        event::Transition,
        ident::{Boot, SessionId},
        node::NodeMeta,
        notice::{Code, Offline},
    },
    node::Node,
    state::incarnation::{Incarnation, Lease, is_missing},
    tasks::{jitter, retry_while},
};

/// Pause between attempts to take the lease after a loss.
const REJOIN_PAUSE: Duration = Duration::from_millis(500);

/// Account records in one read.
const PAGE: usize = 256;

/// Time after which a node that waits for its predecessor's lease logs a warning.
const WARN_AFTER: Duration = Duration::from_secs(1);

/// Time after a session time-out within which a store ends the session. ZooKeeper checks once per
/// tick, and its default tick is two seconds.
const SESSION_CHECK_PERIOD: Duration = Duration::from_secs(2);

impl Node {
    /// Takes the node's lease and starts a new incarnation.
    pub(crate) async fn start_incarnation(&self) -> Result<Guard> {
        let guard = self.take_lease(None).await?;
        let boot = Boot::new(guard.token().get());
        self.events.set_boot(boot);
        // The deadline of this lease counts from the moment at which its request was sent. The
        // store began to count later, so this node stops before another node may count it as dead.
        self.this.set_incarnation(Incarnation {
            boot,
            lease: Lease::new(Arc::clone(&self.clock), guard.watch()),
        });
        // `keep_lease` has not begun to renew yet. A slow store could otherwise use up the lease
        // during the registration.
        renewing(
            &*self.clock,
            &guard,
            self.settings.timers.node_lease,
            self.register_or_warn(),
        )
        .await;
        self.events.emit(Transition::NodeUp, |event| {
            event.token = Some(boot.get());
        });
        Ok(guard)
    }

    /// Takes the node's lease. `boot` is the incarnation that continues with this lease; `None`
    /// starts a new incarnation. The lease of a dead predecessor can still run, so this call waits
    /// for its end.
    async fn take_lease(&self, boot: Option<Boot>) -> Result<Guard> {
        let meta = NodeMeta {
            addr: self.this.advertise.clone(),
            front: self.this.front.clone(),
            policy: self.settings.policy.to_string(),
            boot,
        };
        let meta = serde_json::to_string(&meta).map_err(|error| {
            distlock_core::Error::new(
                distlock_core::ErrorKind::Internal,
                "the text of the node's lease could not be turned into JSON",
            )
            .caused_by(error)
        })?;
        let lease = self.settings.timers.node_lease;
        let longest = longest_lease_after_death(self.locker.capabilities(), lease);
        let name = self.this.id.lock_name()?;
        // A process that was killed released nothing, so its lease has to end by itself. The extra
        // second is for the grant after that end.
        let taking = wanted_lock(&self.locker, &name, lease, &self.this.id)
            .wait(longest + Duration::from_secs(1))
            .meta(meta)
            .acquire();
        let warn = async {
            self.clock.sleep(WARN_AFTER).await;
            tracing::warn!(
                node = %self.this.id,
                at_most = ?longest,
                "this node waits for its lease: its predecessor's lease has not ended, another \
                 node has its name, or the store does not answer"
            );
            std::future::pending().await
        };
        let guard = tokio::select! {
            taken = taking => taken?,
            never = warn => never,
        };
        // This comes before the caller makes the lease usable. A new epoch suspends grants, and a
        // login between the two steps would be granted on a directory that has lost sessions.
        self.observe_epoch(&guard.epoch());
        Ok(guard)
    }

    /// Registers this incarnation on the roster. A failure is only logged, because the sweeper
    /// registers it again.
    async fn register_or_warn(&self) {
        if let Err(error) = self.register().await {
            tracing::warn!(
                node = %self.this.id, %error,
                "the node is not on the roster yet; the next sweep tries again"
            );
        }
    }

    /// Takes the lease again, if the store lost the lease together with other data. The sessions
    /// continue: no node grants a login before the nodes have written their sessions again. Returns
    /// `None` if the lease was lost for another reason, or if its deadline is too near.
    async fn retake_lease(&self, reason: LossReason) -> Option<Guard> {
        let own = self
            .this
            .current_incarnation()
            .filter(|_| is_missing(reason))?;
        // The old deadline still decides when other nodes may count this node as dead. A third of
        // the lease is left for the other outcome: without the lease, every session gets its notice
        // before that deadline.
        let limit = own
            .lease
            .remaining()
            .saturating_sub(self.settings.timers.reconcile_period());
        let taking = async {
            let may_wait = || own.lease.is_valid();
            let lost_data = retry_while(&*self.clock, may_wait, || {
                self.store_lost_lease_and_data(&own.lease)
            });
            // A lease that was deleted by hand is not taken again. While it is free, other nodes
            // count this node as dead and grant logins, so its sessions may have been replaced.
            if !lost_data.await? {
                return Result::<_>::Ok(None);
            }
            // Grants are suspended before the lease is back. The other way round, a login on this
            // node could be granted between the two on a directory without the live sessions.
            self.report_data_loss("the store has lost this node's lease");
            let guard = self.take_lease(Some(own.boot)).await?;
            // The sessions share this lease, so from here on they are bound to the new lock. The
            // old deadline has not passed, so no session was mute in between.
            own.lease.replace_lock(guard.watch());
            // The sessions are written only now, when other nodes can see the lease. Without the
            // lease, other nodes would count this node as dead and sweep its sessions.
            self.request_reconcile();
            Ok(Some(guard))
        };
        let guard = match at_most(&*self.clock, limit, taking).await? {
            Ok(guard) => guard?,
            Err(error) => {
                tracing::warn!(
                    node = %self.this.id, %error,
                    "the node cannot take its lease again, so its sessions end"
                );
                return None;
            }
        };
        let listing = async {
            self.register_or_warn().await;
            self.publish_drain_mark().await;
        };
        at_most(&*self.clock, self.settings.timers.peer_deadline, listing).await;
        Some(guard)
    }

    /// Whether the store lost this lease together with other data. In that case the store has
    /// another epoch or another roster. If only the lease was deleted by hand, both stay the same.
    /// Of a store that keeps the locks alone, only the epoch tells.
    async fn store_lost_lease_and_data(&self, lease: &Lease) -> Result<bool> {
        let now = self.inspect_own_lease().await?;
        if now.epoch.is_some() && now.epoch != lease.epoch() {
            return Ok(true);
        }
        let roster = self.read_roster().await?;
        Ok(lease
            .roster()
            .is_some_and(|before| roster.id != Some(before)))
    }

    /// Keeps the lease until the flow stops. This task is the heartbeat of the runtime that serves
    /// the clients: while that runtime stands still, nobody renews the lease. After a loss of the
    /// lease, the incarnation continues if the store has lost data. Otherwise every session ends,
    /// and the node starts a new incarnation.
    pub(crate) async fn keep_lease(self: Arc<Self>, mut guard: Guard) {
        let (clock, lease) = (&*self.clock, self.settings.timers.node_lease);
        loop {
            let reason = tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => break,
                reason = renewing(clock, &guard, lease, guard.lost()) => reason,
            };
            let again = tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => break,
                again = self.retake_lease(reason) => again,
            };
            if let Some(again) = again {
                guard = again;
                continue;
            }
            if is_missing(reason) {
                self.suspend_after_missing_lease();
            }
            // The order matters: the sessions are over before this process gives up its claim to
            // the lease. Two incarnations of one node never serve at the same time.
            self.fence(&reason.to_string()).await;
            drop(guard);
            guard = loop {
                tokio::select! {
                    biased;
                    () = self.tasks.stop.cancelled() => return,
                    joined = self.start_incarnation() => match joined {
                        Ok(guard) => {
                            let publishing = self.publish_drain_mark();
                            renewing(clock, &guard, lease, publishing).await;
                            break guard;
                        }
                        Err(error) => {
                            let node = &self.this.id;
                            tracing::warn!(
                                %node, %error,
                                "the node cannot take its lease, and tries again"
                            );
                        }
                    },
                }
                tokio::select! {
                    biased;
                    () = self.tasks.stop.cancelled() => return,
                    () = self.clock.sleep(REJOIN_PAUSE + jitter(REJOIN_PAUSE)) => {}
                }
            };
        }
        for live in self.registry.all() {
            self.end_session(&live, Offline::new(Code::Draining), true, |_| {});
        }
        // After the release another node may count this one as dead at once, so the sessions have
        // ended before it.
        self.this.end_incarnation();
        // If the release fails, the lease ends by itself.
        let _ = guard.release().await;
        self.events.emit(Transition::NodeDown, |_| {});
    }

    /// Takes this node off the roster after a complete shutdown.
    pub(crate) async fn leave_roster(&self) {
        let own = self.this.newest_boot();
        let left = async {
            if self.is_draining() {
                self.directory.remove_drain_mark(&self.this.id, own).await?;
            }
            self.remove_from_roster(&BTreeSet::from([(self.this.id.clone(), own)]))
                .await
        };
        if let Err(error) = left.await {
            tracing::debug!(
                node = %self.this.id, %error,
                "the node could not be taken off the roster; another node does that"
            );
        }
    }

    /// Ends this incarnation after the loss of its lease, and gives its sessions their notices.
    /// Sessions check the lease themselves, so no session could send or receive after the loss.
    async fn fence(&self, reason: &str) {
        // This makes the lease invalid for every session at once, before any wait. The look-up
        // below waits for the store.
        self.this.end_incarnation();
        metrics::counter!("distlock_node_fenced_total").increment(1);
        tracing::error!(
            node = %self.this.id, reason,
            "the node lost its lease and ends its sessions"
        );
        self.events.emit(Transition::NodeFenced, |event| {
            event.result = Some(reason.to_owned());
        });
        let mut over = HashMap::new();
        let looking = self.find_ended_sessions(&mut over);
        at_most(&*self.clock, self.settings.timers.peer_deadline, looking).await;
        for live in self.registry.all() {
            let notice = over
                .remove(&live.key.session)
                .unwrap_or_else(|| Offline::new(Code::NodeFenced));
            self.end_session(&live, notice, false, |_| {});
        }
    }

    /// Finds the sessions whose accounts have logged in on another node while this node was paused,
    /// and adds their notices to `over`. The clients of these sessions must not be advised to
    /// reconnect. The store is often unreachable at this moment, so the caller limits the time; the
    /// notices found until then count.
    async fn find_ended_sessions(&self, over: &mut HashMap<SessionId, Offline>) {
        for some in self.registry.all().chunks(PAGE) {
            let uids: Vec<_> = some.iter().map(|live| live.uid.clone()).collect();
            let Ok(records) = self.directory.read_many(&uids).await else {
                return;
            };
            for (live, seen) in some.iter().zip(records) {
                let notice = seen.ok().and_then(|seen| live.end_notice_in(&seen.record));
                over.extend(notice.map(|notice| (live.key.session, notice)));
            }
        }
    }
}

/// The longest time for which a dead node's lease lasts. If the lease depends on the node's session
/// with the store, the lease also lasts until that session has timed out.
fn longest_lease_after_death(store: &Capabilities, lease: Duration) -> Duration {
    match store.session_timeout {
        Some(session) => lease.max(session + SESSION_CHECK_PERIOD),
        None => lease,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_of_a_dead_node_lasts_until_its_store_session_has_timed_out() {
        let lease = Duration::from_secs(9);
        let mut store = Capabilities::new("any");
        assert_eq!(longest_lease_after_death(&store, lease), lease);
        store.max_lease = Some(Duration::from_secs(15));
        assert_eq!(longest_lease_after_death(&store, lease), lease);
        store.session_timeout = Some(Duration::from_secs(30));
        let longest = Duration::from_secs(32);
        assert_eq!(longest_lease_after_death(&store, lease), longest);
        assert_eq!(longest_lease_after_death(&store, longest * 2), longest * 2);
    }
}
