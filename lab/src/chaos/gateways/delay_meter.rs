//! How late a busy machine lets its processes run.
//!
//! The documented slack is that of a machine that has time. What a machine without time takes
//! longer is measured here, apart from all that is tested, and added to it.

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

/// Of how many wake-ups one measurement consists: as many as a login needs on its way through the
/// processes, with its calls to a store and to another node.
const WAKE_UPS: usize = 64;
const PAUSE: Duration = Duration::from_millis(50);

/// Measures until it is dropped.
#[derive(Debug)]
pub(super) struct DelayMeter {
    worst: Arc<Mutex<Micros>>,
    over: Arc<AtomicBool>,
}

impl DelayMeter {
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

    /// By how much things may have been late on this machine so far.
    pub(super) fn late(&self) -> Duration {
        let worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_micros(*worst)
    }
}

impl Drop for DelayMeter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
