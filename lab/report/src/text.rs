//! Texts of numbers, values in Markdown, and tables.

use std::fmt;

use crate::results::statistics::Spread;

/// A number with up to two decimals, or a whole number with separators: `0.25`, `4.2`, `17`,
/// `12,345`.
pub(crate) fn number(value: f64) -> String {
    let text = match value.abs() {
        _ if !value.is_finite() => return "–".into(),
        size if size < 0.995 => format!("{value:.2}"),
        size if size < 9.95 => format!("{value:.1}"),
        _ => {
            let whole = format!("{value:.0}");
            return whole.parse().map_or(whole, with_separators);
        }
    };
    let whole = text.strip_suffix(".0").or_else(|| text.strip_suffix(".00"));
    whole.map_or(text.clone(), str::to_owned)
}

/// A time in microseconds with three digits and a unit: `1.50 µs`.
pub(crate) fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us <= 0.0 => return "0".into(),
        us if us < 1.0 => return format!("{:.0} ns", us * 1e3),
        us if us < 1e3 => (us, "µs"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    match value {
        value if value < 9.995 => format!("{value:.2} {unit}"),
        value if value < 99.95 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

/// A time in milliseconds with three digits and a unit.
pub(crate) fn millis(ms: f64) -> String {
    time(ms * 1e3)
}

/// A number of bytes: `812 B`, `12 kB`.
pub(crate) fn bytes(value: f64) -> String {
    match value {
        value if value < 10_000.0 => format!("{} B", number(value)),
        value if value < 10_000_000.0 => format!("{} kB", number(value / 1e3)),
        value => format!("{} MB", number(value / 1e6)),
    }
}

/// A size in KiB: `12 KiB`, `3.5 MiB`.
pub(crate) fn kib(value: f64) -> String {
    if value < 1024.0 {
        format!("{} KiB", number(value))
    } else {
        format!("{} MiB", number(value / 1024.0))
    }
}

/// A whole number with separators: `1,234,567`.
pub(crate) fn with_separators(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A ratio with its range: `x 2.00 (1.90 to 2.10)`.
pub(crate) fn format_ratio(ratio: Option<Spread>) -> String {
    ratio.map_or_else(
        || "-".into(),
        |Spread { median, low, high }| format!("x {median:.2} ({low:.2} to {high:.2})"),
    )
}

/// Joins the lines of a text, and escapes it outside of code.
pub fn escape(text: &(impl ToString + ?Sized)) -> String {
    let text = text.to_string();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts = text.split('`').enumerate();
    let escaped = parts.map(|(at, part)| match at % 2 {
        0 => part.replace('&', "&amp;").replace('<', "&lt;"),
        _ => part.to_owned(),
    });
    escaped.collect::<Vec<_>>().join("`")
}

/// A text as a cell of a table.
pub fn cell(content: &(impl ToString + ?Sized)) -> String {
    escape(content).replace('|', "\\|")
}

/// A table. The first row is its heading, and each row has as many cells as the heading.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<C: Into<String>>(heading: impl IntoIterator<Item = C>) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.add_row(heading);
        table
    }

    pub(crate) fn add_row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether there is no row below the heading.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// The table as aligned text. The first column is aligned to the left, and the others to the
    /// right.
    pub(crate) fn aligned(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().enumerate().map(|(column, cell)| match column {
                0 => format!("{cell:<width$}", width = width(0)),
                _ => format!("  {cell:>width$}", width = width(column)),
            });
            text += cells.collect::<String>().trim_end();
            text.push('\n');
        }
        text
    }
}

/// Markdown; nothing when there is no row. Columns of numbers are aligned to the right.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [heading, rows @ ..] = &self.rows[..] else {
            return Ok(());
        };
        if rows.is_empty() {
            return Ok(());
        }
        let line = |cells: &[String]| cells.iter().map(cell).collect::<Vec<_>>().join(" | ");
        let is_number = |cell: &String| {
            let first = cell.trim_start_matches(['*', '×', ' ']);
            first.starts_with(|c: char| c.is_ascii_digit() || c == '–')
        };
        write!(f, "| {} |\n|", line(heading))?;
        for at in 0..heading.len() {
            let mut cells = rows.iter().filter_map(|row| row.get(at));
            let is_right = cells.all(is_number);
            f.write_str(if is_right { "--:|" } else { "---|" })?;
        }
        rows.iter()
            .try_for_each(|row| write!(f, "\n| {} |", line(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits_and_separators() {
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
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(with_separators(number), text);
        }
    }

    #[test]
    fn times_and_sizes_have_units() {
        for (us, text) in [
            (0.25, "250 ns"),
            (1.0, "1.00 µs"),
            (9.999, "10.0 µs"),
            (42.42, "42.4 µs"),
            (999.0, "999 µs"),
            (1_500.0, "1.50 ms"),
            (2_500_000.0, "2.50 s"),
        ] {
            assert_eq!(time(us), text);
        }
        assert_eq!(
            (bytes(812.0), kib(2048.0)),
            ("812 B".into(), "2 MiB".into())
        );
    }
}
