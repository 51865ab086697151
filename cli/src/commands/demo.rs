//! `distlock demo`: shows on real gateway nodes that a login ends the older session of the account.

use clap::{Args, Subcommand};

use crate::{
    context::{Context, Sharing, is_of_this_process},
    exit::{Failure, Outcome, code, code_of_signal},
    group::Signals,
    output,
};

/// Watch two gateway nodes arbitrate one account.
///
/// Seven scenes, with a timeline and a verdict on each.
/// It starts two real gateway processes on free ports over a SQLite file in a temporary folder (or
/// over --backend, or with the records in --records) and connects real WebSocket clients to them.
/// Nothing is left behind. Exit code 0 says that every invariant held.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    #[command(subcommand)]
    act: Option<Act>,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Watch what people build with a lock
    ///
    /// Unread counters, a cache that one caller fills, an election whose leader is killed.
    /// It plays on a SQLite file in a temporary folder, and shows the naive way beside each. Exit
    /// code 0 says that each scene ended as it should.
    #[command(after_help = RECIPES_EXAMPLES)]
    Recipes,
}

const EXAMPLES: &str = "\
Examples:
  distlock demo
  distlock demo --json | jq -c 'select(.event == \"verdict\")'
  distlock demo --backend sqlite:/tmp/demo.db
  distlock demo --backend redis://127.0.0.1 --records sqlite:/tmp/records.db
  distlock demo recipes";

const RECIPES_EXAMPLES: &str = "\
Examples:
  distlock demo recipes
  distlock demo recipes --json | jq -c 'select(.event == \"verdict\")'";

impl Demo {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let mut signals = Signals::catch()?;
        if let Some(Act::Recipes) = self.act {
            if context.has_backend_flag() || context.records_flag().is_some() {
                return Err(Failure::usage(
                    "demo recipes plays on a store of its own, not on --backend or --records",
                ));
            }
            let play = Box::pin(crate::demo::recipes::play_scenes(context.wants_json()));
            return tokio::select! {
                played = play => exit_code_of(played),
                signal = signals.next_ending() => Ok(code_of_signal(signal.as_raw())),
            };
        }
        // Only an explicit `--backend` or `--records` is used, because the configured store may
        // serve other work.
        let backend = if context.has_backend_flag() {
            Some(context.locks_target(Sharing::Required)?)
        } else {
            if let Some(ignored) = context.default_store_setting() {
                output::print_message(format_args!(
                    "{ignored} is not used: the demo plays on a store of its own; --backend names \
                    another one"
                ));
            }
            None
        };
        let records = context.records_flag();
        if records.as_ref().is_some_and(is_of_this_process) {
            return Err(Failure::new(
                code::CONFIG,
                "--records memory: lives and ends with one process, so the two nodes of the demo \
                 could not share it: use for example sqlite:/tmp/records.db",
            ));
        }
        let json = context.wants_json();
        let play = Box::pin(crate::demo::play_scenes(backend, records, json));
        tokio::select! {
            played = play => exit_code_of(played),
            // The future is dropped here: its nodes are killed and its folder is removed.
            signal = signals.next_ending() => Ok(code_of_signal(signal.as_raw())),
        }
    }
}

/// The exit code for the result of a demo.
fn exit_code_of(played: anyhow::Result<bool>) -> Outcome {
    match played {
        Ok(true) => Ok(code::OK),
        Ok(false) => Ok(code::FAILED),
        Err(error) => match error.downcast::<distlock::Error>() {
            Ok(error) => Err(error.into()),
            Err(error) => Err(Failure::new(code::FAILED, format!("{error:#}"))),
        },
    }
}
