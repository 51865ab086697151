//! Measures by how much a busy machine delays its processes.
//!
//! The documented slack applies to a machine with idle time. This meter measures the extra delay of
//! a busy machine, apart from the tested nodes, and the run adds that delay to the slack.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::chaos::history::{Micros, now};

/// Number of wake-ups in one measurement: about as many as one login needs in all processes, with
/// its calls to a store and to another node.
const WAKE_UPS: usize = 64;
/// Pause between two measurements.
const PAUSE: Duration = Duration::from_millis(50);

/// Measures until the value is dropped.
#[derive(Debug)]
pub(super) struct DelayMeter {
    worst: Arc<Mutex<Micros>>,
    over: Arc<AtomicBool>,
}

impl DelayMeter {
    /// Starts two threads that wake each other up, and measures the time of each wake-up.
    pub(super) fn start() -> Self {
        let meter = Self {
            worst: Arc::default(),
            over: Arc::default(),
        };
        let (worst, over) = (Arc::clone(&meter.worst), Arc::clone(&meter.over));
        let (ask, asked) = mpsc::sync_channel::<()>(0);
        let (answer, answers) = mpsc::sync_channel::<()>(0);
        thread::spawn(move || while asked.recv().is_ok() && answer.send(()).is_ok() {});
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let from = now();
                for _ in 0..WAKE_UPS / 2 {
                    if ask.send(()).is_err() || answers.recv().is_err() {
                        return;
                    }
                }
                let took = now() - from;
                let mut worst = worst.lock().unwrap_or_else(PoisonError::into_inner);
                *worst = took.max(*worst);
                drop(worst);
                thread::park_timeout(PAUSE);
            }
        });
        meter
    }

    /// Returns the longest delay of this machine so far.
    pub(super) fn longest_delay(&self) -> Duration {
        let worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_micros(*worst)
    }
}

impl Drop for DelayMeter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
