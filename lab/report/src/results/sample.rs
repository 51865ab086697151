//! The values that were measured in one round of one arm.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::workload::Workload;

/// The values that were measured in one round of one arm. All other figures of a report are
/// computed from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sample {
    /// The name of the arm.
    pub arm: String,
    /// The workload.
    pub workload: Workload,
    /// The number of the round, from 0.
    pub round: u32,
    /// From the start of the first task to the end of the last one.
    pub elapsed_ns: u64,
    /// Finished cycles of each task.
    pub cycles_per_task: Vec<u64>,
    /// Cycles that failed.
    pub errors: u64,
    /// The first failure's text.
    pub first_error: Option<String>,
    /// Calls to the backend's contract.
    pub operations: Option<u64>,
    /// Statements or commands that went to the store.
    pub statements: Option<u64>,
    /// Changes that were started again, because another caller changed the same data in between.
    pub retries: Option<u64>,
    /// Values that were loaded because the cache had none that was fresh.
    pub loads: Option<u64>,
    /// Time of each cycle, or of each hand-over in [`Workload::Handoff`].
    pub latencies: Latencies,
}

impl Sample {
    /// A sample of the first round, without a cycle.
    #[must_use]
    pub fn new(arm: impl Into<String>, workload: Workload, callers: usize) -> Self {
        Self {
            arm: arm.into(),
            workload,
            round: 0,
            elapsed_ns: 0,
            cycles_per_task: vec![0; callers],
            errors: 0,
            first_error: None,
            operations: None,
            statements: None,
            retries: None,
            loads: None,
            latencies: Latencies::new(),
        }
    }

    /// Adds a cycle of a task.
    pub fn record(&mut self, task: usize, time: Duration) {
        self.cycles_per_task[task] += 1;
        self.latencies.record(time);
    }

    /// Counts a failure, and keeps the text of the first one.
    pub fn record_failure(&mut self, error: &impl ToString) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    /// Finished cycles of all tasks.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.cycles_per_task.iter().sum()
    }

    /// The cycles of the busiest task over those of the idlest task; `None` when a task finished no
    /// cycle.
    #[must_use]
    pub fn unfairness(&self) -> Option<f64> {
        let least = *self.cycles_per_task.iter().min()?;
        let most = *self.cycles_per_task.iter().max()?;
        (least > 0).then(|| float(most) / float(least))
    }

    /// Cycles per second.
    #[must_use]
    pub fn cycles_per_second(&self) -> f64 {
        float(self.cycles()) * 1e9 / float(self.elapsed_ns.max(1))
    }
}

/// A histogram of durations with three significant digits, written as `[upper bound in ns, count]`
/// pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// The longest duration that the histogram can hold: one hour. A longer one counts as one hour.
    pub const MAX: Duration = Duration::from_secs(3600);

    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self(
            Histogram::new_with_bounds(1, nanos(Self::MAX), 3)
                .expect("the bounds are constants that fit"),
        )
    }

    /// Adds one duration.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(nanos(time));
    }

    /// Adds all durations of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.0
            .add(&other.0)
            .expect("all histograms have the same bounds");
    }

    /// The number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The duration that a `share` (0 to 1) of all recorded durations does not exceed; zero when
    /// nothing was recorded.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }

    /// The longest duration.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Vec<(u64, u64)>> for Latencies {
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let mut latencies = Self::new();
        // A pair with the count 0 is skipped: the histogram would take its duration as the maximum.
        for (value, count) in pairs.into_iter().filter(|(_, count)| *count > 0) {
            latencies.0.saturating_record_n(value, count);
        }
        latencies
    }
}

impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Self {
        latencies
            .0
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }
}

/// A duration in whole nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A count as a floating-point number; exact below 2^53, and all counts here are far below that.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A sample with one latency, repeated for each cycle.
    pub(crate) fn sample(arm: &str, round: u32, tasks: &[u64], latency: Duration) -> Sample {
        let mut sample = Sample::new(arm, Workload::Independent, tasks.len());
        for (task, cycles) in tasks.iter().enumerate() {
            (0..*cycles).for_each(|_| sample.record(task, latency));
        }
        sample.round = round;
        sample.elapsed_ns = 2_000_000_000;
        sample.operations = Some(2 * sample.cycles());
        sample
    }

    #[test]
    fn quantiles_of_a_hundred_known_values() {
        let mut latencies = Latencies::new();
        for ms in 1..=100 {
            latencies.record(Duration::from_millis(ms));
        }
        assert_eq!(latencies.count(), 100);
        for (share, ms) in [(0.5, 50.0), (0.9, 90.0), (0.99, 99.0)] {
            let seen = latencies.quantile(share).as_secs_f64() * 1000.0;
            assert!((seen / ms - 1.0).abs() < 0.001, "{share}: {seen}");
        }
        assert!(latencies.max() >= Duration::from_millis(100));
    }

    #[test]
    fn a_duration_over_the_limit_counts_as_the_longest() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::MAX);
        assert_eq!(latencies.count(), 1);
        assert!(latencies.max() >= Latencies::MAX);
    }

    #[test]
    fn a_duration_that_was_never_seen_is_not_the_longest() {
        let latencies: Latencies = serde_json::from_str("[[1000,2],[3600000000000,0]]").unwrap();
        assert_eq!(latencies.count(), 2);
        assert!(latencies.max() < Duration::from_micros(2));
    }

    #[test]
    fn a_sample_is_the_same_after_json() {
        let mut before = sample("a", 3, &[5, 7], Duration::from_micros(1234));
        before.latencies.record(Duration::from_secs(7));
        let json = serde_json::to_string(&before).unwrap();
        let after: Sample = serde_json::from_str(&json).unwrap();
        assert_eq!(after.cycles_per_task, before.cycles_per_task);
        for share in [0.0, 0.5, 0.99, 1.0] {
            assert_eq!(
                after.latencies.quantile(share),
                before.latencies.quantile(share)
            );
        }
        assert_eq!(serde_json::to_string(&after).unwrap(), json);
    }

    #[test]
    fn rates_and_unfairness_equal_those_computed_by_hand() {
        let seen = sample("a", 0, &[100, 300], Duration::from_millis(1));
        assert_eq!(seen.cycles(), 400);
        assert!((seen.cycles_per_second() - 200.0).abs() < 1e-9);
        assert!((seen.unfairness().unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(
            sample("a", 0, &[0, 5], Duration::ZERO).unfairness(),
            None,
            "a starved task has no factor"
        );
    }
}
