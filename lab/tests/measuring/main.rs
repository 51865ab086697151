//! Tests of the measuring commands of `distlock-lab` from outside: the real program, real servers.
#![expect(
    clippy::disallowed_methods,
    reason = "other processes live in real time: there is no clock to inject into them"
)]

mod bench;
mod compare;
mod help;
#[path = "../../../tests/cli/home.rs"]
mod home;
mod takeover;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_distlock-lab");
