//! Computes figures from samples: medians of rounds with their spread, and ratios taken round by
//! round.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::results::sample::{Latencies, Sample, float};

/// A figure that was measured in several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The value of the middle round, or the mean of the two middle ones.
    pub median: f64,
    /// The value of the lowest round.
    pub low: f64,
    /// The value of the highest round.
    pub high: f64,
}

impl Spread {
    /// The spread of the finite values; `None` when there is none.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(*values.get(middle.checked_sub(1)?)?, values[middle])
        } else {
            values[middle]
        };
        Some(Self {
            median,
            low: values[0],
            high: values[values.len() - 1],
        })
    }
}

/// The figures of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Figures {
    /// The name of the arm.
    pub arm: String,
    /// Cycles per second of all tasks together.
    pub cycles_per_second: Option<Spread>,
    /// Half of the latencies are at most this, in microseconds.
    pub p50_us: Option<Spread>,
    /// Nine in ten are at most this, in microseconds.
    pub p90_us: Option<Spread>,
    /// 99 in a hundred are at most this, in microseconds.
    pub p99_us: Option<Spread>,
    /// The longest of all rounds, in microseconds.
    pub max_us: Option<f64>,
    /// Calls to the backend's contract per cycle.
    pub operations_per_cycle: Option<f64>,
    /// Statements or commands per cycle.
    pub statements_per_cycle: Option<f64>,
    /// Changes that were started again because another caller changed the same data in between, per
    /// cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries_per_cycle: Option<f64>,
    /// Values that were loaded because the cache had none that was fresh, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loads_per_second: Option<f64>,
    /// Least and most cycles of a task, summed over the rounds.
    pub cycles_per_task: (u64, u64),
    /// Cycles of the busiest task over those of the idlest one, per round; `None` when some task
    /// finished none in some round.
    pub unfairness: Option<Spread>,
    /// Finished cycles.
    pub cycles: u64,
    /// Failed cycles.
    pub errors: u64,
    /// The first failure's text.
    pub first_error: Option<String>,
}

impl Figures {
    /// The figures of the rounds of one arm.
    #[must_use]
    pub fn from_samples(arm: &str, samples: &[&Sample]) -> Self {
        let quantile = |share: f64| {
            Spread::from_values(
                samples
                    .iter()
                    .filter(|s| s.latencies.count() > 0)
                    .map(|s| as_micros(s.latencies.quantile(share))),
            )
        };
        let mut all = Latencies::new();
        samples.iter().for_each(|s| all.add(&s.latencies));
        let cycles: u64 = samples.iter().map(|s| s.cycles()).sum();
        // The total includes the requests of failed cycles. Without a finished cycle there is no
        // number per cycle.
        let per_cycle = |total: Option<u64>| {
            (cycles > 0)
                .then_some(total?)
                .map(|total| float(total) / float(cycles))
        };
        let elapsed_ns: u64 = samples.iter().map(|s| s.elapsed_ns).sum();
        let factors: Option<Vec<f64>> = samples.iter().map(|s| s.unfairness()).collect();
        Self {
            arm: arm.into(),
            cycles_per_second: Spread::from_values(samples.iter().map(|s| s.cycles_per_second())),
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            max_us: (all.count() > 0).then(|| as_micros(all.max())),
            operations_per_cycle: per_cycle(samples.iter().map(|s| s.operations).sum()),
            statements_per_cycle: per_cycle(samples.iter().map(|s| s.statements).sum()),
            retries_per_cycle: per_cycle(samples.iter().map(|s| s.retries).sum()),
            loads_per_second: samples
                .iter()
                .map(|s| s.loads)
                .sum::<Option<u64>>()
                .filter(|_| elapsed_ns > 0)
                .map(|loads| float(loads) * 1e9 / float(elapsed_ns)),
            cycles_per_task: least_and_most_cycles(samples),
            unfairness: factors.and_then(Spread::from_values),
            cycles,
            errors: samples.iter().map(|s| s.errors).sum(),
            first_error: samples.iter().find_map(|s| s.first_error.clone()),
        }
    }
}

/// The ratio of one arm to another, round by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ratio {
    /// The arm whose figures are divided.
    pub arm: String,
    /// The arm by whose figures they are divided.
    pub over: String,
    /// Cycles per second; more is better.
    pub cycles_per_second: Option<Spread>,
    /// Median latency; less is better.
    pub p50: Option<Spread>,
}

impl Ratio {
    /// Divides each round of `arm` by the round of `over` with the same number.
    #[must_use]
    pub fn paired_by_round(arm: (&str, &[&Sample]), over: (&str, &[&Sample])) -> Self {
        let paired = |figure: fn(&Sample) -> f64| {
            Spread::from_values(arm.1.iter().filter_map(|above| {
                let below = over.1.iter().find(|s| s.round == above.round)?;
                Some(figure(above) / figure(below))
            }))
        };
        Self {
            arm: arm.0.into(),
            over: over.0.into(),
            cycles_per_second: paired(Sample::cycles_per_second),
            p50: paired(|s| as_micros(s.latencies.quantile(0.5))),
        }
    }
}

/// A duration in microseconds.
fn as_micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The cycles of the idlest and of the busiest task, each summed over all rounds.
fn least_and_most_cycles(samples: &[&Sample]) -> (u64, u64) {
    let tasks = samples
        .iter()
        .map(|s| s.cycles_per_task.len())
        .max()
        .unwrap_or(0);
    let sums = || {
        (0..tasks).map(|task| {
            samples
                .iter()
                .filter_map(|s| s.cycles_per_task.get(task))
                .sum::<u64>()
        })
    };
    (sums().min().unwrap_or(0), sums().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample::tests::sample;

    fn assert_close(seen: f64, expected: f64) {
        assert!(
            (seen / expected - 1.0).abs() < 0.002,
            "{seen} instead of {expected}"
        );
    }

    #[test]
    fn a_spread_is_the_median_with_the_lowest_and_the_highest_value() {
        assert_eq!(Spread::from_values([]), None);
        assert_eq!(Spread::from_values([f64::NAN, f64::INFINITY]), None);
        let spread = |median, low, high| Some(Spread { median, low, high });
        assert_eq!(Spread::from_values([4.0]), spread(4.0, 4.0, 4.0));
        assert_eq!(Spread::from_values([9.0, 1.0]), spread(5.0, 1.0, 9.0));
        assert_eq!(
            Spread::from_values([3.0, 100.0, 2.0]),
            spread(3.0, 2.0, 100.0)
        );
        assert_eq!(
            Spread::from_values([4.0, 1.0, 3.0, 2.0]),
            spread(2.5, 1.0, 4.0)
        );
    }

    #[test]
    fn figures_equal_those_computed_by_hand() {
        // Three rounds of 2 s: 400, 600 and 200 cycles are 200, 300 and 100 per second.
        let ms = Duration::from_millis;
        let mut rounds = [
            sample("a", 0, &[100, 300], ms(2)),
            sample("a", 1, &[300, 300], ms(1)),
            sample("a", 2, &[120, 80], ms(4)),
        ];
        rounds[1].errors = 3;
        rounds[1].first_error = Some("busy".into());
        let figures = Figures::from_samples("a", &rounds.iter().collect::<Vec<_>>());
        let rate = figures.cycles_per_second.unwrap();
        assert_close(rate.median, 200.0);
        assert_close(rate.low, 100.0);
        assert_close(rate.high, 300.0);
        assert_close(figures.p50_us.unwrap().median, 2000.0);
        assert_close(figures.max_us.unwrap(), 4000.0);
        assert_close(figures.operations_per_cycle.unwrap(), 2.0);
        assert_eq!(figures.statements_per_cycle, None);
        assert_eq!(figures.cycles_per_task, (520, 680));
        let unfairness = figures.unfairness.unwrap();
        assert_close(unfairness.median, 1.5);
        assert_close(unfairness.high, 3.0);
        assert_eq!((figures.cycles, figures.errors), (1200, 3));
        assert_eq!(figures.first_error.as_deref(), Some("busy"));
    }

    #[test]
    fn a_task_without_a_cycle_in_one_round_leaves_no_unfairness() {
        let rounds = [
            sample("a", 0, &[1, 1], Duration::ZERO),
            sample("a", 1, &[2, 0], Duration::ZERO),
        ];
        let figures = Figures::from_samples("a", &rounds.iter().collect::<Vec<_>>());
        assert_eq!(figures.unfairness, None);
        assert_eq!(figures.cycles_per_task, (1, 3));
    }

    #[test]
    fn a_ratio_compares_rounds_of_the_same_number() {
        // Both arms took three times as long in round 1, so every round's ratio is 2.
        let us = Duration::from_micros;
        let ours = [
            sample("ours", 0, &[600], us(10)),
            sample("ours", 1, &[200], us(30)),
        ];
        let plain = [
            sample("plain", 1, &[100], us(60)),
            sample("plain", 0, &[300], us(20)),
        ];
        let ratio = Ratio::paired_by_round(
            ("ours", &ours.iter().collect::<Vec<_>>()),
            ("plain", &plain.iter().collect::<Vec<_>>()),
        );
        let rate = ratio.cycles_per_second.unwrap();
        assert_close(rate.low, 2.0);
        assert_close(rate.high, 2.0);
        assert_close(ratio.p50.unwrap().median, 0.5);
    }

    #[test]
    fn an_arm_that_only_failed_has_no_latency_and_no_ratio() {
        let mut dead = sample("dead", 0, &[0], Duration::ZERO);
        dead.errors = 9;
        let figures = Figures::from_samples("dead", &[&dead]);
        assert_eq!(figures.p50_us, None);
        assert_eq!(figures.operations_per_cycle, None);
        assert_eq!(figures.errors, 9);
        let alive = sample("alive", 0, &[10], Duration::from_micros(1));
        let ratio = Ratio::paired_by_round(("alive", &[&alive]), ("dead", &[&dead]));
        assert_eq!(ratio.cycles_per_second, None);
        assert_eq!(ratio.p50, None);
    }
}
