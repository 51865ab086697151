//! Counts as floating-point numbers.

/// A count as a floating-point number, to calculate with.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}
