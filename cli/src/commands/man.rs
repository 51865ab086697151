//! `distlock man`: prints or writes the manual pages.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

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

/// Removes the command `help` and those of its subcommands.
fn without_help(command: clap::Command) -> clap::Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

/// Sets the synopsis to the usage line of `--help`. The generator's own synopsis lacks the `--`
/// between arguments.
fn with_usage_of_help(mut command: clap::Command) -> clap::Command {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    command
        .override_usage(usage)
        .mut_subcommands(with_usage_of_help)
}

/// The manual page of a command.
fn render_page(command: &clap::Command) -> io::Result<String> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    Ok(split_notes_by_headings(&String::from_utf8_lossy(&text)))
}

/// Gives the text below the options the headings that it has in `--help`. Its lines stay unwrapped,
/// because readers copy examples from them.
fn split_notes_by_headings(page: &str) -> String {
    const BELOW: &str = "\n.SH EXTRA\n";
    let Some((above, below)) = page.split_once(BELOW) else {
        return page.to_owned();
    };
    let mut text = above.to_owned();
    let mut ours = true;
    for (at, line) in below.lines().enumerate() {
        if ours && line.starts_with(".SH ") {
            ours = false;
            text.push_str("\n.fi");
        }
        let heading = line
            .strip_suffix(':')
            .filter(|line| ours && line.starts_with(char::is_alphabetic));
        text.push('\n');
        match heading {
            Some(heading) => {
                let end = if at == 0 { "" } else { ".fi\n" };
                text.push_str(&format!("{end}.SH \"{}\"\n.nf", heading.to_uppercase()));
            }
            None if at == 0 => text.push_str(&format!(".SH NOTES\n.nf\n{line}")),
            None => text.push_str(line),
        }
    }
    if ours {
        text.push_str("\n.fi");
    }
    text.push('\n');
    text
}

/// Writes the pages of a command and of all its subcommands.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_pages(below, folder)?;
    }
    let name = clap_mangen::Man::new(command.clone()).get_filename();
    fs::write(folder.join(name), render_page(command)?)
}

impl Man {
    pub(crate) fn execute(self, mut tool: clap::Command) -> Outcome {
        // The pages of `help` would repeat the others.
        tool = without_help(tool);
        // This gives each command its full name and the global flags.
        tool.build();
        tool = with_usage_of_help(tool);
        if let Some(folder) = self.dir {
            let written = fs::create_dir_all(&folder).and_then(|()| write_pages(&tool, &folder));
            written.map_err(|error| {
                Failure::new(
                    code::UNAVAILABLE,
                    format!(
                        "cannot write to {}: {error}",
                        distlock::backend::path_excerpt(&folder)
                    ),
                )
            })?;
            return Ok(code::OK);
        }
        let mut command = &tool;
        for word in &self.command {
            command = command.find_subcommand(word).ok_or_else(|| {
                let known = command.get_subcommands().map(clap::Command::get_name);
                let near = distlock::config::nearest(word, known)
                    .map(|near| format!(": did you mean {near}?"))
                    .unwrap_or_default();
                Failure::usage(format!(
                    "there is no command \"{}\"{near}",
                    word.escape_debug()
                ))
            })?;
        }
        output::print_bytes(render_page(command)?.as_bytes())?;
        Ok(code::OK)
    }
}
