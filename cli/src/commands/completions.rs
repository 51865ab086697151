//! `distlock completions`: prints a completion script.

use clap::Args;
use clap_complete::Shell;

use crate::exit::{Outcome, code};

/// Print a completion script for a shell.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  distlock completions bash \\
      > ~/.local/share/bash-completion/completions/distlock
  distlock completions zsh  > ~/.zfunc/_distlock
  distlock completions fish > ~/.config/fish/completions/distlock.fish";

impl Completions {
    pub(crate) fn execute(self, mut tool: clap::Command) -> Outcome {
        // The script is generated in memory first, because the generator panics when its writer
        // fails.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut tool, "distlock", &mut script);
        crate::output::print_bytes(&script)?;
        Ok(code::OK)
    }
}
