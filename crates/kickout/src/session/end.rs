//! Ends sessions of this node with a notice.
//!
//! A session gets one notice: the first one. The connection is closed elsewhere, after the client
//! got the notice.

use std::{sync::Arc, time::Duration};

use crate::{
    events::Events,
    model::{
        event::{Event, Transition},
        notice::{Offline, Retry},
    },
    session::live::LiveSession,
    wait::jitter,
};

/// Period over which the clients of an ending node come back.
const RETURN_SPREAD: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct SessionEnder {
    pub(crate) events: Arc<Events>,
    pub(crate) grace: Duration,
}

impl SessionEnder {
    /// Supersedes a session. `listed` says whether the directory may still name it. Returns whether
    /// this call ended it.
    pub(crate) fn end(
        &self,
        live: &LiveSession,
        notice: Offline,
        listed: bool,
        fill: impl FnOnce(&mut Event),
    ) -> bool {
        let mut notice = notice.with_grace(self.grace);
        if notice.retry == Retry::Now {
            // Many sessions may end at once. The random delay keeps their clients from returning
            // together.
            notice = notice.with_retry_after(jitter(RETURN_SPREAD));
        }
        let (code, by_device, by_gen) = (notice.code, notice.by_device.clone(), notice.r#gen);
        if !live.supersede(notice, listed) {
            return false;
        }
        self.events.emit(Transition::Superseded, |event| {
            live.describe(event);
            event.code = Some(code);
            event.by_device = by_device;
            event.by_gen = by_gen;
            fill(event);
        });
        true
    }
}
