//! A report of takeovers as aligned text.

use std::fmt;

use super::{
    statistics::Spread,
    table::{Table, format_micros, format_ratio, with_separators},
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
        let (rates, times) = rate_and_time_tables(&self.figures);
        write!(f, "{rates}\n{times}")?;
        for ratio in &self.ratios {
            writeln!(
                f,
                "\n{} over {}: logins/s {}, old told p50 {}, messages/s {}, message p50 {}",
                ratio.arm,
                ratio.over,
                format_ratio(ratio.logins_per_second),
                format_ratio(ratio.told_p50),
                format_ratio(ratio.messages_per_second),
                format_ratio(ratio.message_p50),
            )?;
        }
        for figures in self.figures.iter().filter(|it| it.errors > 0) {
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

/// Two tables: the rates of each arm, and its times.
fn rate_and_time_tables(all: &[TakeoverFigures]) -> (Table, Table) {
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
            median_and_range(figures.logins_per_second),
            median_and_range(figures.messages_per_second),
        );
        rates.add_row(vec![
            figures.arm.clone(),
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
                figures.arm.clone(),
                what.into(),
                with_separators(it.count),
                format_micros(it.p50_us),
                format_micros(it.p90_us),
                format_micros(it.p99_us),
                format_micros(it.max_us),
            ]);
        }
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
