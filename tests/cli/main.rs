//! Tests of the `distlock` tool from outside: the real binary, real processes, real signals, a real
//! SQLite file.
#![expect(
    clippy::disallowed_methods,
    reason = "other processes live in real time: there is no clock to inject into them"
)]

mod bad_input;
mod commands;
mod default_store;
mod demo;
mod deploy;
mod elect;
mod every;
mod exit_codes;
mod fence;
mod gateway;
mod gateway_operator;
mod help;
mod home;
mod limited_user;
mod load;
mod mysql;
mod no_thread;
mod other_user;
mod postgres;
mod quorum;
mod quoting;
mod records;
mod redis;
mod ring;
mod run;
mod scripts;
mod serve;
mod serve_edge;
mod shared;
mod starving;
mod support;
mod systemd;
mod tables;
mod terminal;
mod textfile;
mod two_hosts;
mod waiting;
mod watchdog;
mod zookeeper;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_distlock");
