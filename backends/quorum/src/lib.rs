//! One lock on a majority of independent stores.
//!
//! A lock is held when more than half of the members hold it for the same owner. So the loss of a
//! minority loses no lock, and needs no replication between the members. Members are 3, 5 or 7
//! stores of any mixture: Redis servers, databases, stores in memory.
//!
//! # Algorithm
//!
//! An acquire is a round under an owner of its own. The round asks all members at once. When a
//! majority has granted, its token is the highest of their tokens; members with a lower token are
//! raised to it, in a step that compares the owner. The lock is held when a majority has confirmed
//! that token. Two majorities share a member, and the token of this member's next grant is higher.
//! So tokens rise, which the published Redlock does not promise.
//!
//! A member that has lost its memory could grant a lock that is held. So each member has a marker,
//! a record with the member's epoch. A member without a marker, or with another epoch, is silent
//! until every lease that it may have forgotten has ended: 1.25 times the longest lease.
//!
//! # Guarantees and their limits
//!
//! - The guarantees of one store hold while a majority of the members keeps its memory and its
//!   clock. They also hold when any member is stopped, slow, cut off or restarted.
//! - Two guards can be valid at once if the clock of a counted member steps forward during a lease.
//!   The token still orders the two, as long as the step is shorter than a quarter of the longest
//!   lease.
//! - A quorum has no queue of its own, no hand-over and no tickets, and keeps no records.
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | [`QuorumDriver`]: `quorum:` | `driver`, `config` |
//! | [`QuorumLock`]: `DistLock` | `lock` |
//! | the votes of one round, and what follows from them | `round` |
//! | the requests of a round | `run` |
//! | the leases of this process, their renewal and release | `leases` |
//! | the marker of a member: whether it may vote | `marker` |
//! | who writes markers | `admission` |
//! | what an operator does | [`init`], [`show`], [`readmit`], [`reconfigure`] |
//! | a waiter, and its place at a member | `wait` |

mod admin;
mod admission;
mod config;
mod doctor;
mod driver;
mod leases;
mod lock;
mod marker;
mod reads;
mod records;
mod round;
mod run;
mod shared;
mod wait;

pub use admin::{MarkerReport, MemberReport, init, readmit, reconfigure, show};
pub use driver::QuorumDriver;
pub use lock::QuorumLock;
