//! Tests on members in memory and on real servers.

mod common;

mod bad_input;
mod changes;
mod conformance;
mod watch;
