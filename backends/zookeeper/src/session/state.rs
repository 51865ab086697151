//! The state of one session, and the requests that are sent on it.
//!
//! A session owns its client, the state of its connection, its nodes and the reason of its end.
//! Invariant: a session ends once. Then each of its nodes is marked as gone, and the loss is
//! reported to each of its holders. A session must never return its client after its end, because a
//! request would keep the session alive at the servers.
//!
//! # The proof that a session is alive
//! A chain of requests on one connection proves that the session is alive. The last of them is a
//! committed write; `session/liveness.rs` explains why. A task of the session sends a request in
//! each period, so any write can complete a chain, including the creation or deletion of a
//! contender's node. The client library calls a session expired after 1.4 timeouts, which would be
//! too late.
//!
//! A session without answers is given up, and nothing more is sent on it. Suppose that the servers
//! received its requests and only the answers were lost. Then further requests would keep the
//! session alive at the servers, and with it nodes whose holders no longer trust them.
//!
//! # Reconnects
//! Some servers answer a reconnect with a new session and do not report that. So after each
//! reconnect no answer counts as a proof until a new node has shown the id of the session.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use distlock_backend_kit::Credentials;
use distlock_core::{Clock, Epoch, LossReason, Moment, Result, sync::Mutex};
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
};

/// One session.
pub(crate) struct Session {
    pub(super) context: Arc<StoreContext>,
    /// `None` after the session's end. The client closes the session at the servers when the last
    /// clone of this `Arc` is dropped.
    pub(super) client: Mutex<Option<Arc<zk::Client>>>,
    /// The credentials that were shown last.
    pub(super) shown: Mutex<Credentials>,
    pub(super) id: i64,
    pub(super) timeout: Duration,
    pub(super) longest_lease: Duration,
    pub(super) epoch: Mutex<Epoch>,
    pub(super) connection: watch::Sender<ConnectionState>,
    pub(super) liveness: Mutex<Liveness>,
    /// The client's tasks on the I/O thread; aborting them ends the connection at once.
    pub(super) group: TaskGroup,
    /// The moment at which the check in flight began. A second check begins only if the first takes
    /// too long.
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
    /// Whether the connection was verified to belong to this session.
    pub(super) verified: bool,
    /// A counter of reconnects.
    pub(super) number: u64,
}

/// The time at which a request was sent, and the connection. The answer proves that the session was
/// alive at that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestStart {
    pub(crate) at: Moment,
    pub(crate) connection_number: u64,
}

impl Session {
    /// Creates the session of a client that has just connected with these credentials. The session
    /// was opened at `opened` or later.
    pub(crate) fn new(
        context: &Arc<StoreContext>,
        client: zk::Client,
        credentials: Credentials,
        group: TaskGroup,
        epoch: Epoch,
        tick: Duration,
        opened: Moment,
    ) -> Arc<Self> {
        let liveness = Liveness::new(client.session_timeout(), tick, opened);
        Arc::new(Self {
            context: Arc::clone(context),
            shown: Mutex::new(credentials),
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

    /// Returns the session timeout that the ensemble granted.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the longest lease of any grant.
    pub(crate) const fn longest_lease(&self) -> Duration {
        self.longest_lease
    }

    /// Returns the longest time for which the session is trusted after the sending of a write.
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
        self.epoch.lock().clone()
    }

    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        *self.epoch.lock() = epoch;
    }

    /// Returns the client; an error after the session's end.
    pub(crate) fn client(&self) -> Result<Arc<zk::Client>> {
        match &*self.client.lock() {
            Some(client) if self.end_reason().is_none() => Ok(Arc::clone(client)),
            // `end` has set the reason and does not hold this mutex yet. A request that was sent
            // now would extend a session whose holders have learned of its loss.
            Some(_) => Err(session_ended_error()),
            None => Err(closed_error()),
        }
    }

    /// Returns a watcher of the client's states, which stays usable after the session's end; `None`
    /// when the session has already ended.
    pub(crate) fn watch_client_states(&self) -> Option<zk::StateWatcher> {
        self.client
            .lock()
            .as_ref()
            .map(|client| client.state_watcher())
    }

    /// Runs a task on the backend's own runtime. The task must end soon after the session's end.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let runtime: &Runtime = &self.context.runtime;
        // The task is detached. The runtime ends with the supervisor, and drops the remaining
        // tasks.
        drop(runtime.spawn(task));
    }

    /// Waits for a connection that was verified to belong to this session.
    pub(crate) async fn wait_connected(&self, until: Moment) -> Result<()> {
        let ready = |state: &ConnectionState| state.up && state.verified;
        if ready(&self.connection.borrow()) && self.end_reason().is_none() {
            return Ok(());
        }
        let mut connection = self.connection.subscribe();
        let mut ended = self.ended.subscribe();
        let connected = async {
            tokio::select! {
                biased;
                _ = ended.wait_for(Option::is_some) => Err(session_ended_error()),
                _ = connection.wait_for(ready) => Ok(()),
            }
        };
        let connected = self.context.at_most_until(until, connected).await;
        connected.unwrap_or_else(|| Err(not_connected_error()))
    }

    /// Returns the number of the present connection of this session.
    pub(crate) fn connection_number(&self) -> u64 {
        self.connection.borrow().number
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
        // After a standstill both may be due, and an answer that is there is used.
        match self.context.at_most_until(until, reply).await {
            Some(answer) => Ok(answer.map_err(|error| match self.end_reason() {
                // The client reports the end of the session by several errors.
                Some(_) => zk::Error::SessionExpired,
                None => as_connection_loss(error),
            })),
            None => Err(no_answer_error(access)),
        }
    }

    /// Returns the present time and connection, for a request that is about to be sent. If the
    /// request passes the leader, `note_answer` takes its answer with this value.
    pub(crate) fn request_start(&self) -> RequestStart {
        RequestStart {
            at: self.clock().now(),
            connection_number: self.connection.borrow().number,
        }
    }

    /// Returns the reason of the session's end; `None` while the session lives.
    pub(crate) fn end_reason(&self) -> Option<LossReason> {
        *self.ended.borrow()
    }

    /// Waits until the session has ended, and returns the reason.
    pub(crate) async fn wait_for_end(&self) -> LossReason {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(reason) = *ended.borrow_and_update() {
                return reason;
            }
            // This cannot fail, because `self` owns the sender.
            let _ = ended.changed().await;
        }
    }

    /// Ends the session. Each of its locks is lost, and each of its contenders has to enter its
    /// queue again.
    pub(crate) fn end(&self, reason: LossReason) {
        let first = self
            .ended
            .send_if_modified(|ended| ended.is_none() && ended.replace(reason).is_none());
        if first {
            // The reason was set before the nodes are taken. A creation that is answered meanwhile
            // either adds its node before `take_all`, or sees the reason after its `add`
            // (`queue/enter.rs`), so no node stays without its loss.
            for node in self.nodes.take_all() {
                self.context.ended_leases.remember(node.owner, reason);
                node.mark_gone(reason);
            }
            self.known_queues.clear();
            // Each holder has its loss by now. The client closes the session at the servers, and
            // the contenders behind are woken.
            self.client.lock().take();
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
