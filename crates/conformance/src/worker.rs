//! Worker processes hold locks for the suite. With them, a holder can be another process, and the
//! suite can kill it.
//!
//! Any program can host a worker. The suite starts it as its [`Workers`](crate::Workers) say, and
//! talks to it in lines of JSON over standard input and output:
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
//! A worker ends when its standard input is closed, so none outlives the suite.

mod client;
mod host;
mod protocol;

pub use client::{Acquired, Worker};
pub use host::run;
pub use protocol::{Ask, Command, Refused, ReleaseReport, Reply};
