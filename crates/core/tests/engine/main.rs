//! Tests of lockers on a scripted store.
//!
//! The tests that set something for their whole process, such as the recorder of metrics, are
//! programs of their own.

#[path = "../support/mod.rs"]
mod support;

mod closing;
mod granted_owner;
mod last_clone;
mod late_requests;
mod lining_up;
mod long_ttl;
mod lost_alone;
mod lost_replies;
mod min_hold;
mod outages;
mod own_thread;
mod simulated;
mod storm;
mod tickets;
mod together;
