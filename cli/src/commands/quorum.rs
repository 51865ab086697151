//! `distlock quorum`: makes a quorum of stores, shows who votes, and changes its members.

use clap::{Args, Subcommand};
use comfy_table::{ContentArrangement, Table, presets};
use distlock::quorum::{self, MemberReport};
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Outcome, code},
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

const INIT_EXAMPLES: &str = "\
Examples:
  distlock quorum init --config distlock.toml
  distlock quorum init --new        # after a first try with other members";

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
  name, url, quorum, votes_in_ms (0: votes; null: does not), error, one object
  a line";

/// Give members that have lost their memory a marker again, as clients do by themselves.
#[derive(Args, Debug)]
#[command(after_help = READMIT_EXAMPLES)]
struct Readmit {}

const READMIT_EXAMPLES: &str = "\
Examples:
  distlock quorum readmit";

/// Move the quorum to the members and the max_lease of --to.
///
/// The markers of a majority of the old members are replaced first, so that they grant no more
/// locks. The new members vote after 1.25 times the longest lease. Clients with the old list end
/// with exit code 78. After a call that ended early, the same call again completes the move.
#[derive(Args, Debug)]
#[command(after_help = RECONFIGURE_EXAMPLES)]
struct Reconfigure {
    /// The URL of the quorum with its new members
    #[arg(long, value_name = "URL")]
    to: String,
    /// The old members that do not answer never come back
    #[arg(long)]
    force: bool,
}

const RECONFIGURE_EXAMPLES: &str = "\
Examples:
  distlock quorum reconfigure --to 'quorum:?member=a=redis://h1&member=..'";

impl Quorum {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let target = context.target(Sharing::Required)?;
        let registry = drivers::registry();
        let known = registry.drivers();
        let (report, shows) = match self.step {
            Step::Init(Init { new }) => (quorum::init(target, known, new).await?, false),
            Step::Show(Show {}) => (quorum::show(target, known).await?, true),
            Step::Readmit(Readmit {}) => (quorum::readmit(target, known).await?, false),
            Step::Reconfigure(Reconfigure { to, force }) => {
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

fn print(report: &[MemberReport], as_json: bool) -> Outcome<()> {
    if as_json {
        for member in report {
            let marker = member.marker.as_ref().ok().and_then(Option::as_ref);
            output::print_json(&json!({
                "name": member.name,
                "url": member.url,
                "quorum": marker.map(|marker| marker.quorum),
                "votes_in_ms": marker.and_then(|marker| marker.votes_in).map(whole_millis),
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
            Err(error) => ("-".to_owned(), error.to_string()),
            Ok(None) => ("-".to_owned(), "no: it has no marker".to_owned()),
            Ok(Some(marker)) => {
                let votes = match marker.votes_in {
                    None => "no: its marker does not fit".to_owned(),
                    Some(left) if left.is_zero() => "yes".to_owned(),
                    Some(left) => format!("in {} s", left.as_secs() + 1),
                };
                (marker.quorum.to_string(), votes)
            }
        };
        table.add_row([member.name.clone(), member.url.clone(), quorum, votes]);
    }
    output::print_line(table.trim_fmt())?;
    Ok(())
}
