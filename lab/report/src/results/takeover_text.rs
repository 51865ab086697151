//! A report of takeovers as aligned text.

use std::fmt;

use super::{
    statistics::Spread,
    table::{Table, format_micros, with_separators},
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
            format_micros(it.p50_us),
            format_micros(it.p90_us),
            format_micros(it.p99_us),
            format_micros(it.max_us),
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
