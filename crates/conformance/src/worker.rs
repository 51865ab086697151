//! Worker processes hold locks for the suite. With workers, a holder can be another process, and
//! the suite can kill the holder.
//!
//! Any program can host a worker. The suite starts the program that [`Workers`](crate::Workers)
//! describes. The suite and the worker exchange lines of JSON over the standard input and output of
//! the worker:
//!
//! ```no_run
//! # use distlock_core::{Error, ErrorKind, Result, Store};
//! # async fn open(url: String) -> Result<Store> {
//! #     Err(Error::new(ErrorKind::Unsupported, "yours"))
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), distlock_conformance::Failure> {
//!     // `mytool conformance-worker`
//!     distlock_conformance::worker::run(open).await
//! }
//! ```
//!
//! A worker ends when its standard input is closed, so no worker outlives the suite.

mod client;
mod host;
mod protocol;

pub use client::{Acquired, Worker};
pub use host::run;
pub use protocol::{Ask, Command, Refused, ReleaseReport, Reply, SharedWish};
