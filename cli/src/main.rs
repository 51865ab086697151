//! The `distlock` command-line tool.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments on arguments are help texts, where brackets mean themselves"
)]

mod admin;
mod advice;
mod args;
mod commands;
mod compare;
mod context;
mod default_store;
mod demo;
mod exit;
mod group;
mod limits;
mod logging;
mod output;
mod processes;
mod progress;
mod stderr;
mod takeover;
mod values;

fn main() -> std::process::ExitCode {
    exit::guarded(args::run)
}
