//! The command line: its commands, their help, and the message for a mistake in it.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal},
};

use clap::{
    CommandFactory, FromArgMatches as _, Parser, Subcommand,
    builder::Styles,
    error::{ContextKind, ContextValue, ErrorKind},
};
use distlock::backend::{Driver, excerpt};

use crate::{
    advice, commands,
    context::Context,
    drivers,
    exit::{Failure, Outcome, code},
    global::Global,
    group::{survive_full_files, watchdog, watchdog_process},
    guarded, logging, output, stderr,
};

/// One distributed lock, many stores.
#[derive(Debug, Parser)]
#[command(
    name = "distlock",
    version,
    about = "One distributed lock, many stores: run commands under a lock, look at locks,\n\
             run kick-out gateways",
    max_term_width = WIDTH,
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The widest line of a help text, in columns.
const WIDTH: usize = 80;

const AFTER_HELP: &str = "\
Where nothing says which store:
  Locks live in a file of your own, $XDG_STATE_HOME/distlock/distlock.db
  (~/.local/state/distlock/distlock.db). Other users, root's cron among them,
  have others and do not exclude you. --system is one that they share, once
  `sudo install -d -m 2770 -g GROUP /var/lib/distlock` has made its folder.

Exit codes:
   0  done                      75  busy or timed out
   1  a verdict failed          76  lock lost
  64  bad usage, name or TTL    77  access denied
  69  backend (or output)       78  bad configuration
      unavailable               70  bug

Environment:
  DISTLOCK_BACKEND         as --backend
  DISTLOCK_RECORDS         as --records
  DISTLOCK_CONFIG          as --config
  DISTLOCK_SYSTEM_FOLDER   for --system, instead of /var/lib/distlock
  DISTLOCK_LOG             log filter, as in distlock=debug

Examples:
  distlock run nightly -- ./backup.sh
  distlock list --json
  distlock demo";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(commands::demo::Demo),
    Run(commands::run::Run),
    Elect(commands::elect::Elect),
    Fence(commands::fence::Fence),
    Acquire(commands::acquire::Acquire),
    Renew(commands::renew::Renew),
    Release(commands::release::Release),
    Inspect(commands::inspect::Inspect),
    List(commands::list::List),
    ForceRelease(commands::force_release::ForceRelease),
    Resize(commands::resize::Resize),
    Jobs(commands::jobs::Jobs),
    Gateway(commands::gateway::Gateway),
    Conformance(commands::conformance::Conformance),
    Doctor(commands::doctor::Doctor),
    Migrate(commands::migrate::Migrate),
    Quorum(commands::quorum::Quorum),
    Ring(commands::ring::Ring),
    Serve(commands::serve::Serve),
    Completions(commands::completions::Completions),
    Man(commands::man::Man),
}

/// The commands in the order of `--help`. Commands of daily use come first.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Locks",
        &[
            "run",
            "acquire",
            "renew",
            "release",
            "list",
            "inspect",
            "force-release",
            "resize",
        ],
    ),
    ("Recipes", &["jobs", "elect", "fence"]),
    (
        "Stores",
        &[
            "serve",
            "doctor",
            "migrate",
            "quorum",
            "ring",
            "conformance",
        ],
    ),
    ("Kick-out", &["gateway"]),
    ("Trying", &["demo"]),
    ("This tool", &["completions", "man", "help"]),
];
/// An argument with more characters than this is shortened when a message quotes it.
const MAX_QUOTED_ARGUMENT: usize = 200;
/// The line about the command `help`, which clap adds itself.
const HELP_ABOUT: &str = "Print this message or the help of a command";

/// The URLs of all backends, in two columns.
fn backends() -> String {
    const INDENT: usize = 33;
    let mut text = String::from("Backends:\n");
    for url in drivers::registry().drivers().iter().flat_map(Driver::urls) {
        let mut line = format!("  {:<width$}", url.form, width = INDENT - 2);
        if line.len() > INDENT {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(INDENT);
        }
        let mut is_first = true;
        for word in url.store.split_whitespace() {
            if !is_first && line.len() + 1 + word.len() > WIDTH {
                let _ = writeln!(text, "{line}");
                line = " ".repeat(INDENT);
                is_first = true;
            }
            if !is_first {
                line.push(' ');
            }
            line.push_str(word);
            is_first = false;
        }
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The command line of the tool. Its help lists the commands in groups.
fn command_with_groups() -> clap::Command {
    let tool = Cli::command().after_help(format!("{}\n{AFTER_HELP}", backends()));
    let styles = Styles::styled();
    let (head, name) = (styles.get_header(), styles.get_literal());
    let mut groups = String::new();
    for (group, commands) in GROUPS {
        let _ = writeln!(groups, "{head}{group}:{head:#}");
        for command in commands {
            let about = tool
                .find_subcommand(command)
                .and_then(clap::Command::get_about);
            let about = about.map_or_else(|| HELP_ABOUT.to_owned(), ToString::to_string);
            let _ = writeln!(groups, "  {name}{command:<13}{name:#}  {about}");
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{head}Options:{head:#}\n\
         {{options}}{{after-help}}"
    );
    tool.help_template(template)
}

/// Reads the command line and runs its command.
pub(crate) fn run() -> Outcome {
    let mut words = std::env::args_os().skip(1);
    // Clap does not know these internal commands, so no help text, completion or manual page
    // shows them.
    match words.next() {
        Some(word) if word == commands::conformance_worker::NAME => {
            return run_on_runtime(Threads::Many, commands::conformance_worker::execute());
        }
        Some(word) if word == watchdog::NAME => {
            return watchdog_process::execute();
        }
        Some(word) if word == commands::run::WITH_OWN_PID => {
            return commands::run::become_command(words);
        }
        _ => {}
    }
    let parsed = command_with_groups()
        .try_get_matches()
        .and_then(|given| Cli::from_arg_matches(&given));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return print_parse_error::<Cli>(error),
    };
    if cli.global.backend.len() > 1 {
        return Err(Failure::usage(
            "the argument '--backend <URL>' cannot be used multiple times",
        ));
    }
    // A gateway node and a lock server run unattended, so all their warnings go to the log.
    // Commands that hold a lock warn of a store that may lose the lock. Otherwise commands print
    // everything that matters, and the conformance suite loses locks on purpose.
    let level = match cli.command {
        Command::Gateway(_) | Command::Serve(_) => "warn",
        Command::Run(_) | Command::Elect(_) | Command::Acquire(_) => "error,distlock::store=warn",
        _ => "error",
    };
    logging::start(cli.global.log_format, level)?;
    let context = Context::new(cli.global.clone());
    let threads = cli.command.threads();
    run_on_runtime(threads, Box::pin(dispatch(cli.command, context)))
        .map_err(|failure| advice::add_store_flags(failure, &cli.global))
}

/// The threads that run a command's tasks.
#[derive(Clone, Copy, Debug)]
pub enum Threads {
    /// The main thread alone, for a command that does one thing at a time. Such a command starts
    /// even if the system refuses further threads, and fails only at the step that needs one.
    Main,
    /// One thread per processor.
    Many,
}

impl Command {
    /// The threads that this command needs.
    const fn threads(&self) -> Threads {
        match self {
            Self::Demo(_) | Self::Conformance(_) | Self::Serve(_) => Threads::Many,
            Self::Gateway(gateway) if gateway.serves() => Threads::Many,
            _ => Threads::Main,
        }
    }
}

/// Runs a command to its end on a runtime with these threads.
pub fn run_on_runtime(threads: Threads, work: impl Future<Output = Outcome>) -> Outcome {
    let mut runtime = match threads {
        Threads::Main => tokio::runtime::Builder::new_current_thread(),
        Threads::Many => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = guarded::start_runtime(runtime.enable_all())?;
    let outcome = runtime.block_on(async {
        survive_full_files()?;
        work.await
    });
    // The runtime is not asked to wait for its tasks: a task may be blocked in a read of standard
    // input, which cannot be interrupted.
    runtime.shutdown_background();
    outcome
}

/// Runs the command that was given.
async fn dispatch(command: Command, context: Context) -> Outcome {
    match command {
        Command::Demo(it) => Box::pin(it.execute(&context)).await,
        Command::Run(it) => Box::pin(it.execute(&context)).await,
        Command::Elect(it) => Box::pin(it.execute(&context)).await,
        Command::Fence(it) => Box::pin(it.execute(&context)).await,
        Command::Acquire(it) => Box::pin(it.execute(&context)).await,
        Command::Renew(it) => Box::pin(it.execute(&context)).await,
        Command::Release(it) => Box::pin(it.execute(&context)).await,
        Command::Inspect(it) => Box::pin(it.execute(&context)).await,
        Command::List(it) => Box::pin(it.execute(&context)).await,
        Command::ForceRelease(it) => Box::pin(it.execute(&context)).await,
        Command::Resize(it) => Box::pin(it.execute(&context)).await,
        Command::Jobs(it) => Box::pin(it.execute(&context)).await,
        Command::Gateway(it) => Box::pin(it.execute(&context)).await,
        Command::Conformance(it) => Box::pin(it.execute(&context)).await,
        Command::Doctor(it) => Box::pin(it.execute(&context)).await,
        Command::Migrate(it) => Box::pin(it.execute(&context)).await,
        Command::Quorum(it) => Box::pin(it.execute(&context)).await,
        Command::Ring(it) => Box::pin(it.execute(&context)).await,
        Command::Serve(it) => Box::pin(it.execute(&context)).await,
        Command::Completions(it) => it.execute(command_with_groups()),
        Command::Man(it) => it.execute(command_with_groups()),
    }
}

/// Whether output to a terminal has colours. The rule is that of <https://no-color.org>.
fn colours_are_wanted() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// Handles the answer of clap when clap found no command to run: prints help and version as
/// results, and reports everything else as bad usage.
pub fn print_parse_error<P: CommandFactory>(error: clap::Error) -> Outcome {
    let mut error = shorten_long_arguments(error);
    let near = nearest_command(&error, &P::command());
    if near.is_some() {
        // Clap measures by common letters: it would say `ring` for `rnu`.
        error.remove(ContextKind::SuggestedSubcommand);
    }
    let text = error.render();
    let on = |stream: &dyn IsTerminal| match stream.is_terminal() && colours_are_wanted() {
        true => text.ansi().to_string(),
        false => text.to_string(),
    };
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        stderr::queue_or_drop(&on(&io::stderr()));
        return Ok(code::USAGE);
    }
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        output::print_bytes(on(&io::stdout()).as_bytes())?;
        return Ok(code::OK);
    }
    let text = text.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    if let Some(near) = near {
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let said = format!("{first}: did you mean '{near}'?\n{rest}");
        return Err(Failure::usage(without_secrets(said.trim_end())));
    }
    Err(Failure::usage(without_secrets(text.trim_end())))
}

/// Shortens long arguments before clap quotes them. In the finished message an argument could not
/// be found any more, because an argument may contain quotes and line ends of its own.
fn shorten_long_arguments(mut error: clap::Error) -> clap::Error {
    let is_long = |value: &ContextValue| match value {
        ContextValue::String(given) => given.chars().count() > MAX_QUOTED_ARGUMENT,
        _ => false,
    };
    let long: Vec<_> = error
        .context()
        .filter(|(_, value)| is_long(value))
        .map(|(kind, value)| (kind, excerpt(&value.to_string())))
        .collect();
    if !long.is_empty() {
        // Clap's suggestion is removed, because it would repeat the long argument.
        error.remove(ContextKind::Suggested);
    }
    for (kind, short) in long {
        error.insert(kind, ContextValue::String(short));
    }
    error
}

/// The command that an unknown word probably means. Two swapped letters count as one change.
fn nearest_command(error: &clap::Error, program: &clap::Command) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let ContextValue::String(given) = error.get(ContextKind::InvalidSubcommand)? else {
        return None;
    };
    let known = program.get_subcommands().map(clap::Command::get_name);
    distlock::config::nearest(given, known).map(str::to_owned)
}

/// Masks passwords in a text. Clap quotes arguments that it does not understand, and such an
/// argument may be a URL.
fn without_secrets(text: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(|word| {
            if word.contains("//") || word.contains(['?', '@']) {
                // Quotes and punctuation at the end do not belong to the argument.
                let bare =
                    word.trim_end_matches(|c: char| c.is_whitespace() || "'\"`,.;)".contains(c));
                distlock::config::mask(bare) + &word[bare.len()..]
            } else {
                word.to_owned()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Clap would wrap wider lines, which breaks tables and examples.
    #[test]
    fn help_below_the_options_fits_80_columns() {
        fn check_width(command: &clap::Command) {
            let below = command.get_after_help().map(ToString::to_string);
            let wide = below
                .iter()
                .flat_map(|below| below.lines())
                .find(|line| line.len() > 80);
            assert_eq!(wide, None, "{}", command.get_name());
            command.get_subcommands().for_each(check_width);
        }
        check_width(&Cli::command());
    }

    #[test]
    fn every_command_is_in_a_group() {
        let grouped = GROUPS.iter().flat_map(|(_, commands)| *commands);
        let mut grouped: Vec<_> = grouped.copied().filter(|it| *it != "help").collect();
        let tool = Cli::command();
        let mut all: Vec<_> = tool
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn quoted_urls_lose_their_password() {
        let said =
            without_secrets("unexpected argument '--bakend=redis://bob:hunter2@h?a=1' found");
        assert_eq!(
            said,
            "unexpected argument '--bakend=redis://bob:***@h?a=1' found"
        );
    }
}
