//! The data of a comparison.

use serde::{Deserialize, Serialize};

use crate::{
    measure::workload::Workload,
    results::statistics::{Figures, Ratio},
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

/// What the suite found about one property of one store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropertyResult {
    /// [`Property::key`].
    pub property: String,
    /// Cases that passed.
    pub passed: u32,
    /// Cases that failed, with what they said.
    pub failed: Vec<String>,
    /// Cases that cannot be asked of this store, with why.
    pub not_applicable: Vec<String>,
}

impl PropertyResult {
    /// As a table shows it.
    #[must_use]
    pub fn mark(&self) -> &'static str {
        match (self.passed, self.failed.len(), self.not_applicable.len()) {
            (0, 0, 0) => "–",
            (0, 0, _) => "n/a",
            (_, 0, _) => "✓",
            _ => "✗",
        }
    }
}

/// What others took during one round of all stores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundLoad {
    /// What was measured meanwhile.
    pub experiment: String,
    /// Which round, from 0.
    pub round: u32,
    /// Share of all processors' time that went neither to this run and its servers nor to nobody,
    /// in per cent.
    pub others_percent: f64,
}
