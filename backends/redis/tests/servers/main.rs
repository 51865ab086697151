//! Tests on real servers.

mod common;

mod access;
mod atomic_migration;
mod bad_input;
mod batches;
mod client_limit;
mod cluster;
mod conformance;
mod connecting;
mod counters;
mod deposed;
mod doctor;
mod failover;
mod faults;
mod fence;
mod history;
mod idle;
mod mistakes;
mod own_commands;
mod rights;
#[cfg(feature = "tls")]
mod tls;
mod traffic;
mod versions;
mod waiting;
