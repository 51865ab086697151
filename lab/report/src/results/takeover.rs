//! Takeovers: the samples of rounds of gateways, and the figures computed from them.
//!
//! A report of takeovers as aligned text.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    sample::{Latencies, float},
    statistics::Spread,
};
use crate::text::{Table, time, with_separators};

/// The times until the old sessions of takeovers had ended. Both times count from the sending of
/// the new login. With a rate, both times count from the moment at which the login was due.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Until the old client had read its notice.
    pub told: Latencies,
    /// Until both sides had closed its connection.
    pub gone: Latencies,
}

/// The values that were measured in one round of one group of nodes. All other figures are computed
/// from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TakeoverSample {
    /// The number of the round, from 0.
    pub round: u32,
    /// The time during which there were takeovers.
    pub elapsed_ns: u64,
    /// Finished takeovers.
    pub takeovers: u64,
    /// Takeovers and messages that failed.
    pub errors: u64,
    /// The first failure's text.
    pub first_error: Option<String>,
    /// Calls to the store during the takeovers, without background scans; `None` where the nodes
    /// are processes of their own.
    pub operations: Option<u64>,
    /// From sending a login until its confirmation.
    pub confirmed: Latencies,
    /// Takeovers within a node.
    pub local: Ended,
    /// Takeovers between two nodes.
    pub cross: Ended,
    /// The time during which there were messages.
    pub messages_elapsed_ns: u64,
    /// Messages with a known outcome.
    pub messages: u64,
    /// From sending a message until its outcome was known.
    pub message: Latencies,
}

impl TakeoverSample {
    /// Takeovers per second; each is one login.
    #[must_use]
    pub fn logins_per_second(&self) -> f64 {
        float(self.takeovers) * 1e9 / float(self.elapsed_ns.max(1))
    }

    /// Messages per second.
    #[must_use]
    pub fn messages_per_second(&self) -> f64 {
        float(self.messages) * 1e9 / float(self.messages_elapsed_ns.max(1))
    }

    /// Counts a failure, and keeps the text of the first one.
    pub fn record_failure(&mut self, error: &impl ToString) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    /// Adds the counts and the latencies of another caller of the same round. The durations of the
    /// round do not change.
    pub fn add(&mut self, other: &Self) {
        self.takeovers += other.takeovers;
        self.messages += other.messages;
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        self.confirmed.add(&other.confirmed);
        self.message.add(&other.message);
        for (sum, part) in [
            (&mut self.local, &other.local),
            (&mut self.cross, &other.cross),
        ] {
            sum.told.add(&part.told);
            sum.gone.add(&part.gone);
        }
    }
}

/// A distribution of times, over all rounds together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The number of times.
    pub count: u64,
    /// Half are at most this, in microseconds.
    pub p50_us: f64,
    /// Nine in ten are at most this, in microseconds.
    pub p90_us: f64,
    /// 99 in a hundred are at most this, in microseconds.
    pub p99_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
}

impl Quantiles {
    /// The quantiles of these times; `None` when there are none.
    #[must_use]
    pub fn from_latencies<'a>(latencies: impl IntoIterator<Item = &'a Latencies>) -> Option<Self> {
        let mut all = Latencies::new();
        for part in latencies {
            all.add(part);
        }
        let us = |share: f64| all.quantile(share).as_secs_f64() * 1e6;
        (all.count() > 0).then(|| Self {
            count: all.count(),
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            max_us: all.max().as_secs_f64() * 1e6,
        })
    }
}

/// The figures of takeovers and messages, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TakeoverFigures {
    /// Logins per second; each login takes a session over.
    pub logins_per_second: Option<Spread>,
    /// Finished takeovers.
    pub takeovers: u64,
    /// Takeovers and messages that failed.
    pub errors: u64,
    /// The first failure's text.
    pub first_error: Option<String>,
    /// Calls to the store per takeover, with the nodes' own renewals and without their scans.
    pub operations_per_takeover: Option<f64>,
    /// From sending a login until its confirmation.
    pub confirmed: Option<Quantiles>,
    /// Within a node, until the old client had read its notice.
    pub local_told: Option<Quantiles>,
    /// Within a node, until the connection of the old client was closed.
    pub local_gone: Option<Quantiles>,
    /// Between nodes, until the old client had read its notice.
    pub cross_told: Option<Quantiles>,
    /// Between nodes, until the connection of the old client was closed.
    pub cross_gone: Option<Quantiles>,
    /// Messages per second.
    pub messages_per_second: Option<Spread>,
    /// From sending a message until its outcome was known.
    pub message: Option<Quantiles>,
}

impl TakeoverFigures {
    /// Computes the figures of these samples.
    fn from_samples(samples: &[TakeoverSample]) -> Self {
        let quantiles = |which: fn(&TakeoverSample) -> &Latencies| {
            Quantiles::from_latencies(samples.iter().map(which))
        };
        let takeovers = samples.iter().map(|it| it.takeovers).sum();
        let operations: Option<u64> = samples.iter().map(|it| it.operations).sum();
        Self {
            logins_per_second: Spread::from_values(
                samples.iter().map(TakeoverSample::logins_per_second),
            ),
            takeovers,
            errors: samples.iter().map(|it| it.errors).sum(),
            first_error: samples.iter().find_map(|it| it.first_error.clone()),
            operations_per_takeover: operations
                .filter(|_| takeovers > 0)
                .map(|operations| float(operations) / float(takeovers)),
            confirmed: quantiles(|it| &it.confirmed),
            local_told: quantiles(|it| &it.local.told),
            local_gone: quantiles(|it| &it.local.gone),
            cross_told: quantiles(|it| &it.cross.told),
            cross_gone: quantiles(|it| &it.cross.gone),
            messages_per_second: Spread::from_values(
                samples
                    .iter()
                    .filter(|it| it.messages > 0)
                    .map(TakeoverSample::messages_per_second),
            ),
            message: quantiles(|it| &it.message),
        }
    }
}

/// Takeovers among the gateway nodes of one store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TakeoverReport {
    /// Always `takeover`.
    pub workload: String,
    /// The store.
    pub backend: String,
    /// The number of nodes in a group.
    pub nodes: u32,
    /// Whether each node is a process of its own.
    pub processes: bool,
    /// The number of accounts whose sessions are taken over at the same time.
    pub callers: u32,
    /// The number of logins per second that the run aims at; `None` = as many as possible.
    pub rate: Option<f64>,
    /// The number of rounds.
    pub rounds: u32,
    /// The figures of all rounds.
    pub figures: TakeoverFigures,
    /// The samples that all figures are computed from.
    pub samples: Vec<TakeoverSample>,
}

impl TakeoverReport {
    /// Computes the figures of samples.
    #[must_use]
    pub fn new(backend: impl Into<String>, samples: Vec<TakeoverSample>) -> Self {
        Self {
            workload: "takeover".into(),
            backend: backend.into(),
            nodes: 2,
            processes: false,
            callers: 1,
            rate: None,
            rounds: u32::try_from(samples.len()).unwrap_or(u32::MAX),
            figures: TakeoverFigures::from_samples(&samples),
            samples,
        }
    }

    /// Whether anything failed.
    #[must_use]
    pub const fn has_errors(&self) -> bool {
        self.figures.errors > 0
    }
}

impl fmt::Display for TakeoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "takeover on {}, {} nodes {}, {} accounts, {}, {} rounds\n",
            self.backend,
            self.nodes,
            if self.processes {
                "in processes of their own"
            } else {
                "in one process"
            },
            self.callers,
            match self.rate {
                Some(rate) => format!("{rate} logins/s due"),
                None => "as fast as it goes".to_owned(),
            },
            self.rounds,
        )?;
        let (rates, times) = rate_and_time_tables(&self.figures);
        write!(f, "{rates}\n{times}")?;
        if self.has_errors() {
            writeln!(
                f,
                "{} failed, the first: {}",
                with_separators(self.figures.errors),
                self.figures.first_error.as_deref().unwrap_or("unknown")
            )?;
        }
        Ok(())
    }
}

/// Two tables: the rates, and the times.
fn rate_and_time_tables(figures: &TakeoverFigures) -> (Table, Table) {
    let mut rates = Table::new(["logins/s", "", "ops/login", "messages/s", "", "errors"]);
    let mut times = Table::new(["time from sending", "count", "p50", "p90", "p99", "max"]);
    let operations = figures.operations_per_takeover;
    let ([logins, logins_range], [messages, messages_range]) = (
        median_and_range(figures.logins_per_second),
        median_and_range(figures.messages_per_second),
    );
    rates.add_row(vec![
        logins,
        logins_range,
        operations.map_or_else(|| "-".into(), |it| format!("{it:.1}")),
        messages,
        messages_range,
        with_separators(figures.errors),
    ]);
    for (what, quantiles) in [
        ("login to confirmed", figures.confirmed),
        ("login to old told, same node", figures.local_told),
        ("login to old gone, same node", figures.local_gone),
        ("login to old told, other node", figures.cross_told),
        ("login to old gone, other node", figures.cross_gone),
        ("message to outcome", figures.message),
    ] {
        let Some(it) = quantiles else { continue };
        times.add_row(vec![
            what.into(),
            with_separators(it.count),
            time(it.p50_us),
            time(it.p90_us),
            time(it.p99_us),
            time(it.max_us),
        ]);
    }
    (rates, times)
}

/// The median and, in brackets, the range. Without a spread, a dash and an empty text.
fn median_and_range(spread: Option<Spread>) -> [String; 2] {
    let whole = |value: f64| {
        let text = format!("{value:.0}");
        text.parse().map_or(text, with_separators)
    };
    match spread {
        None => ["-".into(), String::new()],
        Some(it) => [
            whole(it.median),
            format!("({} to {})", whole(it.low), whole(it.high)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(round: u32, takeovers: u64, told: Duration) -> TakeoverSample {
        let mut sample = TakeoverSample {
            round,
            elapsed_ns: 2_000_000_000,
            takeovers,
            operations: Some(takeovers * 7),
            messages_elapsed_ns: 1_000_000_000,
            messages: 500,
            ..TakeoverSample::default()
        };
        for _ in 0..takeovers {
            sample.local.told.record(told);
            sample.cross.told.record(told * 2);
            sample.message.record(told);
        }
        sample
    }

    #[test]
    fn figures_equal_those_computed_by_hand() {
        let ms = Duration::from_millis;
        let mut second = sample(1, 300, ms(1));
        second.record_failure(&"busy");
        second.record_failure(&"not this one");
        let report = TakeoverReport::new("memory", vec![sample(0, 200, ms(1)), second]);
        assert_eq!(report.rounds, 2);
        let figures = &report.figures;
        assert_eq!(figures.takeovers, 500);
        assert_eq!(
            (figures.errors, figures.first_error.as_deref()),
            (2, Some("busy"))
        );
        let rate = figures.logins_per_second.unwrap();
        assert!((rate.low - 100.0).abs() < 1e-9 && (rate.high - 150.0).abs() < 1e-9);
        assert!((figures.operations_per_takeover.unwrap() - 7.0).abs() < 1e-9);
        let close = |seen: f64, ms: f64| (seen / (ms * 1e3) - 1.0).abs() < 0.002;
        assert!(close(figures.local_told.unwrap().p99_us, 1.0));
        assert!(close(figures.cross_told.unwrap().p50_us, 2.0));
        assert_eq!(figures.local_gone, None);
        let text = report.to_string();
        assert!(text.contains("login to old told, other node"), "{text}");
        assert!(text.contains("2 failed, the first: busy"), "{text}");
    }

    #[test]
    fn a_report_is_the_same_after_json() {
        let report = TakeoverReport::new("memory", vec![sample(0, 20, Duration::ZERO)]);
        let json = serde_json::to_string(&report).unwrap();
        let back: TakeoverReport = serde_json::from_str(&json).unwrap();
        assert_eq!(back.figures, report.figures);
        assert_eq!(serde_json::to_string(&back).unwrap(), json);
    }
}
