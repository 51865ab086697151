//! The ready-made kick-out node. Clients connect by WebSocket or raw TCP, nodes call each other by
//! gRPC, and the configured store decides which session holds an account.
//!
//! ```
//! use std::time::Duration;
//! use distlock_gateway::{Gateway, GatewayConfig, Uid, mint};
//! # use distlock_core::Store;
//! # async fn example() -> distlock_core::Result<()> {
//! # let memory = distlock_memory::Memory::default();
//! let mut config = GatewayConfig::default(); // or deserialised from the `[gateway]` table
//! config.set("node", "n1")?; // flags and environment variables: by key, from text
//! config.set("listen", "127.0.0.1:0")?;
//! # config.set("peer_listen", "127.0.0.1:0")?;
//! # config.set("admin_listen", "127.0.0.1:0")?;
//! config.set("token_key", "at least thirty-two bytes of secret")?;
//! let token = mint(&config.key()?, &Uid::new("anna")?, Duration::from_secs(3600))?;
//!
//! distlock_gateway::install_metrics(); // before the store is opened
//! # let store = Store::new(memory.lock(), memory.records());
//! // The node checks the configuration, binds, takes its lease, and serves.
//! let gateway = Gateway::start(config, store).await?;
//! // {"event":"ready","node":"n1","listen":"127.0.0.1:..",..}
//! println!("{}", serde_json::to_string(gateway.ready()).unwrap());
//! let mut events = gateway.events(); // one serialisable `Event` per transition
//! # let shutdown = std::future::ready(());
//! // `run` serves until the future ends. Then the node informs its clients and releases its lease.
//! gateway.run(shutdown).await
//! # }
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
//! # runtime.unwrap().block_on(example()).unwrap();
//! ```
//!
//! [`run`] makes all of these steps in one call, with a closure for the announcement.
//! [`Gateway::builder`] takes a store for messages, a check of accounts and a check of messages.
//! The protocols of clients and nodes are in proto/README.md.
//!
//! # Map
//!
//! - `config` is the `[gateway]` table.
//! - `node` starts and ends a node with its listeners.
//! - `front` serves clients over connections of the package `distlock-listen`, by WebSocket (`ws`)
//!   and raw TCP (`tcp`): `connection` serves one from its first frame to its end, by `login`,
//!   `session_connection` and `close`.
//! - `peer` serves and makes calls between nodes.
//! - `admin` is the admin HTTP, and `page` the live page beside it.
//! - `token` holds the tokens of logins and of calls between nodes, and the public keys of logins.
//! - `inbox` stores messages for accounts that are not logged in.
//! - `services` asks web services about each login and each message.
//! - `hooks` tells other web services what happens: `receiver` keeps the queue of one of them,
//!   `sender` makes an attempt, and `address` says where a receiver may be.
//! - `send_api` takes messages of the operator's own servers, and `accounts` reads the accounts
//!   that a request names.
//!
//! # Promises
//!
//! - Nothing is requested from the store for a client that has not shown a valid token, and the
//!   connection of such a client ends after a while.
//! - A session that ends gets its notice before its connection closes: the notice has reserved room
//!   and is written before queued frames.
//! - The client closes first. A client that stays beyond the grace gets a reset, so that no closed
//!   connection keeps the server's port in use.
//! - Each call between nodes carries its own token, signed by a common key. The admin HTTP needs a
//!   token.
//! - A listener beyond loopback uses TLS, unless the configuration allows it without.

mod accounts;
mod admin;
mod bearer;
mod config;
mod front;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod hooks;
mod inbox;
mod metering;
mod node;
mod page;
mod peer;
mod send_api;
mod services;
mod takeovers;
mod token;

pub use config::{ClientAddress, GatewayConfig, HookConfig, HookEvent, PeerAuth, Secret};
pub use distlock_kickout::{Event, Uid};
pub use inbox::{OfflineStore, RecordsInbox};
pub use metering::{count_lost_events, install_metrics};
pub use node::{Builder, Gateway, Ready, Reloader, run};
pub use services::{MaySend, Permission, connector, root_cause};
pub use token::{TokenKey, mint, mint_for_class};
