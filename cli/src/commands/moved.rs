//! Commands of the version before that another program has now. The old name answers with the new
//! command for one version.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit::Failure;

/// The commands that `distlock-lab` has now.
const MOVED: [&str; 2] = ["bench", "compare"];

/// The failure that names the new command, if a command is unknown because it has moved.
pub(crate) fn moved_command(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    MOVED.contains(&command.as_str()).then(|| {
        Failure::usage(format!(
            "the command {command} is part of distlock-lab now: in a checkout of distlock, run \
             cargo run --release -p distlock-lab -- {command}"
        ))
    })
}
