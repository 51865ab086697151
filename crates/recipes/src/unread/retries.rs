//! Repeating a change that another client got in between of.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, Error, ErrorKind};

use super::counter::Counter;

/// How often a change is tried at most, when others are in between each time.
pub const TRIES: u32 = 64;

/// Others were in between each time.
pub(super) fn restless(counter: &Counter) -> Error {
    let says = format!("others changed the counters of {counter} each of {TRIES} times");
    Error::new(ErrorKind::Unavailable, says)
}

/// How often changes were begun anew, and the pauses before.
#[derive(Clone, Debug)]
pub(super) struct Tries {
    pub(super) mode: &'static str,
    clock: Arc<dyn Clock>,
    anew: Arc<AtomicU64>,
}

impl Tries {
    pub(super) fn new(mode: &'static str, clock: Arc<dyn Clock>) -> Self {
        Self {
            mode,
            clock,
            anew: Arc::default(),
        }
    }

    /// After so many tries: counts a further one, and waits before it. Not before the second, which
    /// often has nobody to give way to; then longer each time, and never as long as somebody else.
    pub(super) async fn again(&self, tries: u32) {
        metrics::counter!("distlock_unread_retries_total", "mode" => self.mode).increment(1);
        self.anew.fetch_add(1, Ordering::Relaxed);
        if tries > 1 {
            let most = 250 << tries.min(7);
            let pause = Duration::from_micros(fastrand::u64(0..most));
            self.clock.sleep(pause).await;
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.anew.load(Ordering::Relaxed)
    }
}
