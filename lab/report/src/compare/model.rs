//! The data of a comparison, as it is written to JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    results::statistics::{Figures, Ratio},
    text::{bytes, kib, number, time},
    workload::Workload,
};

/// The whole content of a report, as data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// When, where and how the comparison was made.
    pub about: About,
    /// The stores, in the order in which they are shown.
    pub stores: Vec<StoreFacts>,
    /// The measured figures.
    pub figures: Vec<Figure>,
    /// The experiments that gave a store no figure that counts, with the reason.
    pub missing: Vec<Missing>,
    /// The faults, and their outcomes.
    pub scenarios: Vec<Scenario>,
    /// Other ways of locking in the same stores.
    pub peers: Vec<PeerRun>,
    /// The load that other processes put on the machine, round by round.
    pub loads: Vec<RoundLoad>,
}

/// When, where and how a comparison was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Version of the tool.
    pub version: String,
    /// The command line, without secrets.
    pub command: String,
    /// The time at which the run ended (RFC 3339).
    pub date: String,
    /// Whether short rounds and fewer cases were requested.
    pub quick: bool,
    /// The number of interleaved rounds of each figure.
    pub rounds: u32,
    /// The machine, as label and value: `("processor", "..")`.
    pub machine: Vec<(String, String)>,
    /// Remarks that a reader needs about this run.
    pub remarks: Vec<String>,
}

/// One store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreFacts {
    /// The name that figures refer to: `redis`, or `redis-2` for a second store of one product.
    pub key: String,
    /// The product in lower case: `redis`, `mariadb`. It decides the colour.
    pub product: String,
    /// The name that readers see: `Redis`.
    pub name: String,
    /// Product and version, as the server reports them.
    pub server: String,
    /// How the server was set up, or its address.
    pub setup: String,
    /// The durability setting of the tool that started the server, for servers that do not report
    /// it themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// The backend's [`Capabilities`](distlock_core::Capabilities), by the names of its fields.
    pub promises: BTreeMap<String, serde_json::Value>,
    /// The findings of `doctor`.
    pub findings: Vec<Finding>,
    /// The results of the conformance suite, per property.
    pub properties: Vec<PropertyResult>,
    /// The reason why the store takes no further part, if it died during the run.
    pub stopped: Option<String>,
}

impl StoreFacts {
    /// Whether the store arbitrates between the tasks of one process only.
    #[must_use]
    pub fn is_in_process(&self) -> bool {
        self.promises.get("reach").is_some_and(|it| it == "process")
    }
}

/// The result of the check of one setting of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The setting.
    pub check: String,
    /// `pass`, `warn`, `fail` or `unknown`.
    pub verdict: String,
    /// The value that was found.
    pub detail: String,
}

/// One measured quantity of one store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The store's key.
    pub store: String,
    /// The experiment: `independent-64`.
    pub experiment: String,
    /// The measured quantity.
    pub measure: Measure,
    /// One value per round, in order. Rounds of the same number, in different stores, were
    /// neighbours in time.
    pub rounds: Vec<f64>,
}

/// An experiment in which a store failed, or that it did not live to finish. What was measured
/// before in it does not count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The store's key.
    pub store: String,
    /// The experiment.
    pub experiment: String,
    /// The reason.
    pub why: String,
}

/// The quantity that a figure measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Cycles (or logins) a second.
    Rate,
    /// The median of the times, in microseconds.
    P50,
    /// The 99th percentile of the times, in microseconds.
    P99,
    /// Statements, commands or requests per cycle.
    Statements,
    /// Calls to the store's contract per cycle.
    Operations,
    /// Statements, commands or requests per second of waiting.
    WaitingStatements,
    /// Bytes sent and received per second of waiting.
    WaitingBytes,
    /// Bytes sent and received per cycle.
    Bytes,
    /// Cycles of the busiest caller over those of the idlest one.
    Unfairness,
    /// Microseconds of processor time per cycle, in the client.
    Cpu,
    /// Peak resident memory of the client, in KiB.
    Memory,
    /// Changes that were started again, per cycle.
    Retries,
    /// Values that were loaded because the cache had none that was fresh, per second.
    Loads,
    /// Cycles of the idlest process, in per cent of all processes' cycles.
    LeastShare,
    /// Cycles of the busiest process, in per cent of all processes' cycles.
    MostShare,
    /// The longest that any process waited for the lock, in microseconds.
    LongestWait,
}

impl Measure {
    /// Whether a larger value is better.
    #[must_use]
    pub const fn more_is_better(self) -> bool {
        matches!(self, Self::Rate | Self::LeastShare)
    }

    /// A value with its unit, as pages show it.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::P50 | Self::P99 | Self::Cpu | Self::LongestWait => time(value),
            Self::Bytes | Self::WaitingBytes => bytes(value),
            Self::Memory => kib(value),
            Self::LeastShare | Self::MostShare => format!("{} %", number(value)),
            Self::Rate
            | Self::Statements
            | Self::Operations
            | Self::WaitingStatements
            | Self::Unfairness
            | Self::Retries
            | Self::Loads => number(value),
        }
    }
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScenarioKind {
    /// The process that held the lock was killed.
    HolderKilled,
    /// The server was killed and started again.
    ServerKilled,
    /// The server was stopped for a while, and went on.
    ServerPaused,
    /// The leader, or primary, of several servers was killed.
    LeaderLost,
}

impl ScenarioKind {
    /// All kinds, in the order in which they are shown.
    pub const ALL: [Self; 4] = [
        Self::HolderKilled,
        Self::ServerKilled,
        Self::ServerPaused,
        Self::LeaderLost,
    ];

    /// The text of the heading.
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

/// One fault, and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// The store's key.
    pub store: String,
    /// The fault.
    pub kind: ScenarioKind,
    /// The requested lease.
    pub ttl_ms: u64,
    /// From the fault to the grant of the next holder.
    pub next_holder_ms: Option<f64>,
    /// From the fault until a lock could be acquired and released again.
    pub usable_ms: Option<f64>,
    /// Whether the holder before the fault kept its lock throughout.
    pub holder_kept: Option<bool>,
    /// The promise that was broken, if one was: two holders at once, or tokens that did not rise.
    pub broken: Option<String>,
    /// The reason why the scenario did not run to its end, if it did not.
    pub failed: Option<String>,
}

/// Other ways of locking in one store, measured by `distlock-lab peers` together with distlock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerRun {
    /// The store's key.
    pub store: String,
    /// The workload.
    pub workload: Option<Workload>,
    /// The number of callers.
    pub callers: u64,
    /// One per way of locking. The first is the plainest one.
    pub figures: Vec<Figures>,
    /// The ratio of each further way to the first one.
    pub ratios: Vec<Ratio>,
    /// The reason why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The suite's result for one property of one store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropertyResult {
    /// The key of the property, as in [`Property`](crate::compare::Property).
    pub property: String,
    /// Cases that passed.
    pub passed: u32,
    /// Cases that failed, with their messages.
    pub failed: Vec<String>,
    /// Cases that do not apply to this store, with the reason.
    pub not_applicable: Vec<String>,
}

impl PropertyResult {
    /// The mark and the number of cases, as a table shows them.
    pub(crate) fn mark(&self) -> String {
        let cases = self.passed as usize + self.failed.len();
        match (cases, self.failed.len(), self.not_applicable.len()) {
            (0, _, 0) => "–".into(),
            (0, ..) => "n/a".into(),
            (_, 0, _) => format!("✓ {} of {cases}", self.passed),
            _ => format!("✗ {} of {cases}", self.passed),
        }
    }
}

/// A round counts as disturbed if other processes used at least this share of the processors. A
/// tenth is more than the spread between rounds of a quiet machine.
pub const BUSY_PERCENT: f64 = 10.0;

/// The load that other processes put on the machine during one round of all stores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundLoad {
    /// The experiment that ran in that round.
    pub experiment: String,
    /// The number of the round, from 0.
    pub round: u32,
    /// The share of the time of all processors that other processes used, in per cent. The rest of
    /// the time was used by this run and its servers, or was idle.
    pub others_percent: f64,
}
