//! The gRPC side of a node: calls of other nodes, and messages of servers. The definitions are in
//! proto/distlock/v1.

mod call_check;
mod client;
mod connect;
mod messages;
mod server;
#[cfg(test)]
mod tests;
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unnameable_types,
    unreachable_pub,
    unused_qualifications,
    reason = "generated from the protocol definition; a test compares the two"
)]
mod v1 {
    include!("../generated/distlock.v1.rs");
}
mod wire;

pub(crate) use client::GrpcPeers;
pub(crate) use server::serve_peers;
#[cfg(feature = "fuzzing")]
pub(crate) use wire::fuzzing as wire_fuzzing;
