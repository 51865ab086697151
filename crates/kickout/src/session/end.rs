//! Ends sessions of this node with a notice.
//!
//! Only the first notice of a session counts. This module does not close connections; the session's
//! connection closes after its client got the notice.

use std::time::Duration;

use crate::{
    model::{
        event::{Event, Transition},
        notice::{Offline, Retry},
    },
    node::Node,
    session::live::LiveSession,
    wait::jitter,
};

/// Time over which clients are spread that reconnect when many sessions end at once.
const RETURN_SPREAD: Duration = Duration::from_secs(1);

impl Node {
    /// Ends a session with a notice. `listed` says whether the directory may still name the
    /// session; if so, its logout deletes it from the directory. `fill` adds fields to the event.
    /// Returns true if this call ended the session.
    pub(crate) fn end_session(
        &self,
        live: &LiveSession,
        notice: Offline,
        listed: bool,
        fill: impl FnOnce(&mut Event),
    ) -> bool {
        let timers = &self.settings.timers;
        let mut notice = notice.with_grace(timers.grace_of(live.saves));
        let save_until = self.clock.now() + timers.save_budget;
        if notice.retry == Retry::Now {
            // Many sessions may end at once. The random delay keeps their clients from reconnecting
            // together.
            notice = notice.with_retry_after(jitter(RETURN_SPREAD));
        }
        let (code, by_device, by_gen) = (notice.code, notice.by_device.clone(), notice.r#gen);
        if !live.supersede(notice, listed, save_until) {
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
