//! The state of one session, and the requests that are sent on it.
//!
//! A session owns its client, the state of its connection, its nodes and the reason of its end.
//! Invariant: a session ends once, and then each of its nodes is marked as gone and each of its
//! holders has been told. A session must never give out its client after its end, because a request
//! would keep the session alive at the servers.
//!
//! # How a session is known to be alive
//! A chain of requests on one connection proves that the session is alive. The last of them is a
//! committed write: `session/liveness.rs` gives the reason. A task of the session sends a request
//! in each period, so any write can complete a chain, also the creation or deletion of a
//! contender's node. The client itself calls a session expired after 1.4 timeouts, which would be
//! too late.
//!
//! A session that gets no answers is given up, and nothing more is sent for it. Otherwise, if
//! requests arrived and only their answers were lost, the servers would keep the session alive, and
//! with it nodes whose holders no longer trust them.
//!
//! # Reconnects
//! Some servers answer a reconnect with a new session and do not say so. So after each reconnect no
//! answer counts as a proof until a new node has shown which session owns it.

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
    tree::acls_for,
};
use crate::{
    error::{
        Access, as_connection_loss, closed_error, no_answer_error, not_connected_error,
        session_ended_error,
    },
    names::Layout,
    nodes::{SessionNodes, known_queues::KnownQueues},
    sync::lock,
};

/// One session.
pub(crate) struct Session {
    pub(super) context: Arc<StoreContext>,
    /// `None` once the session ends. The client closes the session at the servers when the last
    /// clone of it is dropped.
    pub(super) client: Mutex<Option<Arc<zk::Client>>>,
    pub(super) id: i64,
    pub(super) timeout: Duration,
    pub(super) longest_lease: Duration,
    pub(super) epoch: Mutex<Epoch>,
    pub(super) connection: watch::Sender<ConnectionState>,
    pub(super) liveness: Mutex<Liveness>,
    /// The client's tasks on the I/O thread; aborting them ends the connection at once.
    pub(super) group: TaskGroup,
    /// When the check that is in flight began. A second check begins only when the first takes too
    /// long.
    pub(super) check_began: Mutex<Option<Moment>>,
    pub(super) check_over: Notify,
    pub(super) ended: watch::Sender<Option<LossReason>>,
    pub(crate) nodes: SessionNodes,
    pub(crate) known_queues: KnownQueues,
}

/// The state of the connection below a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionState {
    pub(super) up: bool,
    /// Whether the connection is known to belong to this session and not to another one.
    pub(super) verified: bool,
    /// Rises with every reconnect.
    pub(super) number: u64,
}

/// When a request was sent, and on which connection. Its answer proves that the session was alive
/// at that moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestStart {
    pub(crate) at: Moment,
    pub(crate) connection_number: u64,
}

impl Session {
    /// The session of a client that has just connected. It was opened at `opened` or later.
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
                number: 0,
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

    /// The session timeout that the ensemble granted.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The longest lease that a grant can have.
    pub(crate) const fn longest_lease(&self) -> Duration {
        self.longest_lease
    }

    /// The longest time that the session is trusted after the sending of a write.
    pub(crate) fn max_trust(&self) -> Duration {
        liveness::max_trust(self.timeout)
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
        acls_for(self.context.config.acl)
    }

    pub(crate) fn epoch(&self) -> Epoch {
        lock(&self.epoch).clone()
    }

    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        *lock(&self.epoch) = epoch;
    }

    /// The client, as long as the session has not ended.
    pub(crate) fn client(&self) -> Result<Arc<zk::Client>> {
        match &*lock(&self.client) {
            Some(client) if self.end_reason().is_none() => Ok(Arc::clone(client)),
            Some(_) => Err(session_ended_error()),
            None => Err(closed_error()),
        }
    }

    /// A watcher of the client's states, which outlives the session; `None` when the session has
    /// ended.
    pub(crate) fn watch_client_states(&self) -> Option<zk::StateWatcher> {
        lock(&self.client)
            .as_ref()
            .map(|client| client.state_watcher())
    }

    /// Runs a task on the backend's own thread. The task must end soon after the session ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let runtime: &Runtime = &self.context.runtime;
        // Detached: the runtime ends with the supervisor and then drops the tasks that are left.
        drop(runtime.spawn(task));
    }

    /// Waits until there is a connection that is known to belong to this session.
    pub(crate) async fn wait_connected(&self, until: Moment) -> Result<()> {
        let ready = |state: &ConnectionState| state.up && state.verified;
        if ready(&self.connection.borrow()) && self.end_reason().is_none() {
            return Ok(());
        }
        let mut connection = self.connection.subscribe();
        let mut ended = self.ended.subscribe();
        tokio::select! {
            biased;
            _ = ended.wait_for(Option::is_some) => Err(session_ended_error()),
            _ = connection.wait_for(ready) => Ok(()),
            () = self.context.sleep_until(until) => Err(not_connected_error()),
        }
    }

    /// The number of the present connection of this session.
    pub(crate) fn connection_number(&self) -> u64 {
        self.connection.borrow().number
    }

    /// Sends the requests that a closure makes. The caller must then pass each of them to
    /// [`await_answer`](Self::await_answer).
    pub(crate) fn send<T>(&self, requests: impl FnOnce() -> T) -> T {
        self.context.io_thread.send(requests)
    }

    /// Counts a request, and waits for its answer until the limit. The outer error means that no
    /// answer came in time.
    pub(crate) async fn await_answer<T>(
        &self,
        access: Access,
        until: Moment,
        reply: impl Future<Output = Result<T, zk::Error>>,
    ) -> Result<Result<T, zk::Error>> {
        self.context.requests.add(1);
        let _waiting = self.context.io_thread.count_request();
        tokio::select! {
            biased;
            answer = reply => Ok(answer.map_err(|error| match self.end_reason() {
                // The client reports the end of the session in several ways.
                Some(_) => zk::Error::SessionExpired,
                None => as_connection_loss(error),
            })),
            () = self.context.sleep_until(until) => Err(no_answer_error(access)),
        }
    }

    /// The present time and connection, for a request that is about to be sent. If the request
    /// passes the leader, its answer goes to `note_answer` with this value.
    pub(crate) fn request_start(&self) -> RequestStart {
        RequestStart {
            at: self.clock().now(),
            connection_number: self.connection.borrow().number,
        }
    }

    /// The reason of the session's end, once it has ended.
    pub(crate) fn end_reason(&self) -> Option<LossReason> {
        *self.ended.borrow()
    }

    /// Waits until the session has ended, and answers with the reason.
    pub(crate) async fn wait_for_end(&self) -> LossReason {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(reason) = *ended.borrow_and_update() {
                return reason;
            }
            // Cannot fail: the sender lives in `self`.
            let _ = ended.changed().await;
        }
    }

    /// Ends the session. Every lock on it is lost, and every contender on it has to enter its queue
    /// again.
    pub(crate) fn end(&self, reason: LossReason) {
        let first = self
            .ended
            .send_if_modified(|ended| ended.is_none() && ended.replace(reason).is_none());
        if first {
            for node in self.nodes.take_all() {
                self.context.ended_leases.remember(node.owner, reason);
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
            .field("ended", &self.end_reason())
            .finish_non_exhaustive()
    }
}
