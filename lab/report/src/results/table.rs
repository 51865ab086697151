//! A table as aligned text. The first column is aligned to the left, and the others to the right.

use std::fmt;

use super::statistics::Spread;

/// Rows under a heading.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<'a>(heading: impl IntoIterator<Item = &'a str>) -> Self {
        let heading = heading.into_iter().map(str::to_owned);
        Self {
            rows: vec![heading.collect()],
        }
    }

    pub(crate) fn add_row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    line += &format!("{cell:<width$}");
                } else {
                    line += &format!("  {cell:>width$}");
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
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

/// A time in microseconds with three digits and a unit.
pub(crate) fn format_micros(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1.0 => (us * 1e3, "ns"),
        us if us < 1e3 => (us, "us"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    match value {
        value if unit == "ns" => format!("{value:.0} ns"),
        value if value < 9.995 => format!("{value:.2} {unit}"),
        value if value < 99.95 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

/// A ratio with its range: `x 2.00 (1.90 to 2.10)`.
pub(crate) fn format_ratio(ratio: Option<Spread>) -> String {
    ratio.map_or_else(
        || "-".into(),
        |Spread { median, low, high }| format!("x {median:.2} ({low:.2} to {high:.2})"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators_and_times_have_units() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(with_separators(number), text);
        }
        for (us, text) in [
            (0.25, "250 ns"),
            (1.0, "1.00 us"),
            (9.999, "10.0 us"),
            (42.42, "42.4 us"),
            (999.0, "999 us"),
            (1_500.0, "1.50 ms"),
            (2_500_000.0, "2.50 s"),
        ] {
            assert_eq!(format_micros(us), text);
        }
    }
}
