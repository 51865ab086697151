//! The handle of a flow: logins, messages, the nodes, the answers to peers, and the shutdown.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use distlock_core::{Error, ErrorKind, LockInfo, Result};
use futures_util::future::join_all;
use tokio::sync::{broadcast, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    model::{
        change::{AccountChange, AccountNews, ChangeId},
        event::{Event, Transition},
        ident::{Boot, NodeId, SessionKey, Uid},
        login::Login,
        node::{NodeInfo, NodeState},
        notice::{Code, Offline},
        request::{DeliverRequest, DeliverResult, KickRequest, KickResult, Message, PeerError},
    },
    node::{
        Node,
        login::{LoginOutcome, LoginRun},
        route::{Location, Receipt},
    },
    state::{changes::ChangeReader, live_session::Phase},
};

/// Usual time until the account's record no longer names a session whose grace has ended.
const LOGOUT_TAKES: Duration = Duration::from_secs(5);

/// The kick-out flow of one node. A clone is cheap.
///
/// When the last clone is dropped, the node ends its sessions and releases its lease in the
/// background, which voids the sessions. [`shutdown`](Self::shutdown) does the same and waits for
/// the clients.
#[derive(Clone, Debug)]
pub struct KickOut {
    pub(crate) node: Arc<Node>,
    pub(super) _stop: Arc<DropGuard>,
}

impl KickOut {
    /// This node.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.node.this.id
    }

    /// The present incarnation of this node; `None` while the node has no valid lease. Without a
    /// valid lease the node serves no client.
    #[must_use]
    pub fn boot(&self) -> Option<Boot> {
        self.node.this.current_incarnation().map(|own| own.boot)
    }

    /// Time until this node must stop serving unless its lease is renewed.
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        self.node
            .this
            .current_incarnation()
            .map_or(Duration::ZERO, |own| own.lease.remaining())
    }

    /// Whether the store took this node's last change of a record or of an account's lock. While it
    /// does not, logins fail, and the node tries again once in a third of its lease.
    #[must_use]
    pub fn store_takes_changes(&self) -> bool {
        self.node.stores_take_changes()
    }

    /// Sessions of this node that have not ended.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.node.registry.len()
    }

    /// Number of accounts with a login in progress on this node.
    #[must_use]
    pub fn logins_under_way(&self) -> usize {
        self.node.queues.len()
    }

    /// Sessions on all nodes that have to end and are not known to have ended. This node's sweeper
    /// counted them in its last complete pass.
    #[must_use]
    pub fn revocations_pending(&self) -> usize {
        self.node.pending_revocations.load(Ordering::Relaxed)
    }

    /// The locks of at most `most` accounts with a login in progress on this node.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn locks_under_way(&self, most: usize) -> Result<Vec<LockInfo>> {
        let uids = self.node.queues.busy_accounts(most);
        let looking = uids
            .iter()
            .map(async |uid| self.node.locker.inspect(uid.lock_name()?).await);
        join_all(looking).await.into_iter().collect()
    }

    /// The node's events. The first caller gets all events since the start; a later caller gets the
    /// events from the call on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.node.events.subscribe()
    }

    /// A reader of the changes of presence on this node: which of its sessions came online and went
    /// offline. The reader begins after the change `after`. A new reader gets the changes of the
    /// last seconds first: so it hears of the end of each session that
    /// [`presence`](Self::presence) may still name after the reader was made. No login waits for a
    /// reader, however slowly it reads. The changes of other nodes are read on those nodes.
    #[must_use]
    pub fn changes(&self, after: Option<ChangeId>) -> ChangeReader {
        let recent = self.node.settings.timers.grace_of(true) + LOGOUT_TAKES;
        ChangeReader::new(&self.node.changes, after, recent)
    }

    /// A reader of what this node does to accounts: it stores messages, bans, and lifts bans. The
    /// reader begins after the change `after`, or with the next change. It is as the reader of
    /// [`changes`](Self::changes).
    #[must_use]
    pub fn account_changes(&self, after: Option<ChangeId>) -> ChangeReader<AccountChange> {
        ChangeReader::new(&self.node.account_changes, after, Duration::ZERO)
    }

    /// Refuses further logins, ends every session with code 6, gives the clients the grace period
    /// to leave and the programs the time to save, and releases the node's lease.
    ///
    /// # Cancel safety
    /// Safe: another call continues where this one stopped.
    pub async fn shutdown(&self) {
        let node = &self.node;
        node.refuse_logins();
        let saves = node.registry.all().iter().any(|live| live.saves);
        let grace = node.settings.timers.grace_of(saves);
        let until = node.clock.now() + grace + Duration::from_millis(250);
        loop {
            // A login that was in progress may be admitted after one pass over the sessions, so one
            // pass is not enough.
            for live in node.registry.all() {
                if live.phase() <= Phase::Active {
                    node.end_session(&live, Offline::new(Code::Draining), true, |_| {});
                }
            }
            if node.registry.len() == 0 || node.clock.now() >= until {
                break;
            }
            node.clock.sleep(Duration::from_millis(20)).await;
        }
        node.retire_all().await;
        node.tasks.stop_and_wait().await;
        // If a delete is still pending, the node stays on the roster. Another node then finds the
        // dead incarnation and removes its records.
        if !node.retries.has_pending() {
            node.leave_roster().await;
        }
    }
}

impl KickOut {
    /// Logs a client in. Every check that can refuse the login without the record runs before the
    /// account's lock is taken. The lock is held around one read and one write. Older sessions are
    /// kicked after the lock was released.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a resume token that is not valid; failures of the store.
    /// After [`ErrorKind::OutcomeUnknown`] the login counts as not admitted; a session that its
    /// write may have left is removed in the background.
    ///
    /// # Cancel safety
    /// Safe: a login that is dropped before its write stops, and a login that is dropped later is
    /// logged out.
    pub async fn login(&self, login: Login) -> Result<LoginOutcome> {
        let caller_gone = CancellationToken::new();
        let _cancel_on_drop = caller_gone.clone().drop_guard();
        let (answer, outcome) = oneshot::channel();
        let run = LoginRun {
            node: Arc::clone(&self.node),
            started: self.node.clock.now(),
            login,
            caller_gone,
        };
        self.node.tasks.spawn(async move {
            let outcome = Box::pin(run.run_to_end()).await;
            // The send fails if the caller dropped the future. The admitted session is then
            // dropped, and the drop logs the session out.
            drop(answer.send(outcome));
        });
        outcome.await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Internal,
                "the task of a login ended without an answer",
            ))
        })
    }
}

impl KickOut {
    /// The location of the account's newest session, by a linearizable read; `None` if the account
    /// has no session. Sessions of dead nodes do not count.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn route(&self, uid: &Uid) -> Result<Option<Location>> {
        let current = self.node.locate(uid).await?;
        Ok(current.into_iter().next())
    }

    /// The locations of the current sessions of many accounts, in the order of `uids`: who is
    /// online, with which devices, since when. The records are read together, and each read is
    /// linearizable. An account without a session has an empty list, and an account whose state is
    /// not known has its own error.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn presence(&self, uids: &[Uid]) -> Result<Vec<Result<Vec<Location>>>> {
        self.node.locate_many(uids).await
    }

    /// The locations of all sessions that a message addresses, the newest first. The read is the
    /// same as in [`route`](Self::route).
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn addressed(&self, uid: &Uid, message: &Message) -> Result<Vec<Location>> {
        self.node.locate_addressed(uid, message).await
    }

    /// Delivers a message to every current session that the message addresses, on all nodes at the
    /// same time. Returns one receipt for each such session.
    ///
    /// # Errors
    /// Failures of the store before anything was delivered.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown.
    pub async fn deliver(&self, uid: &Uid, message: Message) -> Result<Vec<Receipt>> {
        self.node.deliver(uid, &message).await
    }

    /// Delivers one message to many accounts, to each as [`deliver`](Self::deliver) does. The
    /// records of the accounts are read together, and 32 accounts get messages at the same time.
    /// The results are in the order of `uids`. The failure of one account does not fail the others.
    /// An account whose turn does not come within `limit` gets nothing, and its result is
    /// [`ErrorKind::Timeout`]. A delivery that has begun by then takes its own bounded time.
    ///
    /// # Errors
    /// Failures of the store before anything was delivered.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcomes unknown.
    pub async fn deliver_to_many(
        &self,
        uids: &[Uid],
        message: &Message,
        limit: Duration,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.node.deliver_to_many(uids, message, limit).await
    }

    /// Notes that a message was stored for the sessions that missed it, by the receipts of its
    /// delivery. Call this after the message was stored. If such a session still lives, its node
    /// lets it hand out the stored messages: at once on this node, and on another one as soon as
    /// that node can be called.
    pub fn hand_out_later(&self, uid: &Uid, receipts: &[Receipt]) {
        self.node.note_stored(uid, receipts);
    }

    /// Records that a message was stored until its account, or its device, logs in.
    pub fn stored(&self, uid: &Uid, message: &Message) {
        self.node.events.emit(Transition::Stored, |event| {
            event.uid = Some(uid.clone());
            event.device.clone_from(&message.to_device);
            event.message = Some(message.id.clone());
        });
        let (message, device) = (message.id.clone(), message.to_device.clone());
        let news = AccountNews::Stored { message, device };
        self.node.account_changes.record_news(uid, news);
    }
}

impl KickOut {
    /// Refuses further logins and ends the sessions of this node with code 6, `rate` of them per
    /// second. Another call changes the rate. The node keeps its lease and serves the remaining
    /// sessions.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) for a rate of
    /// zero. After a failure of the store the node drains all the same, but other nodes do not see
    /// the drain.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn drain(&self, rate: u32) -> Result<()> {
        self.node.begin_drain(rate).await
    }

    /// Takes logins again. A session that has ended stays ended.
    ///
    /// # Errors
    /// Failures of the store. The node takes logins all the same, but other nodes still see the
    /// drain.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn undrain(&self) -> Result<()> {
        self.node.end_drain().await
    }

    /// Whether this node takes logins.
    #[must_use]
    pub fn state(&self) -> NodeState {
        self.node.state()
    }

    /// The nodes that hold their lease, in order of their names. A node that this one cannot call
    /// has the reason in [`NodeInfo::unreachable`].
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        let mut nodes = self.node.live_nodes().await?;
        for it in &mut nodes {
            let failure = self.node.peers.failure_of(&it.node);
            it.unreachable = failure.map(|error| error.to_string());
        }
        Ok(nodes)
    }
}

impl KickOut {
    /// Answers a kick from a peer: ends exactly the session that the kick names. Does not wait for
    /// the program of the session: [`KickResult::Saving`] says that it may still save.
    ///
    /// # Errors
    /// [`PeerError::NotSent`] when the kick is for another node, or for a newer incarnation than
    /// this one. Such a kick reached the wrong process, and its session may be alive in another
    /// process.
    pub fn handle_kick(&self, request: &KickRequest) -> Result<KickResult, PeerError> {
        self.node.handle_kick(request)
    }

    /// Answers a delivery from a peer. The delivery is accepted only for exactly the session that
    /// is active here, and only within the node's lease. The call ends when the session's
    /// connection took the message, or after `request.within` at the latest.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown.
    pub async fn handle_deliver(&self, request: DeliverRequest) -> DeliverResult {
        self.node.deliver_here(request).await
    }

    /// Answers a peer that stored messages for these accounts while it could not call this node:
    /// each of their sessions here gets the order to hand out the stored messages
    /// ([`Session::hand_out_asked`](crate::Session::hand_out_asked)).
    pub fn handle_hand_out(&self, uids: &[Uid]) {
        self.node.hand_out_here(uids);
    }

    /// Idle time of each of the account's sessions on this node: the answer to
    /// [`Peers::idle`](crate::Peers::idle).
    #[must_use]
    pub fn handle_idle(&self, uid: &Uid) -> Vec<(SessionKey, Duration)> {
        let node = &self.node;
        node.registry.idle_times(uid, node.clock.now())
    }
}
