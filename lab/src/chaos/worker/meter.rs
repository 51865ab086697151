//! Measures the stalls of this process, and its memory and descriptors.
//!
//! A late notice is no defect of the library if the process was stopped or the machine was busy. A
//! thread of its own records such times.

use std::{fs, sync::Arc, thread, time::Duration};

use super::referee_client::HistoryWriter;
use crate::chaos::history::{Event, Micros, now};

/// Time between two wake-ups.
const TICK: Duration = Duration::from_millis(20);
/// A wake-up this much later than planned counts as a stall.
const LATE_US: Micros = 40_000;
/// Number of ticks between two measurements of memory and descriptors.
const MEASURE_TICKS: u32 = 10;

/// Starts the thread that measures until the process ends.
pub(super) fn start(history: Arc<HistoryWriter>) -> std::io::Result<()> {
    let watching = move || {
        let tick_us = u64::try_from(TICK.as_micros()).unwrap_or_default();
        let mut ticks = 0_u32;
        loop {
            let from = now();
            thread::park_timeout(TICK);
            let to = now();
            if to > from + tick_us + LATE_US {
                history.record(Event::Stalled { from, to });
            }
            ticks += 1;
            if ticks.is_multiple_of(MEASURE_TICKS)
                && let Some((resident_kib, descriptors)) = measure_usage()
            {
                history.record(Event::Usage {
                    at: to,
                    resident_kib,
                    descriptors,
                });
            }
        }
    };
    thread::Builder::new()
        .name("meter".into())
        .spawn(watching)
        .map(drop)
}

/// Returns the memory in KiB, and the number of open descriptors.
fn measure_usage() -> Option<(u64, u64)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let resident = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let descriptors = fs::read_dir("/proc/self/fd").ok()?.count();
    Some((resident, u64::try_from(descriptors).ok()?))
}
