//! Tests of whole gateways: two or three `distlock gateway run` processes over a real store, real
//! WebSocket clients, and faults. After each scenario the checker compares the events of every node
//! and every client with the invariants of the kick-out flow.
//!
//! | file | content |
//! |---|---|
//! | `world.rs` | the nodes, the store, the wires between them, and the history |
//! | `client.rs`, `wire.rs`, `http.rs` | the clients; the carriers of their frames; requests of administrators |
//! | `verdict.rs` | waiting until directory and clients agree, and the verdict |
//! | `scenarios.rs`, `orders.rs`, `profiles.rs` | the scenarios; orders of operators and intents of clients; slow profiles |
//! | `saves.rs` | logins that wait until the older session's client has saved |
//! | `outside.rs` | a node whose lease is deleted; health, metrics and lists of sessions |
//! | `steps.rs` | takeovers in which each step fails once |
//! | `idle.rs` | the requests of idle nodes |
//! | `messages.rs`, `senders.rs` | acknowledged messages, and accounts with several devices; permission to send |
//! | `monitoring.rs` | the board of Grafana and the alert rules, on a Prometheus that scrapes nodes |
//! | `strangers.rs` | the bound on memory that strangers make a node use |
//! | `machine.rs` | the additional delay of a busy machine, beyond the documented slack |
//! | `matrix.rs` | the stores over which each scenario runs, and the reasons for exceptions |
//! | `sqlite.rs`, `servers.rs` | the scenarios over each store |
//! | `quorum.rs` | locks on a majority of Redis servers, and records in another store |
//! | `failover.rs` | a store that forgets acknowledged writes |
//! | `javascript.rs`, `javascript_scenarios.rs` | the JavaScript client, in Node and in a browser |
//! | `proxies.rs`, `crowd.rs` | the shipped configurations of HAProxy and nginx; many clients that know only the proxy |
//! | `page.rs`, `browser.rs` | the live page, in a browser |
//! | `variants.rs` | flows in this process with a planted bug, which the checker must find |
//! | `flow.rs`, `saboteur.rs` | the nodes and clients of these flows, and the planted bugs |
#![expect(
    clippy::disallowed_methods,
    reason = "other processes live in real time: there is no clock to inject into them"
)]

mod browser;
mod client;
mod crowd;
mod failover;
mod flow;
mod http;
mod idle;
mod javascript;
mod javascript_scenarios;
mod machine;
mod matrix;
mod messages;
mod monitoring;
mod orders;
mod outside;
mod page;
mod profiles;
mod proxies;
mod quorum;
mod saboteur;
mod saves;
mod scenarios;
mod senders;
mod serve;
mod servers;
mod sqlite;
mod steps;
mod strangers;
mod variants;
mod verdict;
mod wire;
mod world;
