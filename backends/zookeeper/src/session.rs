//! One session with the ensemble: its connection, the proof that it lives, its end.
//!
//! # What proves that a session lives
//! A chain of requests on one connection, of which the last one is a committed write:
//! [`proof`](crate::proof) says why. A task of the session sends a request in each period, so that
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
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Epoch, LossReason, Moment, Result};
use tokio::{
    runtime::Handle as Runtime,
    sync::{Notify, watch},
};
use zookeeper_client as zk;

use crate::{
    config::AclPolicy,
    ensemble::Ensemble,
    error::{
        Access, closed, meaning, no_answer, not_connected, not_trusted, session_ended, unanswered,
    },
    names::Layout,
    nodes::{Node, Nodes},
    proof::{self, ProofChain},
    pump::Line,
    runs::Runs,
};

/// How long somebody else's proof is waited for. Renewals wait too, and must not depend on anybody.
const OTHERS_PROOF: Duration = Duration::from_millis(100);

/// Of a node whose data does not matter.
const ANY_VERSION: i32 = -1;

/// How many nodes one request checks: an answer stays far below what the servers send.
const CHECKED_AT_ONCE: usize = 500;

/// After which part of its timeout a session is given up that nobody answers for: by then its
/// leases are over, a tenth of two thirds of the timeout before the session itself would lose its
/// trust.
const SILENCE_PERCENT: u32 = 55;

/// Whose turn it is to send a proof, and since when.
struct ProofTurn<'a>(&'a Session, Moment);

impl Drop for ProofTurn<'_> {
    fn drop(&mut self) {
        let Self(session, began) = self;
        // Somebody else may have begun anew since.
        lock(&session.proving).take_if(|proving| proving == began);
        session.proof_is_over.notify_waiters();
    }
}

/// One session.
pub(crate) struct Session {
    ensemble: Arc<Ensemble>,
    /// `None` once it is being closed: the client says goodbye when its last clone is gone.
    client: Mutex<Option<Arc<zk::Client>>>,
    id: i64,
    timeout: Duration,
    epoch: Mutex<Epoch>,
    link: watch::Sender<Link>,
    proof: Mutex<ProofChain>,
    /// What ends the client's tasks at once.
    line: Line,
    /// When the proof was begun that is on its way: one at a time, as long as it does not take too long.
    proving: Mutex<Option<Moment>>,
    proof_is_over: Notify,
    ended: watch::Sender<Option<LossReason>>,
    pub(crate) nodes: Nodes,
    pub(crate) runs: Runs,
}

/// The connection below a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    up: bool,
    /// Whether the connection is known to carry this session and not another one.
    verified: bool,
    /// Goes up with every reconnect.
    generation: u64,
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
        session.spawn(crate::warden::watch_over(Arc::clone(&session)));
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

    /// Makes the reads that follow on this client as new as what a quorum has committed. Nobody
    /// waits for it: a server answers in order. It is a write without effect, because a leader that
    /// was deposed goes on answering `sync`; and it is committed also where these credentials may
    /// not read the root.
    pub(crate) fn commit_ahead(&self, client: &zk::Client) {
        self.ensemble.requests.add(1);
        drop(check(client, &[self.layout().root.clone()]));
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

    /// That request was answered. `committed` = it was a write.
    pub(crate) fn answered(&self, sent: Sent, committed: bool) {
        let now = self.clock().now();
        let mut proof = lock(&self.proof);
        // With the mutex held, because a reconnect is made known before it begins a new chain.
        let link = *self.link.borrow();
        if link.verified && link.generation == sent.generation {
            proof.answered(sent.at, now, committed);
        }
    }

    /// Makes sure that the session can be trusted for a while: for as long as `wanted`, or the
    /// least that a grant is worth giving for. Answers with the end of it. A proof that was sent at
    /// `since` or later is good enough, unless it says less than that; then a new chain is waited
    /// for, which takes a tick of the servers.
    pub(crate) async fn trusted_for(
        &self,
        wanted: Duration,
        mut since: Moment,
        until: Moment,
    ) -> Result<Moment> {
        let wanted = wanted.min(lock(&self.proof).least_trust());
        loop {
            self.prove(since, until).await?;
            let now = self.clock().now();
            let (trusted_until, pause) = {
                let proof = lock(&self.proof);
                (proof.trusted_until(), proof.next_write_in(now, wanted))
            };
            if trusted_until >= now + wanted {
                return Ok(trusted_until);
            }
            if now + pause > until {
                return Err(not_trusted());
            }
            tracing::debug!(?pause, "waiting for a proof that the session lives");
            tokio::select! {
                biased;
                _ = self.wait_for_end() => return Err(session_ended()),
                () = self.clock().sleep(pause) => {}
            }
            since = self.clock().now();
        }
    }

    /// Makes sure that a write of this session was committed that was sent at `since` or later. It
    /// checks that the nodes of the locks are there that the session holds, so it serves all of
    /// them.
    pub(crate) async fn prove(&self, since: Moment, until: Moment) -> Result<()> {
        let _turn = loop {
            let mut over = pin!(self.proof_is_over.notified());
            over.as_mut().enable();
            if lock(&self.proof).committed() >= since {
                return Ok(());
            }
            let wait = match self.begin_proof() {
                Ok(turn) => break turn,
                Err(wait) => wait,
            };
            tokio::select! {
                biased;
                () = over => {}
                () = self.clock().sleep(wait) => {}
            }
        };
        self.connected(until).await?;
        let client = self.client()?;
        let held = self.nodes.held();
        let sent = self.sending();
        let paths: Vec<_> = held.iter().map(|node| node.path()).collect();
        let root = [self.layout().root.clone()];
        let paths = if paths.is_empty() { &root[..] } else { &paths };
        // All are on their way before the first is waited for.
        let checks: Vec<_> = paths
            .chunks(CHECKED_AT_ONCE)
            .map(|paths| check(&client, paths))
            .collect();
        for (first, check) in (0..).step_by(CHECKED_AT_ONCE).zip(checks) {
            let failed = match self.answer(Access::Read, until, check).await? {
                Ok(failed) => failed,
                Err(error) => return Err(meaning(error, Access::Read)),
            };
            // A write that fails is committed too. Only the first failure is told; the rest is
            // checked next time.
            if let Some((at, zk::Error::NoNode)) = failed
                && let Some(node) = held.get(first + at)
            {
                self.removed(node);
            }
        }
        self.answered(sent, true);
        Ok(())
    }

    /// Somebody else removed a node of ours. `true` = it was not known yet.
    pub(crate) fn removed(&self, node: &Arc<Node>) -> bool {
        let news = node.gone(LossReason::Removed);
        if news {
            tracing::warn!(path = node.path(), "our node was removed by somebody else");
            self.ensemble.bury(node.owner, LossReason::Removed);
            self.nodes.remove(node);
        }
        news
    }

    /// Lets a request pass the leader in each period, and gives the session up when none is
    /// answered any more.
    async fn keep_proving(self: Arc<Self>) {
        let period = lock(&self.proof).period();
        let silence = self.timeout * SILENCE_PERCENT / 100;
        while self.ended().is_none() {
            let heard = lock(&self.proof).heard();
            tokio::select! {
                biased;
                _ = self.wait_for_end() => return,
                () = self.clock().sleep((heard + period).since(self.clock().now())) => {}
            }
            // A process that was stopped finds the answers it has missed within a moment.
            let limit = (heard + silence).max(self.clock().now() + self.timeout / 20);
            if lock(&self.proof).heard() == heard && self.beat(limit).await.is_err() {
                let now = self.clock().now();
                if now >= limit && lock(&self.proof).heard() == heard {
                    self.give_up();
                    return;
                }
                // The connection was lost: there is another one, or there will be.
                tokio::select! {
                    biased;
                    _ = self.wait_for_end() => return,
                    () = self.clock().sleep(Duration::from_millis(20)) => {}
                }
            }
        }
    }

    /// A request that passes the leader and costs it nothing.
    async fn beat(&self, until: Moment) -> Result<()> {
        self.connected(until).await?;
        let client = self.client()?;
        let sent = self.sending();
        let answer = client.sync(&self.layout().root);
        match self.answer(Access::Read, until, answer).await? {
            Ok(()) => {
                self.answered(sent, false);
                Ok(())
            }
            Err(error) => Err(meaning(error, Access::Read)),
        }
    }

    /// Nobody answers for it: it is over, and nothing is sent that would keep it alive at the
    /// servers.
    fn give_up(&self) {
        tracing::warn!(
            session = format_args!("{:#x}", self.id),
            "nobody has answered this session for {SILENCE_PERCENT} % of its timeout, giving it up"
        );
        // First, because who waits for a watch of it must stop before its client does.
        self.end(LossReason::SessionLost);
        self.ensemble.pump.cut(self.line);
    }

    /// The right to send a proof, or how long to wait for somebody else's. Whoever is at it may be on a runtime that is
    /// blocked, or may not be polled any more, so one of those who wait begins anew after a while.
    fn begin_proof(&self) -> Result<ProofTurn<'_>, Duration> {
        let mut proving = lock(&self.proving);
        let now = self.clock().now();
        if let Some(began) = *proving
            && now < began + OTHERS_PROOF
        {
            return Err((began + OTHERS_PROOF).since(now));
        }
        *proving = Some(now);
        Ok(ProofTurn(self, now))
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

/// Sends a write without effect, which fails when one of these nodes is not there. Answers with the
/// first that is not.
fn check<'a>(
    client: &'a zk::Client,
    paths: &[String],
) -> impl Future<Output = Result<Option<(usize, zk::Error)>, zk::Error>> + use<'a> {
    let mut write = client.new_multi_writer();
    let added = paths
        .iter()
        .try_for_each(|path| write.add_check_version(path, ANY_VERSION));
    let committed = added.map(|()| write.commit());
    async move {
        match committed?.await {
            Ok(_) => Ok(None),
            Err(zk::MultiWriteError::OperationFailed { index, source }) => {
                Ok(Some((index, source)))
            }
            Err(zk::MultiWriteError::RequestFailed { source }) => Err(source),
        }
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
