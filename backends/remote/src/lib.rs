//! The client of distlock's lock server (`distlock serve`), behind the distlock contract.
//!
//! The store of the server decides who holds a lock. This crate sends each request of the contract
//! to the server and returns the answer. A handle has one session with one server: a stream on
//! which many operations travel in one frame, each with its own answer.
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use std::sync::Arc;
//! use distlock_core::{Store, SystemClock};
//! use distlock_remote::{Remote, RemoteConfig};
//!
//! let config = RemoteConfig::parse("//127.0.0.1:7420")?;
//! let remote = Remote::open(config, Arc::new(SystemClock)).await?;
//! let locker = Store::new(remote.lock(), remote.records()).locker();
//! let guard = locker.lock("order:42").acquire().await?;
//! # Ok(()) }
//! ```
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | the servers and the options | `config`, `driver` |
//! | the handle: its batches, and its two parts | `store` |
//! | connects to one of the servers, one attempt at a time | `link` |
//! | one connection: TCP, TLS or a Unix socket, and the token | `dial` |
//! | the operations without an answer, and the pushes of one connection | `session` |
//! | a batch: its messages and its answers | `batch` |
//! | what shows a server that has crashed which leases it has granted | `proofs` |
//! | the contract | `lock`, `wait`, `records` |
//!
//! # Promises
//!
//! - Nothing is sent twice. An operation without an answer has an unknown outcome, and the engine
//!   asks again as the same owner.
//! - A handle numbers its connections. The server serves a newer one only after everything that it
//!   read from the older ones has ended, so an undo comes after the acquire that it undoes.
//! - A push of the server wakes a waiter, and never grants a lock.

mod batch;
mod config;
mod dial;
mod driver;
mod error;
mod link;
mod lock;
mod proofs;
mod records;
mod session;
mod store;
mod wait;

pub use config::{Host, RemoteConfig, RemoteTls};
pub use driver::RemoteDriver;
pub use store::Remote;
