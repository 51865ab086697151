//! Tests on members in memory and on real servers.

mod common;

mod bad_input;
mod conformance;
mod losses;
mod operator;
mod regressions;
mod waiting;
