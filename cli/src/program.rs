//! Parts of the tool that another program of its kind needs: the store that the flags and the
//! configuration name, messages, progress, exit codes, and gateway nodes as processes.
//!
//! `distlock-lab` is such a program. Its users know these parts from the tool, so both must behave
//! alike.
//!
//! [`Node`] and the conformance suite start the running program again. So a program that uses them
//! must pass a command line that begins with `gateway` or with [`CONFORMANCE_WORKER`] on to
//! [`distlock_cli::main`](crate::main).

pub use crate::{
    advice::add_store_flags,
    command_line::{Threads, print_parse_error, run_on_runtime},
    commands::{
        conformance::{OpeningClient, open_client, workers},
        conformance_worker::NAME as CONFORMANCE_WORKER,
    },
    context::{Context, Sharing},
    drivers::open,
    exit::{Failure, Outcome, code, code_of_signal},
    global::Global,
    group::Signals,
    guarded::guarded,
    limits::{memory_kib, raise_open_files},
    logging::{LogFormat, start as start_logging},
    output::{print_bytes, print_json, print_line, print_message},
    processes::{Node, NodeOutput},
    progress::Progress,
    stderr::set_program,
    values::{parse_lock_name, parse_wait},
};
