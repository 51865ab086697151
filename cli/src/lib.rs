//! The `distlock` command-line tool, as a function of its drivers. It runs on Linux only.
//!
//! A program with a backend of its own calls one function:
//!
//! ```no_run
//! # fn run(my_driver: impl distlock::backend::Driver) -> std::process::ExitCode {
//! distlock_cli::main(distlock::Registry::builtin().with(my_driver))
//! # }
//! ```
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments on arguments are help texts, where brackets mean themselves"
)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the command-line tool of distlock runs on Linux only: it finds the processes of a command in \
     /proc, and ends them when the lock is lost"
);

mod advice;
mod command_line;
mod commands;
mod context;
mod default_store;
mod demo;
mod drivers;
mod exit;
mod global;
mod group;
mod guarded;
mod held;
mod limits;
mod logging;
mod output;
mod processes;
pub mod program;
mod progress;
mod reload;
mod shared;
mod stderr;
mod systemd;
mod textfile;
mod values;

use std::process::ExitCode;

/// Runs the tool on the command line of this process, with these drivers. Returns its exit code.
///
/// The tool starts itself again for some of its work, so a program must do nothing else in its
/// `main`.
#[must_use]
pub fn main(registry: distlock::Registry) -> ExitCode {
    drivers::set_registry(registry);
    guarded::guarded(command_line::run)
}
