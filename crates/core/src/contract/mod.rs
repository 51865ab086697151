//! The contract between callers and backends: traits, requests, answers and capabilities.

pub(crate) mod capabilities;
pub(crate) mod lock;
pub(crate) mod loss;
pub(crate) mod records;

pub use lock::{
    AcquireRequest, Attempt, Contender, DistLock, Finding, Forced, Grant, HandOver, Health, Lease,
    LockInfo, LossReason, ReleaseOutcome, Renewal, Renewed, TicketStep, Verdict,
};
