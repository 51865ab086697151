//! Draining: a node that is about to go takes no further login and sends its sessions elsewhere, so many a second.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use distlock_core::{Error, ErrorKind, Result};
use tokio_util::sync::CancellationToken;

use crate::{
    flow::{Inner, KickOut},
    model::{
        event::Transition,
        node::{DrainMark, NodeInfo, NodeState},
        notice::{Code, Offline},
    },
    session::live::Phase,
};

/// Rounds per second at a high rate.
const ROUNDS: u32 = 20;

/// The drain that is under way.
#[derive(Debug, Default)]
pub(crate) struct Drain(Mutex<Option<CancellationToken>>);

impl KickOut {
    /// Takes no further login and tells the sessions of this node to go elsewhere, `rate` of them a second, with code 6. Calling
    /// it again changes the rate. The node keeps its lease and serves the sessions that are left.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a rate of zero. Failures of the store: the node drains all the same, other nodes only
    /// do not see it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn drain(&self, rate: u32) -> Result<()> {
        let inner = &self.inner;
        if rate == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "drain rate is 0: at least 1 session a second is needed",
            ));
        }
        let stop = inner.stop.child_token();
        if let Some(before) = inner.drain.lock().replace(stop.clone()) {
            before.cancel();
        }
        inner.draining.store(true, Ordering::Release);
        let name = format!("{rate} sessions a second");
        inner.events.emit(Transition::NodeDraining, |event| {
            event.result = Some(name);
        });
        inner.spawn(Arc::clone(inner).send_elsewhere(rate, stop));
        inner.publish_drain(NodeState::Draining).await
    }

    /// Takes logins again. Sessions that were told to go are not called back.
    ///
    /// # Errors
    /// Failures of the store: the node takes logins all the same, other nodes only do not see it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn undrain(&self) -> Result<()> {
        let inner = &self.inner;
        if let Some(before) = inner.drain.lock().take() {
            before.cancel();
            inner.draining.store(false, Ordering::Release);
            inner.events.emit(Transition::NodeDraining, |event| {
                event.result = Some("over".into());
            });
        }
        inner.publish_drain(NodeState::Up).await
    }

    /// Whether this node takes logins.
    #[must_use]
    pub fn state(&self) -> NodeState {
        if self.inner.draining.load(Ordering::Acquire) {
            NodeState::Draining
        } else {
            NodeState::Up
        }
    }

    /// The nodes that hold their lease, by name.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        self.inner.nodes_there().await
    }
}

impl Drain {
    pub(crate) fn is_on(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    async fn send_elsewhere(self: Arc<Self>, rate: u32, stop: CancellationToken) {
        let batch = rate.div_ceil(ROUNDS);
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
                if self.end(&live, Offline::new(Code::Draining), true, |_| {}) {
                    metrics::counter!("distlock_drained_total").increment(1);
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.clock.sleep(pause) => {}
            }
        }
    }

    /// A new incarnation of a draining node goes on draining.
    pub(crate) async fn drain_again(&self) {
        if self.drain.is_on()
            && let Err(error) = self.publish_drain(NodeState::Draining).await
        {
            tracing::warn!(node = %self.node, %error, "other nodes do not see that this one drains");
        }
    }

    async fn publish_drain(&self, state: NodeState) -> Result<()> {
        let boot = self.own.now().map(|own| own.boot);
        let mark = boot
            .filter(|_| state == NodeState::Draining)
            .map(|boot| DrainMark { boot });
        self.directory.mark_drain(&self.node, mark.as_ref()).await
    }
}
