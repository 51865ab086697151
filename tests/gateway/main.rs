//! Whole gateways: two or three `distlock gateway run` processes over a real store, real WebSocket
//! clients, and faults. After each scenario the checker holds what every node and every client saw
//! against the flow's invariants.
//!
//! | file | what is in it |
//! |---|---|
//! | `world.rs` | the nodes, the store, the wires between them, and the history |
//! | `client.rs`, `wire.rs`, `http.rs` | the clients, and what carries their frames; what administrators ask |
//! | `settle.rs` | waiting for peace, and the verdict |
//! | `scenarios.rs`, `orders.rs`, `profiles.rs` | what happens; what operators order and clients intend; slow profiles |
//! | `outside.rs` | a node whose lease is deleted; what clients and operators see besides |
//! | `steps.rs` | each step of a takeover fails once |
//! | `idle.rs` | what nodes cost while nothing happens |
//! | `messages.rs`, `senders.rs` | acknowledged messages, and accounts with several devices; who may send |
//! | `strangers.rs` | what strangers may make a node keep |
//! | `machine.rs` | how late a busy machine is, on top of the documented slack |
//! | `matrix.rs` | which scenario runs over which store, and why the others do not |
//! | `sqlite.rs`, `servers.rs` | the scenarios over each store |
//! | `failover.rs` | a store that forgets what it had acknowledged |
//! | `page.rs` | the live page, in a browser |
//! | `variants.rs` | flows that are broken, in this process, which the checker must catch |
//! | `flow.rs`, `saboteur.rs` | the nodes and clients of these, and what is wrong with them |
#![expect(
    clippy::disallowed_methods,
    reason = "other processes live in real time: there is no clock to inject into them"
)]

mod client;
mod failover;
mod flow;
mod http;
mod idle;
mod machine;
mod matrix;
mod messages;
mod orders;
mod outside;
mod page;
mod profiles;
mod saboteur;
mod scenarios;
mod senders;
mod servers;
mod settle;
mod sqlite;
mod steps;
mod strangers;
mod variants;
mod wire;
mod world;
