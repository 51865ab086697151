//! `distlock ring`: makes a ring of stores, shows its view, and changes its members.

use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::{ContentArrangement, Table, presets};
use distlock::{
    Clock as _, HolderLabel, LockName, SystemClock, Target,
    backend::Drivers,
    ring::{self, NamePlace, RingReport, Terms, WatchChange},
};
use distlock_recipes::election::{Election, Led};
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Failure, Outcome, code, code_of_signal},
    group::Signals,
    output::{self, whole_millis},
    values,
};

/// Make a ring of stores, see, change and watch its members.
#[derive(Args, Debug)]
pub(crate) struct Ring {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand, Debug)]
enum Step {
    Init(Init),
    Show(Show),
    Add(Add),
    Remove(Remove),
    Reset(Reset),
    Watch(Watch),
}

/// Make a ring of all members of the configuration.
///
/// All of them must answer. No lock is granted for 71 s, because the ring store may have lost an
/// earlier view, and its locks may still be held.
#[derive(Args, Debug)]
#[command(after_help = INIT_EXAMPLES)]
struct Init {
    /// No lock was granted at these members yet, so locks are granted at once
    #[arg(long)]
    new: bool,
    /// The longest lease, 1s to 60s; a name that moves cannot be locked for as long
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = values::parse_duration,
        allow_hyphen_values = true,
    )]
    max_lease: Duration,
    /// How long a client may use the view without reading it again, 200ms to 10s; a name that moves
    /// cannot be locked for as long, beside the longest lease
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "2s",
        value_parser = values::parse_duration,
        allow_hyphen_values = true,
    )]
    validity: Duration,
}

const INIT_EXAMPLES: &str = "\
Examples:
  distlock ring init --new --config distlock.toml
  distlock ring init --max-lease 5s     # after the ring store lost its view";

/// Show the members, and what is left of a change.
#[derive(Args, Debug)]
#[command(after_help = SHOW_HELP)]
struct Show {}

const SHOW_HELP: &str = "\
Examples:
  distlock ring show
  distlock ring show --json | jq .pending

JSON fields:
  ring, view, validity_ms, max_lease_ms, members (each name, url, active),
  pending (each members, left_ms: names that had another owner among these
  members cannot be locked for as long)";

/// Add a member of the configuration to the ring.
///
/// It must answer. About one in n names moves to it. A name that moves cannot be locked for the
/// longest lease and the validity of a view, and its present holder keeps it to the end of the
/// lease. All clients must have the member in their configuration before.
#[derive(Args, Debug)]
#[command(after_help = ADD_EXAMPLES)]
struct Add {
    /// The name of the member
    #[arg(value_name = "MEMBER")]
    member: String,
}

const ADD_EXAMPLES: &str = "\
Examples:
  distlock ring add d";

/// Remove a member from the ring, whether it answers or not.
///
/// Its names move to the others, and cannot be locked for the longest lease and the validity of a
/// view. A member that is removed although it works harms nobody. A member that the watch has
/// removed is not added back any more.
#[derive(Args, Debug)]
#[command(after_help = REMOVE_EXAMPLES)]
struct Remove {
    /// The name of the member
    #[arg(value_name = "MEMBER")]
    member: String,
}

const REMOVE_EXAMPLES: &str = "\
Examples:
  distlock ring remove c";

/// Replace a view that was restored from a backup.
///
/// The backup may have an earlier list of the members than clients have used. No lock is granted
/// for 71 s, because locks of the view that was lost may still be held. Members and times stay as
/// in the backup.
#[derive(Args, Debug)]
#[command(after_help = RESET_EXAMPLES)]
struct Reset {}

const RESET_EXAMPLES: &str = "\
Examples:
  distlock ring reset     # before clients reach a ring store that was restored";

/// Remove members that do not answer, and add them back when they are well.
///
/// A member is also removed if its clock differs from the others' by more than a quarter of the
/// longest lease. Nothing is removed by a watch that reaches no majority of the active members, and
/// a ring of two members is left as it is. Several watches can run: one of them leads.
#[derive(Args, Debug)]
#[command(after_help = WATCH_EXAMPLES)]
struct Watch {
    /// How long a member may be silent
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5s",
        value_parser = values::parse_duration,
        allow_hyphen_values = true,
    )]
    dead_after: Duration,
}

const WATCH_EXAMPLES: &str = "\
Examples:
  distlock ring watch
  distlock ring watch --dead-after 10s";

/// The election of the watches, at the ring store, beside those of the ring's users.
const ELECTION: &str = "distlock-ring";

/// The time for which nobody watches after a watch has died.
const WATCH_TTL: Duration = Duration::from_secs(15);

/// The pause between two looks at the members, and after a failure.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Watch {
    async fn execute(self, target: Target, known: &Drivers) -> Outcome {
        // Caught before the watch leads, so that no signal skips the end of its term.
        let mut signals = Signals::catch()?;
        let mut watch = ring::Watch::open(target, known, self.dead_after).await?;
        let holder = HolderLabel::of_this_process();
        let election = Election::new(watch.ring_store(), ELECTION, holder.as_str())?.ttl(WATCH_TTL);
        let outcome = loop {
            let led = tokio::select! {
                led = election.run_while_leader(|_| look_on(&mut watch)) => led,
                signal = signals.next_ending() => break Ok(code_of_signal(signal.as_raw())),
            };
            match led {
                Ok(Led::Done(failure)) => break Err(failure),
                Ok(Led::Stopped(reason)) => {
                    output::print_message(format_args!("watches no more: {reason}"));
                }
                Err(error) => break Err(error.into()),
            }
        };
        watch.close().await;
        outcome
    }
}

/// Looks at the members again and again, until an error that does not pass.
async fn look_on(watch: &mut ring::Watch) -> Failure {
    output::print_message("watches the members");
    loop {
        match watch.look().await {
            Ok(Some(WatchChange::Removed { member, reason, .. })) => {
                output::print_message(format_args!("removed {member}: {reason}"));
            }
            Ok(Some(WatchChange::Added { member, .. })) => {
                output::print_message(format_args!("added {member}: it is well again"));
            }
            Ok(None | Some(_)) => {}
            Err(error) if error.is_retryable() => output::print_message(error),
            Err(error) => return error.into(),
        }
        SystemClock.sleep(LOOK_AGAIN).await;
    }
}

impl Ring {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let target = context.target(Sharing::Required)?;
        if target.scheme().as_deref() != Some("ring") {
            let problem = format!(
                "the store is no ring but {}: name a configuration file with `url = \"ring:\"`, \
                 `records = ..` and `members = [..]`, as in `--config distlock.toml`",
                target.masked_url()
            );
            return Err(Failure::new(code::CONFIG, problem));
        }
        let registry = drivers::registry();
        let known = registry.drivers();
        let report = match self.step {
            Step::Init(Init {
                new,
                max_lease,
                validity,
            }) => {
                let terms = Terms {
                    validity,
                    max_lease,
                };
                let report = ring::init(target, known, terms, new).await?;
                if !report.pending.is_empty() {
                    output::print_message(
                        "locks of an earlier view may still be held; if there was none, run \
                         `distlock ring init --new` next time",
                    );
                }
                report
            }
            Step::Show(Show {}) => ring::show(target, known).await?,
            Step::Add(Add { member }) => ring::add(target, known, &member).await?,
            Step::Remove(Remove { member }) => ring::remove(target, known, &member).await?,
            Step::Reset(Reset {}) => ring::reset(target, known).await?,
            Step::Watch(watch) => return watch.execute(target, known).await,
        };
        print(&report, context.wants_json())?;
        Ok(code::OK)
    }
}

/// Where a name of the ring belongs; `None` if the store of this call is no ring.
pub(crate) async fn place_of(context: &Context, name: &LockName) -> Outcome<Option<NamePlace>> {
    let target = context.target(Sharing::Required)?;
    if target.scheme().as_deref() != Some("ring") {
        return Ok(None);
    }
    let registry = drivers::registry();
    Ok(Some(ring::locate(target, registry.drivers(), name).await?))
}

fn print(report: &RingReport, as_json: bool) -> Outcome<()> {
    if as_json {
        let members = report.members.iter().map(
            |member| json!({ "name": member.name, "url": member.url, "active": member.active }),
        );
        let pending = report.pending.iter().map(
            |pending| json!({ "members": pending.members, "left_ms": whole_millis(pending.left) }),
        );
        return output::print_json(&json!({
            "ring": report.ring,
            "view": report.number,
            "validity_ms": whole_millis(report.terms.validity),
            "max_lease_ms": whole_millis(report.terms.max_lease),
            "members": members.collect::<Vec<_>>(),
            "pending": pending.collect::<Vec<_>>(),
        }));
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["MEMBER", "URL", "ACTIVE"]);
    for member in &report.members {
        let url = member
            .url
            .as_deref()
            .unwrap_or("(not in the configuration)");
        let active = if member.active { "yes" } else { "no" };
        table.add_row([member.name.as_str(), url, active]);
    }
    output::print_line(table.trim_fmt())?;
    for pending in &report.pending {
        let seconds = pending.left.as_secs() + 1;
        output::print_line(if pending.members.is_empty() {
            format!("no name can be locked for {seconds} s: an earlier view may have been lost")
        } else {
            format!(
                "names that had another owner among {} can be locked in {seconds} s",
                pending.members.join(", ")
            )
        })?;
    }
    Ok(())
}
