//! Repeats of a change or a read when another client wrote in between: the limit, the pauses and
//! the count.
//!
//! Invariant: every repetition is counted in the metric and for
//! [`UnreadCounters::retries`](super::UnreadCounters::retries).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, Error, ErrorKind};

use super::counter::Counter;

const RETRIES: &str = "distlock_unread_retries_total";

/// The largest number of attempts at one change or read. A change or read fails when other clients
/// wrote in between at each of these attempts.
pub const TRIES: u32 = 64;

/// The error of a change or a read after [`TRIES`] attempts, when other clients wrote in between
/// each time.
pub(super) fn too_contended_error(counter: &Counter) -> Error {
    let says = format!("others changed the counters of {counter} each of {TRIES} times");
    Error::new(ErrorKind::Unavailable, says)
}

/// The number of repeated changes and reads, and the pauses before each of them.
#[derive(Clone, Debug)]
pub(super) struct Retries {
    /// The recipe's name in the metric.
    pub(super) mode: &'static str,
    clock: Arc<dyn Clock>,
    /// The number of repetitions so far. Clones share this number.
    repeated: Arc<AtomicU64>,
}

impl Retries {
    pub(super) fn new(mode: &'static str, clock: Arc<dyn Clock>) -> Self {
        metrics::describe_counter!(RETRIES, "Changes of unread counters that started again");
        Self {
            mode,
            clock,
            repeated: Arc::default(),
        }
    }

    /// Counts a repetition after `attempts` attempts, and pauses before it. The second attempt
    /// follows without a pause, because often no other client competes any more. Each later pause
    /// has a random length below a limit that doubles from 1 ms to 32 ms, so that competitors write
    /// at different times.
    pub(super) async fn pause_before_retry(&self, attempts: u32) {
        metrics::counter!(RETRIES, "mode" => self.mode).increment(1);
        self.repeated.fetch_add(1, Ordering::Relaxed);
        if attempts > 1 {
            let most = 250 << attempts.min(7);
            let pause = Duration::from_micros(fastrand::u64(0..most));
            self.clock.sleep(pause).await;
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }
}
