//! The options of `distlock-lab chaos`.
//!
//! The kinds of use that the workers make of the store. Each kind has its own promises.

use std::path::PathBuf;

use clap::{ValueEnum, builder::PossibleValuesParser, error::ErrorKind};
use distlock_cli::program::code;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::{
    controls::Control, gateways, nemesis::FaultKind, planted_bugs::StoreBug, stores::StoreKind,
};

/// Break stores at random, and check the promises of their locks.
///
/// Starts private servers and worker processes that compete for locks, injects faults drawn from
/// the seed, and judges the history of all processes. Exit code 1 means that a promise was broken;
/// the command that repeats the run is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  distlock-lab chaos --spawn sqlite,redis --seconds 60
  distlock-lab chaos --spawn redis --faults kill-server,stop-worker --seed 7
  distlock-lab chaos --planted
  distlock-lab chaos --controls --only set-nx-del,redlock")]
pub(crate) struct ChaosOptions {
    /// Stores to break, one run each
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "STORES",
        default_value = "memory,sqlite"
    )]
    pub(super) spawn: Vec<StoreKind>,
    /// Faults to draw from (default: all that apply to the store)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KINDS")]
    pub(super) faults: Vec<FaultKind>,
    /// Kinds of use of the store (default: all)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "USES")]
    pub(super) workloads: Vec<Workload>,
    #[command(flatten)]
    pub(super) gateways: gateways::GatewayOptions,
    /// Duration of the faults, for each store
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(super) seconds: u64,
    /// Repeat the faults of an earlier run (default: drawn, and printed)
    #[arg(long, value_name = "S")]
    pub(super) seed: Option<u64>,
    /// Plant each known bug, and check that the verdict finds it
    #[arg(long, group = "subjects")]
    pub(super) planted: bool,
    /// Test locks of other libraries, and distlock beside each
    #[arg(long, group = "subjects", conflicts_with = "spawn")]
    pub(super) controls: bool,
    /// With --planted or --controls: these bugs or controls only
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        requires = "subjects",
        value_parser = bug_and_control_names()
    )]
    pub(super) only: Vec<String>,
    /// Run each kind of fault alone
    #[arg(long, conflicts_with = "planted")]
    pub(super) each: bool,
    /// Add the results to the report in this folder
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Keep the history of each run that broke a promise in this folder
    #[arg(long, value_name = "DIR")]
    pub(super) keep: Option<PathBuf>,
}

/// Returns all names that `--only` accepts.
fn bug_and_control_names() -> PossibleValuesParser {
    let bugs = StoreBug::value_variants()
        .iter()
        .map(ValueEnum::to_possible_value);
    let controls = Control::value_variants()
        .iter()
        .map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(bugs.chain(controls).flatten())
}

/// Returns the bugs or controls that `--only` names, or all of them without `--only`. A name of the
/// other kind ends the program with the exit code of a wrong argument.
pub(super) fn chosen<T: ValueEnum + Clone>(only: &[String]) -> Vec<T> {
    if only.is_empty() {
        return T::value_variants().to_vec();
    }
    let one = |name: &String| {
        T::from_str(name, false).unwrap_or_else(|_| {
            let known = T::value_variants().iter().map(ValueEnum::to_possible_value);
            let known: Vec<_> = known.flatten().map(|it| it.get_name().to_owned()).collect();
            let message = format!("--only {name}: it must be one of {}\n", known.join(", "));
            let _ = clap::Error::raw(ErrorKind::InvalidValue, message).print();
            std::process::exit(i32::from(code::USAGE))
        })
    };
    only.iter().map(one).collect()
}

impl ChaosOptions {
    /// Returns a name for the results of these runs.
    pub(super) fn result_name(&self, seed: u64) -> String {
        let stores: Vec<_> = self.spawn.iter().map(|it| it.key()).collect();
        let each = if self.each { "-each" } else { "" };
        format!("{}{each}-{seed}", stores.join("-"))
    }
}

/// One kind of use.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Locks, acquired, used and released in every way that the library offers
    Locks,
    /// Reads and conditional writes of records
    Records,
    /// Several tasks of one process that wait for one lock in the local queue
    LocalQueues,
    /// Elections, periodic jobs, effects that happen once, counters and fences
    Recipes,
    /// Readers and writers, and permits
    SharedLocks,
    /// Processes that wait for one lock in the order of arrival
    FairWaiters,
}

impl Workload {
    /// Returns all kinds of use. A worker skips a use that its store does not support.
    pub(crate) fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }

    /// Returns the weight of the kind in a random draw.
    const fn weight(self) -> u32 {
        match self {
            Self::Locks => 50,
            Self::Records => 20,
            Self::LocalQueues | Self::FairWaiters => 4,
            Self::Recipes => 16,
            Self::SharedLocks => 24,
        }
    }

    /// Tells whether each use of this kind takes a moment only.
    pub(crate) const fn is_quick(self) -> bool {
        matches!(self, Self::Locks | Self::Records)
    }

    /// Draws one kind of use.
    pub(crate) fn draw(among: &[Self], rng: &mut Rng) -> Self {
        let all: u32 = among.iter().map(|it| it.weight()).sum();
        let mut left = rng.u32(..all.max(1));
        for it in among {
            if left < it.weight() {
                return *it;
            }
            left -= it.weight();
        }
        Self::Locks
    }

    /// Returns the name of the kind on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chosen_workloads_are_drawn() {
        let mut rng = Rng::with_seed(7);
        let chosen = [Workload::LocalQueues, Workload::Recipes];
        let mut seen = Vec::new();
        for _ in 0..200 {
            let drawn = Workload::draw(&chosen, &mut rng);
            if !seen.contains(&drawn) {
                seen.push(drawn);
            }
        }
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert!(chosen.iter().all(|it| seen.contains(it)), "{seen:?}");
    }
}
