//! Measures when this process did not run, and how much it uses.
//!
//! A notice that comes late because the process was stopped, or because the machine was busy with
//! others, is no defect of the library. A thread of its own tells the two apart.

use std::{fs, sync::Arc, thread, time::Duration};

use super::referee_client::HistoryWriter;
use crate::chaos::history::{Event, Micros, now};

const TICK: Duration = Duration::from_millis(20);
/// A thread that wakes up this much later than it wanted to was kept from it.
const LATE_US: Micros = 40_000;
/// Ticks between two looks at memory and descriptors.
const READ_BOUND: u32 = 10;

pub(super) fn start(history: Arc<HistoryWriter>) -> std::io::Result<()> {
    let watching = move || {
        let tick_us = u64::try_from(TICK.as_micros()).unwrap_or_default();
        let mut ticks = 0_u32;
        loop {
            let from = now();
            thread::park_timeout(TICK);
            let to = now();
            if to > from + tick_us + LATE_US {
                history.note(Event::Stalled { from, to });
            }
            ticks += 1;
            if ticks.is_multiple_of(READ_BOUND)
                && let Some((resident_kib, descriptors)) = usage()
            {
                history.note(Event::Usage {
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

/// Memory in KiB, and open descriptors.
fn usage() -> Option<(u64, u64)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let resident = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let descriptors = fs::read_dir("/proc/self/fd").ok()?.count();
    Some((resident, u64::try_from(descriptors).ok()?))
}
