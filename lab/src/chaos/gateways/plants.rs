//! The planted bugs of a store that the kick-out flow does not survive, and what they break in it.
//!
//! They are the same layers that the locks' runs have around their store. What a flow takes care of
//! by itself, such as a token that is repeated, is no bug here: the generation rises all the same.

use distlock_checker::{Invariant, Invariant::*, Report};

use crate::chaos::plants::Plant;

/// Each bug, and the invariants of which one must be found broken.
pub(super) const ALL: [(Plant, &[Invariant]); 4] = [
    // A node overwrites what another one has written since it looked.
    (Plant::WritesIgnoreVersions, &[I1, I2, I3, I4, I13]),
    // A login is confirmed that is in no directory.
    (Plant::WritesAreForgotten, &[I1, I2, I3, I4, I7, I14]),
    // A lookup finds what was there before a login that was confirmed.
    (Plant::ReadsAreStale, &[I1, I3, I4, I7]),
    // A node that lost its lease believes in it.
    (Plant::RenewalErrorIsSuccess, &[I1, I2, I3]),
];

/// Whether one of the bug's invariants was broken.
pub(super) fn is_caught_by(plant: Plant, report: &Report) -> bool {
    let breaks = ALL.iter().find(|(it, _)| *it == plant);
    let violated = report.violated();
    breaks.is_some_and(|(_, breaks)| breaks.iter().any(|it| violated.contains(it)))
}
