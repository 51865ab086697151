//! The data of a comparison.

use serde::{Deserialize, Serialize};

use crate::{
    compare::{busy::RoundLoad, properties::PropertyResult},
    measure::workload::Workload,
    results::statistics::{Figures, Ratio, Spread},
};

/// Everything a report says, as data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// When, where and how.
    pub about: About,
    /// The stores, in the order in which they are shown.
    pub stores: Vec<StoreFacts>,
    /// What was measured.
    pub figures: Vec<Figure>,
    /// What was broken on purpose, and what came of it.
    pub scenarios: Vec<Scenario>,
    /// Other ways of locking in the same stores.
    pub peers: Vec<PeerRun>,
    /// What others took of the machine, round by round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<RoundLoad>,
}

/// When, where and how a comparison was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Version of the tool.
    pub version: String,
    /// What was typed, without secrets.
    pub command: String,
    /// When it was finished (RFC 3339).
    pub date: String,
    /// Whether short rounds and fewer cases were asked for.
    pub quick: bool,
    /// In how many interleaved rounds each figure was measured.
    pub rounds: u32,
    /// The machine, as label and value: `("processor", "..")`.
    pub machine: Vec<(String, String)>,
    /// What a reader must know about this run.
    pub remarks: Vec<String>,
}

/// One store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreFacts {
    /// Its name among the figures: `redis`, or `redis-2` for a second one.
    pub key: String,
    /// What it is, in lower case: `redis`, `mariadb`. Decides colour and prose.
    pub product: String,
    /// For people: `Redis`.
    pub name: String,
    /// Product and version, as the server says.
    pub server: String,
    /// How it was set up, or where it was found.
    pub setup: String,
    /// What the starter of its server set of its durability, where the server itself does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// What the backend promises.
    pub promises: Option<Promises>,
    /// What `doctor` found.
    pub findings: Vec<Finding>,
    /// What the conformance suite found, per property.
    pub properties: Vec<PropertyResult>,
    /// Why it takes no further part, if it died half-way.
    pub stopped: Option<String>,
}

/// What a backend promises, as its capabilities say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the fields of `Capabilities`, which explains them"
)]
pub struct Promises {
    pub fencing: String,
    pub fairness: String,
    pub wakeup: String,
    pub lease: String,
    pub min_ttl_ms: u64,
    pub max_lease_ms: Option<u64>,
    pub survives_restart: bool,
    pub expiry_clock: String,
    pub reach: String,
    pub tickets: bool,
    pub hand_over: bool,
}

/// A setting of a server that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at.
    pub check: String,
    /// `pass`, `warn`, `fail` or `unknown`.
    pub verdict: String,
    /// What was seen.
    pub detail: String,
}

/// One measured quantity of one store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The store's key.
    pub store: String,
    /// What was done: `independent-64`.
    pub experiment: String,
    /// What was measured.
    pub measure: Measure,
    /// One value per round, in order. Rounds of the same number were neighbours in time.
    pub rounds: Vec<f64>,
    /// Why there is no number.
    pub missing: Option<String>,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Cycles (or logins) a second.
    Rate,
    /// Half take at most so many microseconds.
    P50,
    /// 99 in a hundred take at most so many microseconds.
    P99,
    /// Statements, commands or requests per cycle.
    Statements,
    /// Calls to the store's contract per cycle.
    Operations,
    /// Statements, commands or requests per second of waiting.
    WaitingStatements,
    /// Bytes both ways per second of waiting.
    WaitingBytes,
    /// Bytes both ways per cycle.
    Bytes,
    /// Cycles of the busiest caller over those of the idlest one.
    Unfairness,
    /// Microseconds of processor time per cycle, in the client.
    Cpu,
    /// Peak resident memory of the client, in KiB.
    Memory,
    /// Changes that were begun anew per cycle.
    Retries,
    /// Loads behind a cache per second.
    Loads,
    /// Cycles of the idlest process, in per cent of all processes' cycles.
    LeastShare,
    /// Cycles of the busiest process, in per cent of all processes' cycles.
    MostShare,
    /// The longest that any process waited for the lock, in microseconds.
    LongestWait,
}

impl Measure {
    /// Whether more of it is better.
    #[must_use]
    pub const fn more_is_better(self) -> bool {
        matches!(self, Self::Rate | Self::LeastShare)
    }
}

/// What was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScenarioKind {
    /// The process that held the lock was killed.
    HolderKilled,
    /// The server was killed and started again.
    ServerKilled,
    /// The server stood still for a while.
    ServerPaused,
    /// The leader, or primary, of several servers was killed.
    LeaderLost,
}

impl ScenarioKind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 4] = [
        Self::HolderKilled,
        Self::ServerKilled,
        Self::ServerPaused,
        Self::LeaderLost,
    ];

    /// As in a heading.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::HolderKilled => "Holder killed",
            Self::ServerKilled => "Server killed and started again",
            Self::ServerPaused => "Server stands still",
            Self::LeaderLost => "Leader or primary lost",
        }
    }

    /// The name in files.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::HolderKilled => "holder-killed",
            Self::ServerKilled => "server-killed",
            Self::ServerPaused => "server-paused",
            Self::LeaderLost => "leader-lost",
        }
    }
}

/// One fault, and who believed to hold the lock meanwhile. Times are milliseconds from the start of the recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// The store's key.
    pub store: String,
    /// What was broken.
    pub kind: ScenarioKind,
    /// The lease that was asked for.
    pub ttl_ms: u64,
    /// From the fault to the grant of the next holder.
    pub next_holder_ms: Option<f64>,
    /// From the fault until a lock could be taken and released again.
    pub usable_ms: Option<f64>,
    /// Whether the holder before the fault kept its lock throughout.
    pub holder_kept: Option<bool>,
    /// When it was broken, and until when.
    pub fault: Option<Interval>,
    /// Who believed to hold it, and when.
    pub lanes: Vec<Lane>,
    /// What was wrong, if two believed so at once, or the tokens did not rise.
    pub broken: Option<String>,
    /// Why it could not be played to its end.
    pub failed: Option<String>,
}

/// One client of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// Which client.
    pub who: String,
    /// When it believed to hold the lock.
    pub holds: Vec<Interval>,
}

/// From when until when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Start, in milliseconds.
    pub from: f64,
    /// End, in milliseconds.
    pub until: f64,
    /// What is written on it.
    pub label: String,
}

/// Other ways of locking in one store, beside ours, as `distlock-peers` measured them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerRun {
    /// The store's key.
    pub store: String,
    /// What was done.
    pub workload: Option<Workload>,
    /// By how many callers.
    pub callers: u64,
    /// One per way; the first is the plain one.
    pub figures: Vec<Figures>,
    /// Every further one over the first.
    pub ratios: Vec<Ratio>,
    /// Why there are no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl Comparison {
    /// A store by its key.
    #[must_use]
    pub fn store(&self, key: &str) -> Option<&StoreFacts> {
        self.stores.iter().find(|store| store.key == key)
    }

    /// One figure.
    #[must_use]
    pub fn figure(&self, store: &str, experiment: &str, measure: Measure) -> Option<&Figure> {
        self.figures
            .iter()
            .find(|it| it.store == store && it.experiment == experiment && it.measure == measure)
    }

    /// A figure's median and range, where there is a number.
    #[must_use]
    pub fn spread(&self, store: &str, experiment: &str, measure: Measure) -> Option<Spread> {
        self.figure(store, experiment, measure)?.spread()
    }

    /// What failed in stores that did not die: the store's name, the experiment, and why.
    #[must_use]
    pub fn failures(&self) -> Vec<(&str, &str, &str)> {
        let mut all = Vec::new();
        for figure in &self.figures {
            let (Some(why), Some(store)) = (&figure.missing, self.store(&figure.store)) else {
                continue;
            };
            let failure = (
                store.name.as_str(),
                figure.experiment.as_str(),
                why.as_str(),
            );
            if store.stopped.is_none() && !all.contains(&failure) {
                all.push(failure);
            }
        }
        all
    }

    /// The sizes of all experiments of a family, rising: `independent` may give 1, 16, 64.
    #[must_use]
    pub fn sizes(&self, family: &str) -> Vec<u32> {
        let mut sizes: Vec<u32> = self
            .figures
            .iter()
            .filter_map(|it| it.experiment.strip_prefix(family)?.strip_prefix('-'))
            .filter_map(|size| size.parse().ok())
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Whose figure is clearly the best: its whole range beats every other one's, and a reader sees
    /// the difference. `None` when the ranges overlap, when `show` writes the same for another
    /// store, or when only one has a number. A store of one process is left out: nothing that
    /// arbitrates between processes competes with it.
    #[must_use]
    pub fn clear_best(
        &self,
        experiment: &str,
        measure: Measure,
        show: fn(f64) -> String,
    ) -> Option<&str> {
        let mut all: Vec<(&str, Spread)> = self
            .stores
            .iter()
            .filter(|store| {
                let promises = store.promises.as_ref();
                promises.is_none_or(|it| it.reach != "process")
            })
            .filter_map(|store| {
                let spread = self.spread(&store.key, experiment, measure)?;
                Some((store.key.as_str(), spread))
            })
            .collect();
        let more = measure.more_is_better();
        all.sort_by(|(_, a), (_, b)| {
            let order = a.median.total_cmp(&b.median);
            if more { order.reverse() } else { order }
        });
        let [(best, first), _, ..] = all.as_slice() else {
            return None;
        };
        let printed = show(first.median);
        let clear = all[1..].iter().all(|(_, other)| {
            let apart = if more {
                first.low > other.high
            } else {
                first.high < other.low
            };
            apart && show(other.median) != printed
        });
        clear.then_some(best)
    }

    /// One store's figure over another's, round by round.
    #[must_use]
    pub fn ratio(
        &self,
        store: &str,
        over: &str,
        experiment: &str,
        measure: Measure,
    ) -> Option<Spread> {
        let above = self.figure(store, experiment, measure)?;
        let below = self.figure(over, experiment, measure)?;
        if above.missing.is_some() || below.missing.is_some() {
            return None;
        }
        Spread::of(above.rounds.iter().zip(&below.rounds).map(|(a, b)| a / b))
    }
}

impl Figure {
    /// Median and range; `None` when there is no number.
    #[must_use]
    pub fn spread(&self) -> Option<Spread> {
        match self.missing {
            Some(_) => None,
            None => Spread::of(self.rounds.iter().copied()),
        }
    }
}

/// Whether a ratio differs from 1 in every round, and `show` does not write it as 1: only then may
/// it be called a difference.
#[must_use]
pub fn is_difference(ratio: Spread, show: fn(f64) -> String) -> bool {
    (ratio.low > 1.0 || ratio.high < 1.0) && show(ratio.median) != show(1.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::render::text::number;

    /// Two stores, three rounds.
    pub(crate) fn small() -> Comparison {
        let store = |key: &str, name: &str| StoreFacts {
            key: key.into(),
            product: key.into(),
            name: name.into(),
            server: format!("{name} 1.2"),
            setup: "for a test".into(),
            ..StoreFacts::default()
        };
        let figure = |store: &str, experiment: &str, measure, rounds: &[f64]| Figure {
            store: store.into(),
            experiment: experiment.into(),
            measure,
            rounds: rounds.to_vec(),
            missing: None,
        };
        Comparison {
            about: About {
                rounds: 3,
                ..About::default()
            },
            stores: vec![store("redis", "Redis"), store("sqlite", "SQLite")],
            figures: vec![
                figure("redis", "uncontended", Measure::P50, &[100.0, 110.0, 90.0]),
                figure("sqlite", "uncontended", Measure::P50, &[50.0, 220.0, 45.0]),
                figure(
                    "redis",
                    "independent-64",
                    Measure::Rate,
                    &[40.0, 50.0, 60.0],
                ),
                figure(
                    "sqlite",
                    "independent-64",
                    Measure::Rate,
                    &[20.0, 25.0, 30.0],
                ),
            ],
            scenarios: Vec::new(),
            peers: Vec::new(),
            loads: Vec::new(),
        }
    }

    #[test]
    fn the_best_is_only_named_when_no_other_range_reaches_it() {
        let all = small();
        // 45 to 220 around 90 to 110.
        assert_eq!(all.clear_best("uncontended", Measure::P50, number), None);
        assert_eq!(
            all.clear_best("independent-64", Measure::Rate, number),
            Some("redis")
        );
    }

    #[test]
    fn of_figures_that_are_printed_alike_none_is_the_best() {
        let mut all = small();
        // Ranges that do not meet: 245.6 to 245.8, and 246.0 to 246.4.
        all.figures[0].rounds = vec![245.6, 245.7, 245.8];
        all.figures[1].rounds = vec![246.0, 246.2, 246.4];
        for (show, best) in [
            (number as fn(f64) -> String, None),
            (|value| format!("{value:.1}"), Some("redis")),
        ] {
            assert_eq!(all.clear_best("uncontended", Measure::P50, show), best);
        }
    }

    #[test]
    fn a_ratio_that_is_printed_as_one_is_no_difference() {
        let hardly = Spread {
            median: 1.01,
            low: 1.005,
            high: 1.02,
        };
        assert!(!is_difference(hardly, number));
        assert!(is_difference(hardly, |value| format!("{value:.3}")));
    }

    #[test]
    fn ratios_pair_rounds_by_hand() {
        let all = small();
        // 100/50, 110/220, 90/45.
        let mixed = all
            .ratio("redis", "sqlite", "uncontended", Measure::P50)
            .unwrap();
        assert_eq!((mixed.low, mixed.median, mixed.high), (0.5, 2.0, 2.0));
        assert!(!is_difference(mixed, number));
        let clear = all
            .ratio("redis", "sqlite", "independent-64", Measure::Rate)
            .unwrap();
        assert_eq!((clear.low, clear.high), (2.0, 2.0));
        assert!(is_difference(clear, number));
    }

    #[test]
    fn a_figure_that_says_why_it_is_missing_has_no_number() {
        let mut all = small();
        all.figures[2].missing = Some("the server died".into());
        assert_eq!(all.spread("redis", "independent-64", Measure::Rate), None);
        assert_eq!(
            all.ratio("redis", "sqlite", "independent-64", Measure::Rate),
            None
        );
        assert_eq!(
            all.clear_best("independent-64", Measure::Rate, number),
            None
        );
    }

    #[test]
    fn sizes_of_a_family() {
        assert_eq!(small().sizes("independent"), [64]);
        assert!(small().sizes("idle").is_empty());
    }
}
