//! For the authors of backends: the contract, the driver that opens a store, and parts that the
//! built-in backends use.
//!
//! `examples/custom_backend` is a complete backend with its tests: it stores locks in a folder of
//! the file system.

#[doc(inline)]
pub use distlock_backend_kit::*;
pub use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, Deleted, DistLock, Entry, Expect,
    ExpiryClock, Fairness, FencingScope, Finding, Forced, Grant, HandOver, Health, HolderInfo,
    Lease, LeaseKind, LockInfo, LossFeed, LossReason, LossSender, Reach, Records, ReleaseOutcome,
    Renewal, Renewed, TicketStep, Verdict, Version, Wakeup, Written, check_value, threads,
};
