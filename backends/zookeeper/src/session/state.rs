//! One session with the ensemble: its connection, the proof that it lives, its end.
//!
//! # What proves that a session lives
//! A chain of requests on one connection, of which the last one is a committed write:
//! [`proof`](crate::session::proof) says why. A task of the session sends a request in each period, so that
//! any write can complete a chain: what locks and releases is proof as well. The client's own
//! verdict (it calls a session expired after 1.4 timeouts) would come too late.
//!
//! A session that is not answered any more is given up before its last lease would have run out,
//! and nothing more is sent for it: requests that arrive and whose answers do not would keep its
//! locks from everybody.
//!
//! # Reconnects
//! Some servers answer a reconnect with a new session and do not say so. After each reconnect nothing counts as proof
//! until a node that was just created has told whose it is.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Epoch, LossReason, Moment, Result};
use tokio::{
    runtime::Handle as Runtime,
    sync::{Notify, watch},
};
use zookeeper_client as zk;

use super::{
    proof::{self, ProofChain},
    pump::Line,
};
use crate::{
    config::AclPolicy,
    ensemble::Ensemble,
    error::{Access, closed, no_answer, not_connected, session_ended, unanswered},
    names::Layout,
    nodes::{Nodes, runs::Runs},
};

/// One session.
pub(crate) struct Session {
    pub(super) ensemble: Arc<Ensemble>,
    /// `None` once it is being closed: the client says goodbye when its last clone is gone.
    pub(super) client: Mutex<Option<Arc<zk::Client>>>,
    pub(super) id: i64,
    pub(super) timeout: Duration,
    pub(super) longest_lease: Duration,
    pub(super) epoch: Mutex<Epoch>,
    pub(super) link: watch::Sender<Link>,
    pub(super) proof: Mutex<ProofChain>,
    /// What ends the client's tasks at once.
    pub(super) line: Line,
    /// When the proof was begun that is on its way: one at a time, as long as it does not take too long.
    pub(super) proving: Mutex<Option<Moment>>,
    pub(super) proof_is_over: Notify,
    ended: watch::Sender<Option<LossReason>>,
    pub(crate) nodes: Nodes,
    pub(crate) runs: Runs,
}

/// The connection below a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) up: bool,
    /// Whether the connection is known to carry this session and not another one.
    pub(super) verified: bool,
    /// Goes up with every reconnect.
    pub(super) generation: u64,
}

/// A request that, once it is answered, proves that the session lived when it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Moment,
    pub(crate) generation: u64,
}

impl Session {
    /// Takes over a client that has just connected.
    ///
    /// `states` has seen every state since the connection was made. The session was opened at
    /// `opened` or later.
    pub(crate) fn start(
        ensemble: &Arc<Ensemble>,
        client: zk::Client,
        states: zk::StateWatcher,
        line: Line,
        epoch: Epoch,
        tick: Duration,
        opened: Moment,
    ) -> Arc<Self> {
        let proof = ProofChain::new(client.session_timeout(), tick, opened);
        let session = Arc::new(Self {
            ensemble: Arc::clone(ensemble),
            id: client.session_id().0,
            timeout: client.session_timeout(),
            longest_lease: proof::longest_lease(client.session_timeout(), tick),
            epoch: Mutex::new(epoch),
            link: watch::Sender::new(Link {
                up: true,
                verified: true,
                generation: 0,
            }),
            proof: Mutex::new(proof),
            line,
            proving: Mutex::default(),
            proof_is_over: Notify::new(),
            ended: watch::Sender::new(None),
            nodes: Nodes::new(),
            runs: Runs::default(),
            client: Mutex::new(Some(Arc::new(client))),
        });
        session.spawn(Arc::clone(&session).follow(states));
        session.spawn(crate::queue::warden::watch_over(Arc::clone(&session)));
        session.spawn(Arc::clone(&session).keep_proving());
        session
    }

    pub(crate) const fn id(&self) -> i64 {
        self.id
    }

    /// As the ensemble granted it.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// For how long a lock is granted, at the most.
    pub(crate) const fn longest_lease(&self) -> Duration {
        self.longest_lease
    }

    /// How long a proof is good for, at the most.
    pub(crate) fn trust(&self) -> Duration {
        proof::trust(self.timeout)
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.ensemble.clock
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.ensemble.layout
    }

    pub(crate) const fn ensemble(&self) -> &Arc<Ensemble> {
        &self.ensemble
    }

    pub(crate) fn acls(&self) -> zk::Acls<'static> {
        acls(self.ensemble.config.acl)
    }

    pub(crate) fn epoch(&self) -> Epoch {
        lock(&self.epoch).clone()
    }

    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        *lock(&self.epoch) = epoch;
    }

    /// The client, while the session lives.
    pub(crate) fn client(&self) -> Result<Arc<zk::Client>> {
        match &*lock(&self.client) {
            Some(client) if self.ended().is_none() => Ok(Arc::clone(client)),
            Some(_) => Err(session_ended()),
            None => Err(closed()),
        }
    }

    /// Runs something on the backend's own thread. It must end soon after the session does.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let runtime: &Runtime = &self.ensemble.runtime;
        // The runtime ends with the supervisor, and then drops what is left.
        drop(runtime.spawn(task));
    }

    /// Waits until requests can be sent, and are answered by this session.
    pub(crate) async fn connected(&self, until: Moment) -> Result<()> {
        let ready = |link: &Link| link.up && link.verified;
        if ready(&self.link.borrow()) && self.ended().is_none() {
            return Ok(());
        }
        let mut link = self.link.subscribe();
        let mut ended = self.ended.subscribe();
        tokio::select! {
            biased;
            _ = ended.wait_for(Option::is_some) => Err(session_ended()),
            _ = link.wait_for(ready) => Ok(()),
            () = self.clock().sleep(until.since(self.clock().now())) => Err(not_connected()),
        }
    }

    /// Which connection of this session it is now.
    pub(crate) fn generation(&self) -> u64 {
        self.link.borrow().generation
    }

    /// Sends requests whose answers are waited for right afterwards.
    pub(crate) fn send<T>(&self, requests: impl FnOnce() -> T) -> T {
        self.ensemble.pump.send(requests)
    }

    /// Waits for the answer to a request until the limit.
    pub(crate) async fn answer<T>(
        &self,
        access: Access,
        until: Moment,
        reply: impl Future<Output = Result<T, zk::Error>>,
    ) -> Result<Result<T, zk::Error>> {
        self.ensemble.requests.add(1);
        let _waiting = self.ensemble.pump.waiting();
        tokio::select! {
            biased;
            answer = reply => Ok(answer.map_err(|error| match self.ended() {
                // Whatever it says, it was the end of the session.
                Some(_) => zk::Error::SessionExpired,
                None => unanswered(error),
            })),
            () = self.clock().sleep(until.since(self.clock().now())) => Err(no_answer(access)),
        }
    }

    /// Call it right before a request that passes the leader is sent.
    pub(crate) fn sending(&self) -> Sent {
        Sent {
            at: self.clock().now(),
            generation: self.link.borrow().generation,
        }
    }

    /// Why it has ended, if it has.
    pub(crate) fn ended(&self) -> Option<LossReason> {
        *self.ended.borrow()
    }

    pub(crate) async fn wait_for_end(&self) -> LossReason {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(reason) = *ended.borrow_and_update() {
                return reason;
            }
            // The sender lives in `self`, so this cannot fail.
            let _ = ended.changed().await;
        }
    }

    /// It is over: every lock on it is lost, and those who wait are told to line up again.
    pub(crate) fn end(&self, reason: LossReason) {
        let first = self
            .ended
            .send_if_modified(|ended| ended.is_none() && ended.replace(reason).is_none());
        if first {
            for node in self.nodes.take_all() {
                self.ensemble.bury(node.owner, reason);
                node.gone(reason);
            }
            self.runs.clear();
            lock(&self.client).take();
        }
    }

    /// Gives up every place in a queue, waits until no lock is held any more, and says goodbye, so that followers are
    /// woken at once. (A lock that is still held keeps its node until its lease has run out: its holder believes in it.)
    pub(crate) async fn close(self: &Arc<Self>) {
        self.nodes.emptied(self).await;
        let farewell = lock(&self.client)
            .as_ref()
            .map(|client| client.state_watcher());
        self.end(LossReason::SessionLost);
        if let Some(mut states) = farewell {
            let goodbye = async { while !states.changed().await.is_terminated() {} };
            tokio::select! {
                () = goodbye => {}
                () = self.clock().sleep(Duration::from_secs(1)) => {}
            }
        }
    }

    /// Follows the state of the connection.
    async fn follow(self: Arc<Self>, mut states: zk::StateWatcher) {
        let mut ended = self.ended.subscribe();
        loop {
            let state = tokio::select! {
                state = states.changed() => state,
                _ = ended.wait_for(Option::is_some) => return,
            };
            // Any change means that the connection was another one before; two changes may be seen as one.
            self.link.send_modify(|link| {
                link.up = false;
                link.verified = false;
                link.generation += 1;
            });
            lock(&self.proof).reconnected();
            match state {
                state if state.is_terminated() => {
                    self.end(LossReason::SessionLost);
                    return;
                }
                zk::SessionState::SyncConnected => {
                    self.link.send_modify(|link| link.up = true);
                    self.spawn(Arc::clone(&self).verify());
                }
                // Disconnected; or connected without leave to write, where there is nothing to do.
                _ => {}
            }
        }
    }

    /// Finds out whether the connection still carries this session.
    async fn verify(self: Arc<Self>) {
        let generation = self.link.borrow().generation;
        let current = |link: &Link| link.generation == generation && link.up;
        loop {
            if !current(&self.link.borrow()) || self.ended().is_some() {
                return;
            }
            let Ok(client) = self.client() else { return };
            let at = self.clock().now();
            self.ensemble.requests.add(2);
            match probe(&client, self.layout(), self.acls()).await {
                Ok(owner) if owner == self.id => {
                    let mut verified = false;
                    self.link.send_if_modified(|link| {
                        verified = current(link);
                        link.verified |= verified;
                        verified
                    });
                    if verified {
                        self.answered(Sent { at, generation }, true);
                    }
                    return;
                }
                Ok(other) => {
                    tracing::warn!(
                        ours = format_args!("{:#x}", self.id),
                        theirs = format_args!("{other:#x}"),
                        "the ensemble answers for another session than ours"
                    );
                    self.end(LossReason::SessionLost);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot verify the session yet");
                    self.clock().sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &format_args!("{:#x}", self.id))
            .field("timeout", &self.timeout)
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}

pub(crate) fn acls(policy: AclPolicy) -> zk::Acls<'static> {
    match policy {
        AclPolicy::Creator => zk::Acls::creator_all(),
        AclPolicy::Open => zk::Acls::anyone_all(),
    }
}

/// Creates a node that vanishes with its session, and tells whose it is.
pub(crate) async fn probe(
    client: &zk::Client,
    layout: &Layout,
    acls: zk::Acls<'_>,
) -> Result<i64, zk::Error> {
    let options = zk::CreateMode::EphemeralSequential.with_acls(acls);
    let (stat, sequence) = match client.create(&layout.probe, &[], &options).await {
        Err(zk::Error::NoNode) => {
            let parents = zk::CreateMode::Persistent.with_acls(acls);
            client.mkdir(&layout.root, &parents).await?;
            client.create(&layout.probe, &[], &options).await?
        }
        created => created?,
    };
    // Sent right away; nobody waits for it. What a lost connection leaves behind vanishes with the session.
    drop(client.delete(&format!("{}{sequence}", layout.probe), None));
    Ok(stat.ephemeral_owner)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
