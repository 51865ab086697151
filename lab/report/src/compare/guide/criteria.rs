//! The criteria of the advice, as the report prints them.

use super::offers::{GOES_ON, IN_ORDER, WITHOUT_LOSS};
use crate::render::text::number;

/// The guide advises to stay with a store only if its figures are at most this many times worse
/// than the best other ones. Below that factor, the work under the lock costs more than the lock,
/// and a second store costs more to run.
pub const STAY_WITHIN: f64 = 5.0;

/// The criteria of the advice, in sentences of the report.
#[must_use]
pub fn criteria() -> Vec<String> {
    let within = number(STAY_WITHIN);
    vec![
        "Each store was measured under the durability that stands behind \"Measured under\". A \
         store that answers before a grant is on its disk is faster for that reason, and a power \
         cut can take back its last grants."
            .into(),
        "A best store is named only where the ranges of the rounds do not meet and the printed \
         figures differ."
            .into(),
        format!(
            "\"Stay with X\" is said of a store that is reached over the network if all of this \
             holds in this report: X did not stop; the suite found no broken promise; no fault \
             gave two holders or a store that did not come back; `doctor` warns of none of the \
             settings that durability rests on; and, beside the best other such store, one cycle \
             of one caller takes at most {within} times as long and 64 callers do at least \
             1/{within} of the cycles a second."
        ),
        format!(
            "If only the figures fall short, \"stay with X\" is limited to what no store with \
             better figures offers here: {IN_ORDER}, {GOES_ON}, or {WITHOUT_LOSS}."
        ),
    ]
}
