//! Rules for every text that people read.

use std::fmt::Display;

/// The planted secret.
pub(crate) const SECRET: &str = "hunter2-of-the-fuzzer";

/// Fails if a text repeats the planted secret.
#[track_caller]
pub(crate) fn keeps_secret(shown: impl Display) {
    let shown = shown.to_string();
    assert!(!shown.contains(SECRET), "a secret is shown: {shown}");
}

/// Fails if an error about an input of this many bytes is longer than a few sentences plus the
/// escaped input.
#[track_caller]
pub(crate) fn is_bounded(error: impl Display, input: usize) {
    let said = error.to_string();
    // The longest escape is `\u{10ffff}`, for a character of four bytes. The error may contain the
    // input twice.
    let most = 2048 + 2 * 10 * input;
    assert!(said.len() <= most, "{} bytes: {said}", said.len());
}
