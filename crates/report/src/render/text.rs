//! Texts of numbers, and other small pieces of text in a page.

use crate::{
    compare::StoreFacts,
    results::{
        statistics::Spread,
        table::{format_micros, with_separators},
    },
};

/// Replaces the characters that a page would take as markup.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            letter => safe.push(letter),
        }
    }
    safe
}

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

/// Formats a range: `36 to 44`.
pub(crate) fn range(spread: Spread, show: fn(f64) -> String) -> String {
    format!("{} to {}", show(spread.low), show(spread.high))
}

/// Joins names: `a, b and c`.
pub(crate) fn join_names(names: &[&str]) -> String {
    match names {
        [] => "Nothing".into(),
        [one] => (*one).into(),
        [many @ .., last] => format!("{} and {last}", many.join(", ")),
    }
}

/// The word in place of a missing number. The word says whether the store died or only the
/// experiment failed.
pub(crate) fn missing_mark(store: &StoreFacts) -> &'static str {
    if store.stopped.is_some() {
        "died"
    } else {
        "failed"
    }
}

/// The range to print after a number; nothing when both ends are printed alike.
pub(crate) fn range_suffix(spread: Spread, show: fn(f64) -> String) -> String {
    if show(spread.low) == show(spread.high) {
        return String::new();
    }
    // A line can break only beside the "to".
    let (low, high) = (
        on_one_line(&show(spread.low)),
        on_one_line(&show(spread.high)),
    );
    format!("<small>{low} to {high}</small>")
}

/// The name of a store after a dot in its colour, as HTML.
pub(crate) fn coloured_name(store: &StoreFacts) -> String {
    format!(
        // No line breaks between the dot and the name.
        "<span class=\"dot\" style=\"color:var(--{})\">\u{25cf}</span>\u{a0}{}",
        store.key,
        escape(&store.name)
    )
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
        assert_eq!(escape("a<b & \"c\""), "a&lt;b &amp; &quot;c&quot;");
    }
}
