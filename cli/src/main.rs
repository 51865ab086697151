//! The `distlock` command-line tool.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments on arguments are help texts, where brackets mean themselves"
)]

mod advice;
mod command_line;
mod commands;
mod compare;
mod context;
mod default_store;
mod demo;
mod exit;
mod figures;
mod global;
mod group;
mod guarded;
mod limits;
mod logging;
mod output;
mod processes;
mod progress;
mod shell_word;
mod stderr;
mod store_advice;
mod takeover;
mod values;

fn main() -> std::process::ExitCode {
    guarded::guarded(command_line::run)
}
