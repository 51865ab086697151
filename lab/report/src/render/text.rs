//! Texts of numbers, and other small pieces of text in a page.

use crate::{
    compare::Comparison,
    results::{
        statistics::Spread,
        table::{format_micros, with_separators},
    },
};

/// Formats a number with up to two decimals, or a whole number with separators: `0.25`, `4.2`,
/// `17`, `12,345`.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "–".into(),
        size if size < 0.995 => without_zero_decimals(format!("{value:.2}")),
        size if size < 9.95 => without_zero_decimals(format!("{value:.1}")),
        _ => format!("{value:.0}")
            .parse()
            .map_or_else(|_| format!("{value:.0}"), with_separators),
    }
}

/// Removes `.0` or `.00` from the end.
fn without_zero_decimals(text: String) -> String {
    match text.strip_suffix(".0").or_else(|| text.strip_suffix(".00")) {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// Formats a time that is given in microseconds: `1.50 µs`.
pub(crate) fn time(us: f64) -> String {
    if us <= 0.0 {
        return "0".into();
    }
    format_micros(us).replace(" us", " µs")
}

/// Formats a time that is given in milliseconds: `1.50 ms`.
pub(crate) fn millis(ms: f64) -> String {
    time(ms * 1000.0)
}

/// Formats a share that is given in per cent: `25 %`.
pub(crate) fn percent(value: f64) -> String {
    format!("{} %", number(value))
}

/// Formats a number of bytes: `812 B`, `12 kB`.
pub(crate) fn bytes(value: f64) -> String {
    match value {
        value if value < 10_000.0 => format!("{} B", number(value)),
        value if value < 10_000_000.0 => format!("{} kB", number(value / 1e3)),
        value => format!("{} MB", number(value / 1e6)),
    }
}

/// Formats a size that is given in KiB: `12 KiB`, `3.5 MiB`.
pub(crate) fn kib(value: f64) -> String {
    if value < 1024.0 {
        format!("{} KiB", number(value))
    } else {
        format!("{} MiB", number(value / 1024.0))
    }
}

/// Replaces each space by a space at which no line breaks.
pub(crate) fn on_one_line(text: &str) -> String {
    text.replace(' ', "\u{a0}")
}

/// Replaces the space between a number and its unit by a space at which no line breaks.
pub(crate) fn keep_units_on_line(text: &str) -> String {
    let mut words = text.split(' ').peekable();
    let mut glued = String::with_capacity(text.len());
    while let Some(word) = words.next() {
        glued += word;
        let Some(next) = words.peek() else { break };
        let unit = next.trim_end_matches(|c: char| c.is_ascii_punctuation());
        let figure = word
            .trim_start_matches('(')
            .starts_with(|c: char| c.is_ascii_digit());
        let time = figure && ["ns", "µs", "ms", "s", "%"].contains(&unit);
        glued.push(if time { '\u{a0}' } else { ' ' });
    }
    glued
}

/// The lowest and the highest value as they are printed after the median; `None` when both are
/// printed alike.
pub(crate) fn printed_range(spread: Spread, show: fn(f64) -> String) -> Option<(String, String)> {
    let (low, high) = (show(spread.low), show(spread.high));
    (low != high).then_some((low, high))
}

/// A number with its noun: `1 caller`, `16 callers`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Joins the names of all stores: `a, b and c`.
pub(crate) fn store_names(comparison: &Comparison) -> String {
    let names: Vec<&str> = comparison
        .stores
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    match names.as_slice() {
        [] => "Nothing".into(),
        [one] => (*one).into(),
        [many @ .., last] => format!("{} and {last}", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.256, "0.26"),
            (1.0, "1"),
            (4.24, "4.2"),
            (17.3, "17"),
            (12_345.6, "12,346"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(time(1.5), "1.50 µs");
        assert_eq!(millis(2500.0), "2.50 s");
        assert_eq!(bytes(812.0), "812 B");
        assert_eq!(
            keep_units_on_line("after 1.20 ms, (4 s) and 2 callers"),
            "after 1.20\u{a0}ms, (4\u{a0}s) and 2 callers"
        );
    }
}
