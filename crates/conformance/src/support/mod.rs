//! Clients, names, steps and time for the cases.

mod context;
mod polls;
mod recording;
mod steps;

pub(crate) use crate::time::{
    SLACK, SOON, StallMeter, eventually, now, sleep, sleep_until, soon, within,
};
pub(crate) use context::Context;
pub(crate) use polls::poll_at_most;
pub(crate) use recording::RecordingBackend;
pub(crate) use steps::{
    acquire_free, acquire_hold_release, acquire_within, expect_busy, inspect_lock, join,
    release_clean, request, start,
};
