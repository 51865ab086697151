//! Drain: a node that is about to stop refuses logins and ends its sessions at a bounded rate.
//!
//! The drain continues in a new incarnation of the node. The drain never closes a connection; the
//! clients leave by themselves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{Error, ErrorKind, Result, sync::Mutex};
use tokio_util::sync::CancellationToken;

use crate::{
    model::{
        event::Transition,
        node::{DrainMark, NodeState},
        notice::{Code, Offline},
    },
    node::Node,
    state::live_session::Phase,
};

/// Most batches per second. At more sessions per second, each batch ends several sessions.
const MAX_BATCHES_PER_SECOND: u32 = 20;

/// The drain of this node.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// Whether this node refuses logins.
    refuses_logins: AtomicBool,
    /// Stops the drain in progress; `None` without one.
    running: Mutex<Option<CancellationToken>>,
}

impl Node {
    /// Whether a drain was begun and has not ended.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.running.lock().is_some()
    }

    /// Refuses further logins and ends the sessions, `rate` of them per second.
    pub(crate) async fn begin_drain(self: &Arc<Self>, rate: u32) -> Result<()> {
        if rate == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "drain rate is 0: at least 1 session a second is needed",
            ));
        }
        let stop = self.tasks.stop.child_token();
        if let Some(before) = self.drain.running.lock().replace(stop.clone()) {
            before.cancel();
        }
        self.refuse_logins();
        let name = format!("{rate} sessions a second");
        self.events.emit(Transition::NodeDraining, |event| {
            event.result = Some(name);
        });
        self.tasks
            .spawn(Arc::clone(self).drain_sessions(rate, stop));
        self.publish_state(NodeState::Draining).await
    }

    /// Stops the drain, so that the node takes logins again.
    pub(crate) async fn end_drain(&self) -> Result<()> {
        if let Some(before) = self.drain.running.lock().take() {
            before.cancel();
            self.drain.refuses_logins.store(false, Ordering::Release);
            self.events.emit(Transition::NodeDraining, |event| {
                event.result = Some("over".into());
            });
        }
        self.publish_state(NodeState::Up).await
    }

    /// Whether this node refuses logins, because of a drain or a shutdown.
    pub(crate) fn is_refusing_logins(&self) -> bool {
        self.drain.refuses_logins.load(Ordering::Acquire)
    }

    /// Refuses further logins.
    pub(crate) fn refuse_logins(&self) {
        self.drain.refuses_logins.store(true, Ordering::Release);
    }

    /// Whether this node takes logins.
    pub(crate) fn state(&self) -> NodeState {
        if self.is_refusing_logins() {
            NodeState::Draining
        } else {
            NodeState::Up
        }
    }

    /// Ends active sessions in batches, `rate` of them per second, until `stop` is cancelled.
    async fn drain_sessions(self: Arc<Self>, rate: u32, stop: CancellationToken) {
        let batch = rate.div_ceil(MAX_BATCHES_PER_SECOND);
        let pause = Duration::from_secs(1) * batch / rate;
        let at_once = usize::try_from(batch).unwrap_or(usize::MAX);
        loop {
            let leaving: Vec<_> = self
                .registry
                .all()
                .into_iter()
                .filter(|live| live.phase() == Phase::Active)
                .take(at_once)
                .collect();
            for live in leaving {
                if self.end_session(&live, Offline::new(Code::Draining), true, |_| {}) {
                    metrics::counter!("distlock_sessions_drained_total").increment(1);
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.clock.sleep(pause) => {}
            }
        }
    }

    /// Writes the drain mark for a new incarnation, if the node drains.
    pub(crate) async fn publish_drain_mark(&self) {
        if self.is_draining()
            && let Err(error) = self.publish_state(NodeState::Draining).await
        {
            tracing::warn!(
                node = %self.this.id, %error,
                "the drain mark could not be written, so other nodes do not see that this one \
                 drains"
            );
        }
    }

    /// Writes or removes the drain mark. Other nodes read this node's state from that mark.
    async fn publish_state(&self, state: NodeState) -> Result<()> {
        let boot = self.this.current_incarnation().map(|own| own.boot);
        let mark = boot
            .filter(|_| state == NodeState::Draining)
            .map(|boot| DrainMark { boot });
        self.directory
            .set_drain_mark(&self.this.id, mark.as_ref())
            .await
    }
}
