//! Durations in the form that people write: `1m30s`.
//!
//! This module owns the parser and the formatter of that form. Invariant: [`parse_duration`] reads
//! back each text that this module writes, if the duration is a whole number of milliseconds. The
//! parser must never guess a missing unit.

use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// Reads `5s`, `500ms`, `1m30s`, `2h` or `7d`: whole numbers, each with its unit (`d`, `h`, `m`,
/// `s`, `ms`), the largest unit first. Spaces between the parts are allowed.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] that quotes the text and names the mistake: no unit, an unknown
/// unit, units out of order, or a number that is too large.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let problem = |what: String| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("duration \"{}\" {what}", text.escape_debug()),
        )
    };
    let mut total = Duration::ZERO;
    let mut rest = text;
    let mut smallest = u64::MAX;
    if rest.is_empty() {
        return Err(problem(
            "is empty: write for example 5s, 500ms or 1m30s".into(),
        ));
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let unit_len = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        if number.is_empty() {
            return Err(problem(
                "is not whole numbers with units: write for example 5s, 500ms or 1m30s".into(),
            ));
        }
        let millis: u64 = match unit.trim_end() {
            "d" => 86_400_000,
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            "" if text.bytes().all(|digit| digit == b'0') => {
                return Err(problem("has no unit: write for example 5s or 500ms".into()));
            }
            "" => {
                return Err(problem(format!(
                    "has no unit: did you mean {text}s or {text}ms?"
                )));
            }
            other => {
                return Err(problem(format!(
                    "has an unknown unit \"{}\": d, h, m, s and ms are known",
                    other.escape_debug()
                )));
            }
        };
        if millis >= smallest {
            return Err(problem("names its units twice or out of order".into()));
        }
        smallest = millis;
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(millis))
            .and_then(|part| total.checked_add(Duration::from_millis(part)))
            .ok_or_else(|| problem("is too large to count in milliseconds".into()))?;
        rest = after;
    }
    Ok(total)
}

/// Formats a duration as [`parse_duration`] reads it, in hours and smaller units. A duration with a
/// fraction of a millisecond gets Rust's `Debug` form, for example `1.5ms`, which the parser
/// refuses.
pub(crate) fn format_duration(time: Duration) -> String {
    let whole = time.subsec_nanos().is_multiple_of(1_000_000);
    if time.is_zero() {
        return "0s".to_owned();
    }
    if !whole {
        return format!("{time:?}");
    }
    let seconds = time.as_secs();
    [
        (seconds / 3600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (time.subsec_millis().into(), "ms"),
    ]
    .into_iter()
    .filter(|(number, _)| *number > 0)
    .map(|(number, unit)| format!("{number}{unit}"))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_numbers_with_units_is_parsed() {
        for (text, millis) in [
            ("0s", 0),
            ("5s", 5_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("1h0m1s5ms", 3_601_005),
        ] {
            assert_eq!(parse_duration(text).unwrap().as_millis(), millis, "{text}");
        }
    }

    #[test]
    fn a_malformed_text_is_refused_with_its_mistake() {
        for (text, says) in [
            ("", "is empty"),
            ("5", "has no unit: did you mean 5s or 5ms?"),
            ("1m30", "has no unit"),
            ("0", "has no unit: write for example 5s"),
            ("s", "is not whole numbers"),
            ("-5s", "is not whole numbers"),
            ("1.5s", "unknown unit \".\""),
            ("5 s", "unknown unit \" s\""),
            ("5w", "unknown unit \"w\""),
            ("1s1s", "twice or out of order"),
            ("1s1m", "twice or out of order"),
            ("99999999999999999999s", "too large"),
            ("18446744073709551615h", "too large"),
        ] {
            let error = parse_duration(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_formatted_duration_is_parsed_to_the_same_duration() {
        for text in ["25h", "1m30s", "500ms", "1h1ms", "86400h"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        assert_eq!(format_duration(Duration::ZERO), "0s");
        assert_eq!(format_duration(Duration::from_micros(1500)), "1.5ms");
    }
}
