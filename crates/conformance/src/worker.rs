//! Worker processes: they hold locks on the suite's behalf, so that a holder can really be another process, and really die.
//!
//! Any program can host a worker; the suite starts it as [`Workers`](crate::Workers) says and talks to it in lines of JSON over standard
//! input and output:
//!
//! ```no_run
//! # async fn open(url: String) -> distlock_core::Result<distlock_core::Store> { Err(distlock_core::Error::new(distlock_core::ErrorKind::Unsupported, "yours")) }
//! # #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), distlock_conformance::Failure> {
//!     // `mytool conformance-worker`
//!     distlock_conformance::worker::run(open).await
//! }
//! ```
//!
//! A worker ends when its standard input does, so none outlives the suite.

mod client;
mod host;
mod protocol;

pub use client::{Acquired, Worker};
pub use host::run;
pub use protocol::{Ask, Command, Refused, ReleaseReport, Reply};
