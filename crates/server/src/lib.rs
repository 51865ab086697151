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
//! config.listen = Some("127.0.0.1:0".to_owned());
//! let server = LockServer::start(config, store).await?;
//! println!("{}", server.url());
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
//! | the sockets, certificates and keys | `front` |
//! | who may do what, by the tokens of clients | `access` |
//! | one operation at the store, and its answer | `operations` |
//! | the lock table in the memory of the server, and its state file | `memory` |
//! | the unary calls | `service`, `unary`, `calls` |
//! | the messages that have not arrived whole | `pieces` |
//! | health and reflection, and the page with the metrics | `standard`, `meters` |
//! | a stream of operations: its frames, its waiters, its place among the client's connections | `session` |
//!
//! # Promises
//!
//! - A push wakes a waiter, and never grants a lock.
//! - Before a newer connection of a client is served, every operation of its older connections has
//!   ended or was never read. So an undo is never overtaken by the acquire that it undoes.
//! - A lease never lasts longer than `max_lease`.
//! - A client that does not read its answers is cut off.
//! - A server with keys carries out nothing that a client's token does not allow. A server beyond
//!   loopback has TLS, unless its options say that the network keeps others out.
//! - A stop leaves no operation without an answer, as long as its client ends the session within
//!   two seconds.
//!
//! A server that keeps the locks in its own memory ([`LockServer::start_in_memory`]) also promises:
//!
//! - A stop in order loses nothing: the next start has the same locks.
//! - After a crash nobody new is granted a lock while a lease may still run, and tokens rise.
//!   Holders that renew have their locks again, by the proof that came with the grant.
//! - A state file that is missing, damaged, older, or of another server never leads to a grant of
//!   what somebody holds: the server does not start, or it waits as after a crash.
//!
//! # Limits
//!
//! - Tickets do not survive a crash.
//! - A copy of a whole server that runs at the same time (a cloned disk) grants the same locks. The
//!   first renewal that meets a copy of the past is noticed; a present copy is not.

mod access;
mod calls;
mod config;
mod front;
mod memory;
mod meters;
mod operations;
mod pieces;
mod server;
mod service;
mod session;
mod standard;
mod unary;

pub use access::{OperationGroup, TokenGrant, mint_token};
pub use config::{ServerConfig, ServerLimits, StateOptions};
pub use distlock_listen::{MetricsPage, NamedFile, Socket, TokenKeys};
pub use front::ServerFiles;
pub use server::LockServer;
