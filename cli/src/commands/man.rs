//! `distlock man`: the manual.

use std::path::PathBuf;

use clap::Args;

use crate::{
    exit::{Failure, Outcome, code},
    output,
};

/// Print the manual page of the tool or of one command.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Man {
    /// The command; for a command of a command, both words
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of all commands into this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  distlock man | man -l -
  distlock man run | man -l -
  distlock man --dir ~/.local/share/man/man1";

fn without_help(command: clap::Command) -> clap::Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

impl Man {
    pub(crate) fn execute(self, mut tool: clap::Command) -> Outcome {
        // Those of `help` would only say what the others say.
        tool = without_help(tool);
        // Gives every command its full name and the global flags.
        tool.build();
        if let Some(folder) = self.dir {
            clap_mangen::generate_to(tool, &folder).map_err(|error| {
                Failure::new(
                    code::UNAVAILABLE,
                    format!("cannot write to {}: {error}", folder.display()),
                )
            })?;
            return Ok(code::OK);
        }
        let mut page = &tool;
        for word in &self.command {
            page = page.find_subcommand(word).ok_or_else(|| {
                let known = page.get_subcommands().map(clap::Command::get_name);
                let near = distlock::config::nearest(word, known)
                    .map(|near| format!(": did you mean {near}?"))
                    .unwrap_or_default();
                Failure::usage(format!(
                    "there is no command \"{}\"{near}",
                    word.escape_debug()
                ))
            })?;
        }
        let mut text = Vec::new();
        clap_mangen::Man::new(page.clone()).render(&mut text)?;
        output::bytes(&text)?;
        Ok(code::OK)
    }
}
