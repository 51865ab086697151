//! Tests of whole nodes over the memory store, with real sockets between clients, nodes and
//! administrators.

mod admin;
mod config;
mod crowd;
mod events;
mod flood;
mod hanging;
mod hooks;
mod keys;
mod lists;
mod login_keys;
mod many;
mod may_send;
mod messages;
mod net;
mod page;
mod profiles;
mod protocol;
mod roles;
mod saves;
#[path = "../../src/token/signers.rs"]
mod signers;
mod takeover;
mod tcp;
mod tls;
mod unreachable;
