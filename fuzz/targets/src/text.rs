//! What every text for people must keep to.

use std::fmt::Display;

/// Stands where a secret stands.
pub(crate) const SECRET: &str = "hunter2-of-the-fuzzer";

/// Fails where a text repeats the planted secret.
#[track_caller]
pub(crate) fn keeps_secret(shown: impl Display) {
    let shown = shown.to_string();
    assert!(!shown.contains(SECRET), "a secret is shown: {shown}");
}

/// Fails where an error about a text of so many bytes is longer than a few sentences and that text,
/// escaped.
#[track_caller]
pub(crate) fn is_bounded(error: impl Display, input: usize) {
    let said = error.to_string();
    // The longest escape is `\u{10ffff}`, of a sign of four bytes; a text may be named twice.
    let most = 2048 + 2 * 10 * input;
    assert!(said.len() <= most, "{} bytes: {said}", said.len());
}
