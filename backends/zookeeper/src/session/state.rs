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
    sync::{Arc, Mutex},
    time::Duration,
};

use distlock_core::{Clock, Epoch, LossReason, Moment, Result};
use tokio::{
    runtime::Handle as Runtime,
    sync::{Notify, watch},
};
use zookeeper_client as zk;

use super::{
    context::StoreContext,
    io_thread::TaskGroup,
    liveness::{self, Liveness},
    tree::acls,
};
use crate::{
    error::{Access, as_connection_loss, closed, no_answer, not_connected, session_ended},
    names::Layout,
    nodes::{SessionNodes, known_queues::KnownQueues},
    sync::lock,
};

/// One session.
pub(crate) struct Session {
    pub(super) context: Arc<StoreContext>,
    /// `None` once it is being closed: the client says goodbye when its last clone is gone.
    pub(super) client: Mutex<Option<Arc<zk::Client>>>,
    pub(super) id: i64,
    pub(super) timeout: Duration,
    pub(super) longest_lease: Duration,
    pub(super) epoch: Mutex<Epoch>,
    pub(super) connection: watch::Sender<ConnectionState>,
    pub(super) liveness: Mutex<Liveness>,
    /// What ends the client's tasks at once.
    pub(super) group: TaskGroup,
    /// When the proof was begun that is on its way: one at a time, as long as it does not take too long.
    pub(super) check_began: Mutex<Option<Moment>>,
    pub(super) check_over: Notify,
    pub(super) ended: watch::Sender<Option<LossReason>>,
    pub(crate) nodes: SessionNodes,
    pub(crate) known_queues: KnownQueues,
}

/// The connection below a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionState {
    pub(super) up: bool,
    /// Whether the connection is known to carry this session and not another one.
    pub(super) verified: bool,
    /// Goes up with every reconnect.
    pub(super) generation: u64,
}

/// A request that, once it is answered, proves that the session lived when it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestStart {
    pub(crate) at: Moment,
    pub(crate) generation: u64,
}

impl Session {
    /// Takes over a client that has just connected.
    ///
    /// The session was opened at `opened` or later.
    pub(crate) fn new(
        context: &Arc<StoreContext>,
        client: zk::Client,
        group: TaskGroup,
        epoch: Epoch,
        tick: Duration,
        opened: Moment,
    ) -> Arc<Self> {
        let liveness = Liveness::new(client.session_timeout(), tick, opened);
        Arc::new(Self {
            context: Arc::clone(context),
            id: client.session_id().0,
            timeout: client.session_timeout(),
            longest_lease: liveness::longest_lease(client.session_timeout(), tick),
            epoch: Mutex::new(epoch),
            connection: watch::Sender::new(ConnectionState {
                up: true,
                verified: true,
                generation: 0,
            }),
            liveness: Mutex::new(liveness),
            group,
            check_began: Mutex::default(),
            check_over: Notify::new(),
            ended: watch::Sender::new(None),
            nodes: SessionNodes::new(),
            known_queues: KnownQueues::default(),
            client: Mutex::new(Some(Arc::new(client))),
        })
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
        liveness::trust(self.timeout)
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.context.clock
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.context.layout
    }

    pub(crate) const fn context(&self) -> &Arc<StoreContext> {
        &self.context
    }

    pub(crate) fn acls(&self) -> zk::Acls<'static> {
        acls(self.context.config.acl)
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

    /// What follows the client's states until the session is closed.
    pub(crate) fn client_states(&self) -> Option<zk::StateWatcher> {
        lock(&self.client)
            .as_ref()
            .map(|client| client.state_watcher())
    }

    /// KnownQueues something on the backend's own thread. It must end soon after the session does.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let runtime: &Runtime = &self.context.runtime;
        // The runtime ends with the supervisor, and then drops what is left.
        drop(runtime.spawn(task));
    }

    /// Waits until requests can be sent, and are answered by this session.
    pub(crate) async fn wait_connected(&self, until: Moment) -> Result<()> {
        let ready = |link: &ConnectionState| link.up && link.verified;
        if ready(&self.connection.borrow()) && self.ended().is_none() {
            return Ok(());
        }
        let mut link = self.connection.subscribe();
        let mut ended = self.ended.subscribe();
        tokio::select! {
            biased;
            _ = ended.wait_for(Option::is_some) => Err(session_ended()),
            _ = link.wait_for(ready) => Ok(()),
            () = self.context.sleep_until(until) => Err(not_connected()),
        }
    }

    /// Which connection of this session it is now.
    pub(crate) fn generation(&self) -> u64 {
        self.connection.borrow().generation
    }

    /// Sends requests whose answers are waited for right afterwards.
    pub(crate) fn send<T>(&self, requests: impl FnOnce() -> T) -> T {
        self.context.io_thread.send(requests)
    }

    /// Waits for the answer to a request until the limit.
    pub(crate) async fn answer<T>(
        &self,
        access: Access,
        until: Moment,
        reply: impl Future<Output = Result<T, zk::Error>>,
    ) -> Result<Result<T, zk::Error>> {
        self.context.requests.add(1);
        let _waiting = self.context.io_thread.count_request();
        tokio::select! {
            biased;
            answer = reply => Ok(answer.map_err(|error| match self.ended() {
                // Whatever it says, it was the end of the session.
                Some(_) => zk::Error::SessionExpired,
                None => as_connection_loss(error),
            })),
            () = self.context.sleep_until(until) => Err(no_answer(access)),
        }
    }

    /// Call it right before a request that passes the leader is sent.
    pub(crate) fn request_start(&self) -> RequestStart {
        RequestStart {
            at: self.clock().now(),
            generation: self.connection.borrow().generation,
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
                self.context.ended_leases.record(node.owner, reason);
                node.mark_gone(reason);
            }
            self.known_queues.clear();
            lock(&self.client).take();
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
