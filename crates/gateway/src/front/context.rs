//! What the fronts need to serve connections.

use std::{sync::Arc, time::Duration};

use distlock_core::Clock;
use distlock_kickout::{Class, KickOut};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::SendLimits;
use crate::{inbox::OfflineStore, services::MaySend, token::TokenKey};

/// What every session's task needs.
#[derive(Clone, Debug)]
pub(crate) struct FrontContext {
    pub(crate) kick: KickOut,
    pub(crate) key: TokenKey,
    /// The classes that a client may name; `None` = any.
    pub(crate) classes: Option<Arc<[Class]>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) inbox: Arc<dyn OfflineStore>,
    pub(crate) limits: Arc<SendLimits>,
    /// Who may send to whom; everybody unless set.
    pub(crate) may_send: Option<Arc<dyn MaySend>>,
    pub(crate) heartbeat: Duration,
    pub(crate) grace: Duration,
    pub(crate) login_timeout: Duration,
    pub(crate) max_frame: usize,
    pub(crate) connections: TaskTracker,
    /// Ends every connection at once.
    pub(crate) cut: CancellationToken,
    /// A proxy says in `X-Forwarded-For` whose WebSocket it passes on.
    pub(crate) forwarded: bool,
}

impl FrontContext {
    /// What a future gives within a time. The time is looked at first: a future that reads on and on would use up what its task may
    /// do in one go, and with it the look at the time.
    pub(super) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.clock.sleep(limit) => None,
            output = future => Some(output),
        }
    }
}
