//! A report: samples and the figures computed from them, as JSON and as text.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    results::sample::{Sample, float},
    results::statistics::{Figures, Ratio, Spread},
    text::{Table, format_ratio, number, time, with_separators},
    workload::Workload,
};

/// One workload on one or several arms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The workload; `None` when there is no sample.
    pub workload: Option<Workload>,
    /// The number of callers.
    pub callers: usize,
    /// The number of rounds.
    pub rounds: usize,
    /// Measured time of one round, in seconds (the median).
    pub seconds_per_round: f64,
    /// One per arm, in the order of the arms.
    pub figures: Vec<Figures>,
    /// The ratio of each further arm to the first one.
    pub ratios: Vec<Ratio>,
    /// The samples that all figures are computed from.
    pub samples: Vec<Sample>,
}

impl Report {
    /// Computes the figures of the samples of one workload, also of samples that another process
    /// measured.
    #[must_use]
    pub fn new(samples: Vec<Sample>) -> Self {
        let mut arms: Vec<&str> = Vec::new();
        for sample in &samples {
            if !arms.contains(&sample.arm.as_str()) {
                arms.push(&sample.arm);
            }
        }
        let samples_of = |arm: &str| samples.iter().filter(|s| s.arm == arm).collect::<Vec<_>>();
        let figures: Vec<_> = arms
            .iter()
            .map(|arm| Figures::from_samples(arm, &samples_of(arm)))
            .collect();
        let ratios = arms
            .iter()
            .skip(1)
            .map(|arm| {
                Ratio::paired_by_round((arm, &samples_of(arm)), (arms[0], &samples_of(arms[0])))
            })
            .collect();
        let seconds = Spread::from_values(samples.iter().map(|s| float(s.elapsed_ns) / 1e9));
        Self {
            workload: samples.first().map(|s| s.workload),
            callers: samples.first().map_or(0, |s| s.cycles_per_task.len()),
            rounds: arms.first().map_or(0, |arm| samples_of(arm).len()),
            seconds_per_round: seconds.map_or(0.0, |spread| spread.median),
            figures,
            ratios,
            samples,
        }
    }

    /// The figures of one arm.
    #[must_use]
    pub fn arm(&self, name: &str) -> Option<&Figures> {
        self.figures.iter().find(|figures| figures.arm == name)
    }

    /// Whether any cycle failed.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.figures.iter().any(|figures| figures.errors > 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(workload) = self.workload else {
            return writeln!(f, "no samples");
        };
        writeln!(
            f,
            "{workload}, {} {}, {} {} of {:.2} s, median (lowest to highest)\n",
            self.callers,
            if self.callers == 1 {
                "caller"
            } else {
                "callers"
            },
            self.rounds,
            if self.rounds == 1 { "round" } else { "rounds" },
            self.seconds_per_round
        )?;
        // Each arm is a column: its figures are too many for one line of a terminal.
        let arms = self.figures.iter().map(|it| &*it.arm);
        let mut table = Table::new([""].into_iter().chain(arms));
        for (name, value, show) in ROWS {
            let values: Vec<_> = self.figures.iter().map(value).collect();
            // Only some workloads have retries or loads.
            if values.iter().any(Option::is_some) {
                let values = values.into_iter();
                let cells = values.map(|it| it.map_or_else(|| "–".into(), show));
                table.add_row([name.to_owned()].into_iter().chain(cells));
            }
        }
        f.write_str(&table.aligned())?;
        if !self.ratios.is_empty() {
            writeln!(f)?;
        }
        for ratio in &self.ratios {
            writeln!(
                f,
                "{} over {}: cycles/s {}, p50 {}",
                ratio.arm,
                ratio.over,
                format_ratio(ratio.cycles_per_second),
                format_ratio(ratio.p50)
            )?;
        }
        for figures in self.figures.iter().filter(|figures| figures.errors > 0) {
            writeln!(
                f,
                "{}: {} failed, the first: {}",
                figures.arm,
                with_separators(figures.errors),
                figures.first_error.as_deref().unwrap_or("unknown")
            )?;
        }
        Ok(())
    }
}

/// A row of the text: its label, a function that gives the value of an arm, and one that shows it.
type ReportRow = (&'static str, fn(&Figures) -> Option<f64>, fn(f64) -> String);
const ROWS: [ReportRow; 15] = [
    (
        "cycles/s",
        |it| it.cycles_per_second.map(|it| it.median),
        number,
    ),
    (
        "  lowest round",
        |it| it.cycles_per_second.map(|it| it.low),
        number,
    ),
    (
        "  highest round",
        |it| it.cycles_per_second.map(|it| it.high),
        number,
    ),
    (
        "cycles, least of a task",
        |it| Some(float(it.cycles_per_task.0)),
        number,
    ),
    (
        "cycles, most of a task",
        |it| Some(float(it.cycles_per_task.1)),
        number,
    ),
    ("p50", |it| it.p50_us.map(|it| it.median), time),
    ("p90", |it| it.p90_us.map(|it| it.median), time),
    ("p99", |it| it.p99_us.map(|it| it.median), time),
    ("max", |it| it.max_us, time),
    ("ops/cycle", |it| it.operations_per_cycle, number),
    ("statements/cycle", |it| it.statements_per_cycle, number),
    ("retries/cycle", |it| it.retries_per_cycle, number),
    ("loads/s", |it| it.loads_per_second, number),
    ("unfairness", |it| it.unfairness.map(|it| it.high), number),
    ("errors", |it| Some(float(it.errors)), number),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::results::sample::tests::sample;

    fn two_arms() -> Report {
        let mut samples = vec![
            sample("plain", 0, &[1_000, 1_000], Duration::from_micros(1_500)),
            sample("ours", 0, &[20_000, 30_000], Duration::from_micros(75)),
        ];
        samples[0].errors = 1;
        samples[0].first_error = Some("database is locked".into());
        Report::new(samples)
    }

    #[test]
    fn text_is_aligned_and_complete() {
        let text = two_arms().to_string();
        let expected = "\
independent, 2 callers, 1 round of 2.00 s, median (lowest to highest)

                           plain     ours
cycles/s                   1,000   25,000
  lowest round             1,000   25,000
  highest round            1,000   25,000
cycles, least of a task    1,000   20,000
cycles, most of a task     1,000   30,000
p50                      1.50 ms  75.0 µs
p90                      1.50 ms  75.0 µs
p99                      1.50 ms  75.0 µs
max                      1.50 ms  75.0 µs
ops/cycle                      2        2
unfairness                     1      1.5
errors                         1        0

ours over plain: cycles/s x 25.00 (25.00 to 25.00), p50 x 0.05 (0.05 to 0.05)
plain: 1 failed, the first: database is locked
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn json_has_figures_and_samples_and_is_read_back() {
        let report = two_arms();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["workload"], "independent");
        assert_eq!(json["figures"][1]["arm"], "ours");
        assert_eq!(json["samples"][0]["cycles_per_task"][1], 1000);
        let back: Report = serde_json::from_value(json).unwrap();
        assert_eq!(Report::new(back.samples).figures, report.figures);
    }

    #[test]
    fn no_samples_make_an_empty_report() {
        assert_eq!(Report::new(Vec::new()).to_string(), "no samples\n");
    }
}
