//! The ready-made kick-out node: clients connect by WebSocket or raw TCP, nodes tell each other by gRPC, and whichever store is
//! configured arbitrates.
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
//! let gateway = Gateway::start(config, store).await?; // checks, binds, takes the node's lease, serves
//! println!("{}", serde_json::to_string(gateway.ready()).unwrap()); // {"event":"ready","node":"n1","listen":"127.0.0.1:..",..}
//! let mut events = gateway.events(); // one serialisable `Event` per transition
//! # let shutdown = std::future::ready(());
//! gateway.run(shutdown).await // serves until the future ends; then clients are told and the lease is given back
//! # }
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! [`run`] does all of it in one call, with a closure for the announcement; [`Gateway::builder`]
//! takes a store for messages, a check of accounts and one of messages of your own. What clients
//! and nodes say to each other is in proto/README.md.
//!
//! # Map
//!
//! `config` is the `[gateway]` table; `node` the listeners, the start and the end; `front` what
//! clients see, over what `listen` accepts (`machine` is one connection from its first frame to its end, behind `ws` and `tcp`
//! alike); `peer` what nodes ask of each other; `admin` the admin HTTP and `page` the live page
//! beside it; `token` the login tokens; `inbox` the messages for accounts that are not logged in;
//! `profiles` and `may_send` the services that are asked about each login and each message, and
//! `web` how; `sender` the messages of the program's own servers.
//!
//! # What holds
//!
//! - Nothing is asked of the store for a client that has not shown a good token, and such a client is sent away after a while.
//! - A session that ends is told before its connection does: the notice has a place of its own and overtakes what is queued.
//! - The client closes first; one that does not within the grace is cut off by a reset, so that nothing lingers on the server's
//!   port.
//! - Nodes call each other with a token for each call, signed by a key that they have in common; the admin HTTP needs a token.
//! - What is beyond loopback speaks TLS, unless the configuration says that it need not.

mod admin;
mod bearer;
mod config;
mod front;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod inbox;
mod listen;
mod metering;
mod node;
mod page;
mod peer;
mod send_api;
mod services;
mod takeovers;
mod token;

pub use config::{ClientAddress, GatewayConfig, PeerAuth, Secret};
pub use distlock_kickout::{Event, Uid};
pub use inbox::{OfflineStore, RecordsInbox};
pub use metering::install_metrics;
pub use node::{Builder, Certificates, Gateway, Ready, run};
pub use services::{MaySend, Permission, connector, root_cause};
pub use token::{Claims, TokenKey, mint, mint_for_class};
