//! The parts of a node that each connection of a client needs.

use std::{sync::Arc, time::Duration};

use distlock_core::Clock;
use distlock_kickout::{Class, KickOut};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::SendLimits;
use crate::{
    inbox::OfflineStore,
    services::{MaySend, WebSaver},
    token::TokenKey,
};

/// The parts of a node that the task of each session needs.
#[derive(Clone, Debug)]
pub(crate) struct FrontContext {
    pub(crate) kick: KickOut,
    pub(crate) key: TokenKey,
    /// The classes that a client may name; `None` = any.
    pub(crate) classes: Option<Arc<[Class]>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) inbox: Arc<dyn OfflineStore>,
    pub(crate) limits: Arc<SendLimits>,
    /// The check of each message; without this check every account may send to every account.
    pub(crate) may_send: Option<Arc<dyn MaySend>>,
    /// The service that saves after each session; without it clients may save by themselves.
    pub(crate) saver: Option<WebSaver>,
    pub(crate) heartbeat: Duration,
    pub(crate) grace: Duration,
    pub(crate) login_timeout: Duration,
    pub(crate) max_frame: usize,
    pub(crate) connections: TaskTracker,
    /// Ends every connection at once.
    pub(crate) abort_all: CancellationToken,
    /// Whether a proxy names the client of a WebSocket in `X-Forwarded-For`.
    pub(crate) forwarded: bool,
}

impl FrontContext {
    /// Returns the output of a future, or `None` after the time limit. The timer is polled first.
    /// Otherwise a future that is always ready would use up the task's budget, and the timer would
    /// never be polled.
    pub(super) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.clock.sleep(limit) => None,
            output = future => Some(output),
        }
    }
}
