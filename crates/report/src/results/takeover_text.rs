//! A report of takeovers as aligned text.

use std::fmt;

use super::{
    statistics::Spread,
    table::{Table, count, factor, micros},
    takeover::{TakeoverFigures, TakeoverReport},
};

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
        let (rates, times) = tables(&self.figures);
        write!(f, "{rates}\n{times}")?;
        for ratio in &self.ratios {
            writeln!(
                f,
                "\n{} over {}: logins/s {}, old told p50 {}, messages/s {}, message p50 {}",
                ratio.arm,
                ratio.over,
                factor(ratio.logins_per_second),
                factor(ratio.told_p50),
                factor(ratio.messages_per_second),
                factor(ratio.message_p50),
            )?;
        }
        for figures in self.figures.iter().filter(|it| it.errors > 0) {
            writeln!(
                f,
                "{}: {} failed, the first: {}",
                figures.arm,
                count(figures.errors),
                figures.first_error.as_deref().unwrap_or("unknown")
            )?;
        }
        Ok(())
    }
}

/// The rates of each arm, and the times of each arm.
fn tables(all: &[TakeoverFigures]) -> (Table, Table) {
    let mut rates = Table::new([
        "route",
        "logins/s",
        "",
        "ops/login",
        "messages/s",
        "",
        "errors",
    ]);
    let mut times = Table::new([
        "route",
        "time from sending",
        "count",
        "p50",
        "p90",
        "p99",
        "max",
    ]);
    for figures in all {
        let operations = figures.operations_per_takeover;
        let ([logins, logins_range], [messages, messages_range]) = (
            rate(figures.logins_per_second),
            rate(figures.messages_per_second),
        );
        rates.row(vec![
            figures.arm.clone(),
            logins,
            logins_range,
            operations.map_or_else(|| "-".into(), |it| format!("{it:.1}")),
            messages,
            messages_range,
            count(figures.errors),
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
            times.row(vec![
                figures.arm.clone(),
                what.into(),
                count(it.count),
                micros(it.p50_us),
                micros(it.p90_us),
                micros(it.p99_us),
                micros(it.max_us),
            ]);
        }
    }
    (rates, times)
}

fn rate(spread: Option<Spread>) -> [String; 2] {
    let whole = |value: f64| {
        let text = format!("{value:.0}");
        text.parse().map_or(text, count)
    };
    match spread {
        None => ["-".into(), String::new()],
        Some(it) => [
            whole(it.median),
            format!("({} to {})", whole(it.low), whole(it.high)),
        ],
    }
}
