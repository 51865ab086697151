//! Ranks stores by one figure.

use crate::{
    compare::model::{Comparison, Measure, StoreFacts},
    results::statistics::Spread,
};

/// The figures by which the guide compares stores: experiment, measure, description.
pub(super) const GUIDE_FIGURES: [(&str, Measure, &str); 2] = [
    ("uncontended", Measure::P50, "one cycle of one caller"),
    (
        "independent-64",
        Measure::Rate,
        "cycles a second with 64 callers",
    ),
];

/// The stores that have this figure, the best one first.
pub(super) fn rank_by_figure<'a>(
    comparison: &'a Comparison,
    stores: impl Iterator<Item = &'a StoreFacts>,
    experiment: &str,
    measure: Measure,
) -> Vec<(&'a StoreFacts, Spread)> {
    let mut all: Vec<_> = stores
        .filter_map(|store| {
            let spread = comparison.spread(&store.key, experiment, measure)?;
            Some((store, spread))
        })
        .collect();
    let more = measure.more_is_better();
    all.sort_by(|(_, a), (_, b)| {
        let order = a.median.total_cmp(&b.median);
        if more { order.reverse() } else { order }
    });
    all
}
