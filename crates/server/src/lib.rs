//! The lock server: it serves any [`Store`](distlock_core::Store) to programs that do not open the
//! store themselves.
//!
//! The server has no lock logic of its own. Each operation of a client is one call of the contract,
//! and the store decides. The protocol is that of the package `distlock-wire`.
//!
//! ```
//! use distlock_server::{LockServer, ServerConfig};
//! # use distlock_core::Store;
//! # async fn example() -> distlock_core::Result<()> {
//! # let memory = distlock_memory::Memory::default();
//! # let store = Store::new(memory.lock(), memory.records());
//! let mut config = ServerConfig::default();
//! config.listen = "127.0.0.1:0".to_owned();
//! let server = LockServer::start(config, store).await?;
//! println!("distlock://{}", server.address());
//! # let shutdown = std::future::ready(());
//! // `run` serves until the future ends. The locks stay held.
//! server.run(shutdown).await
//! # }
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
//! # runtime.unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | the options, with their limits | `config` |
//! | starts and ends the server | `server` |
//! | one operation at the store, and its answer | `operations` |
//! | the unary calls | `service`, `unary` |
//! | a stream of operations: its frames, its waiters, its place among the client's connections | `session` |
//!
//! # Promises
//!
//! - A push wakes a waiter, and never grants a lock.
//! - Before a newer connection of a client is served, every operation of its older connections has
//!   ended or was never read. So an undo is never overtaken by the acquire that it undoes.
//! - A lease never lasts longer than `max_lease`.
//! - A client that does not read its answers is cut off.

mod config;
mod operations;
mod server;
mod service;
mod session;
mod unary;

pub use config::{ServerConfig, ServerLimits};
pub use server::LockServer;
