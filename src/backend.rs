//! For the authors of backends: the contract, the driver by which a store is opened, and parts that
//! the built-in backends use.
//!
//! `examples/custom_backend` is a whole backend, a folder of the file system, with its tests.

#[doc(inline)]
pub use distlock_backend_kit::*;
pub use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, Deleted, DistLock, Entry, Expect,
    ExpiryClock, Fairness, FencingScope, Finding, Forced, Grant, HandOver, Health, HolderInfo,
    Lease, LeaseKind, LockInfo, LossFeed, LossReason, LossSender, Reach, Records, ReleaseOutcome,
    Renewal, Renewed, TicketStep, Verdict, Version, Wakeup, Written, check_value, threads,
};
