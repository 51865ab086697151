//! `distlock quorum`: makes a quorum of stores, shows who votes, and changes its members.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use comfy_table::{ContentArrangement, Table, presets};
use distlock::{
    Clock as _, SystemClock, Target,
    backend::Drivers,
    quorum::{self, MemberReport},
};
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Failure, Outcome, code},
    output::{self, whole_millis},
};

/// Make a quorum of stores, see who votes, change its members.
#[derive(Args, Debug)]
pub(crate) struct Quorum {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand, Debug)]
enum Step {
    Init(Init),
    Show(Show),
    Readmit(Readmit),
    Reconfigure(Reconfigure),
}

/// Make a quorum of members that have granted no locks.
///
/// Blank members vote at once. A member that is blank in a quorum that exists gets a marker and
/// votes after 1.25 times max_lease, because it may have forgotten locks. All members must answer.
#[derive(Args, Debug)]
#[command(after_help = INIT_EXAMPLES)]
struct Init {
    /// The quorum has granted nothing yet, so members with a marker vote at once too
    #[arg(long)]
    new: bool,
}

/// The longest pause between two looks at the members.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

const INIT_EXAMPLES: &str = "\
Examples:
  distlock quorum init --config distlock.toml
  distlock quorum init --new        # after a first try without init";

/// Show the marker of each member, and when it votes.
///
/// Exit code 0 if a majority votes, else 69.
#[derive(Args, Debug)]
#[command(after_help = SHOW_HELP)]
struct Show {}

const SHOW_HELP: &str = "\
Examples:
  distlock quorum show
  until distlock quorum show; do sleep 1; done

JSON fields:
  name, url, quorum, votes_in_ms (0: votes; null: does not), difference (why
  the marker does not count), error, one object a line";

/// Give members that were restarted or lost their memory a marker again.
///
/// Clients do the same by themselves. Such a member votes after 1.25 times max_lease. In a rolling
/// restart, run this with --wait after the restart of each member.
#[derive(Args, Debug)]
#[command(after_help = READMIT_EXAMPLES)]
struct Readmit {
    /// End when all members vote
    #[arg(long)]
    wait: bool,
}

const READMIT_EXAMPLES: &str = "\
Examples:
  distlock quorum readmit
  distlock quorum readmit --wait && restart-the-next-member";

/// Move the quorum to other members, or to another max_lease.
///
/// The members before are those of --backend or of the configuration. The markers of a majority of
/// them are replaced first, so that they grant no more locks. The new members vote after 1.25 times
/// the longest lease, and locks stop until then. Clients with the old list end with exit code 78.
/// After a call that ended early, the same call again completes the move.
#[derive(Args, Debug)]
#[command(after_help = RECONFIGURE_EXAMPLES)]
struct Reconfigure {
    /// The configuration file with the new members
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// A majority of the members before is lost: those that do not answer never come back
    #[arg(long)]
    force: bool,
}

const RECONFIGURE_EXAMPLES: &str = "\
Examples:
  distlock quorum reconfigure --config distlock.toml --to new.toml";

impl Quorum {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let target = context.target(Sharing::Required)?;
        if target.scheme().as_deref() != Some("quorum") {
            let problem = format!(
                "the store is no quorum but {}: name a configuration file with `url = \"quorum:\"` \
                 and `members = [..]`, as in `--config distlock.toml`",
                target.masked_url()
            );
            return Err(Failure::new(code::CONFIG, problem));
        }
        let registry = drivers::registry();
        let known = registry.drivers();
        let (report, shows) = match self.step {
            Step::Init(Init { new }) => {
                let report = quorum::init(target, known, new).await?;
                if report.iter().any(|member| waits(member).is_some()) {
                    output::print_message(
                        "a member that may have granted locks votes later; if this quorum has \
                         granted none so far, run `distlock quorum init --new`",
                    );
                }
                (report, false)
            }
            Step::Show(Show {}) => (quorum::show(target, known).await?, true),
            Step::Readmit(Readmit { wait: false }) => {
                (quorum::readmit(target, known).await?, false)
            }
            Step::Readmit(Readmit { wait: true }) => {
                (readmit_and_wait(target, known).await?, false)
            }
            Step::Reconfigure(Reconfigure { to, force }) => {
                let to = Context::backend_in(&to)?;
                (quorum::reconfigure(target, to, known, force).await?, false)
            }
        };
        print(&report, context.wants_json())?;
        let voting = report.iter().filter(|member| member.votes()).count();
        Ok(if shows && voting <= report.len() / 2 {
            code::UNAVAILABLE
        } else {
            code::OK
        })
    }
}

/// The time until a member votes that does not vote yet.
fn waits(member: &MemberReport) -> Option<Duration> {
    let marker = member.marker.as_ref().ok()?.as_ref()?;
    marker.votes_in.filter(|left| !left.is_zero())
}

/// Admits members again until all of them vote.
async fn readmit_and_wait(target: Target, known: &Drivers) -> Outcome<Vec<MemberReport>> {
    let mut told = false;
    loop {
        let report = quorum::readmit(target.clone(), known).await?;
        let missing = report.iter().filter(|member| !member.votes());
        let missing: Vec<_> = missing.map(|member| member.name.as_str()).collect();
        if missing.is_empty() {
            return Ok(report);
        }
        let left = report.iter().filter_map(waits).max();
        if !told {
            let when = left.map_or_else(String::new, |left| {
                format!(" (it takes {} s)", left.as_secs() + 1)
            });
            output::print_message(format_args!(
                "waiting until all members vote{when}: {} not yet",
                missing.join(", ")
            ));
            told = true;
        }
        // A member that waits can be restarted meanwhile, and one that is away can come back.
        let pause = left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
        SystemClock.sleep(pause + Duration::from_millis(10)).await;
    }
}

fn print(report: &[MemberReport], as_json: bool) -> Outcome<()> {
    if as_json {
        for member in report {
            let marker = member.marker.as_ref().ok().and_then(Option::as_ref);
            output::print_json(&json!({
                "name": member.name,
                "url": member.url,
                "quorum": marker.map(|marker| marker.quorum),
                "votes_in_ms": marker.and_then(|marker| marker.votes_in).map(whole_millis),
                "difference": marker.and_then(|marker| marker.difference),
                "error": member.marker.as_ref().err().map(ToString::to_string),
            }))?;
        }
        return Ok(());
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["MEMBER", "URL", "QUORUM", "VOTES"]);
    for member in report {
        let (quorum, votes) = match &member.marker {
            Err(error) => ("-".to_owned(), format!("no: {error}")),
            Ok(None) => ("-".to_owned(), "no: it has no marker".to_owned()),
            Ok(Some(marker)) => {
                let votes = match (marker.votes_in, marker.difference) {
                    (Some(left), _) if left.is_zero() => "yes".to_owned(),
                    (Some(left), _) => format!("in {} s", left.as_secs() + 1),
                    (None, why) => format!("no: {}", why.unwrap_or("its marker does not count")),
                };
                (marker.quorum.to_string(), votes)
            }
        };
        table.add_row([member.name.clone(), member.url.clone(), quorum, votes]);
    }
    output::print_line(table.trim_fmt())?;
    Ok(())
}
