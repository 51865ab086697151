//! Compares the figures of a store with those of the best other store.

use super::{
    criteria::STAY_WITHIN,
    fitness::{network_stores, reason_against},
    offers::properties_only_here,
    ranking::{GUIDE_FIGURES, rank_by_figure},
};
use crate::{
    compare::model::{Comparison, StoreFacts},
    render::text::number,
};

/// The result of comparing the figures of a store with those of the others.
pub(super) enum StoreRank {
    /// The store must not be advised: the advice to print instead, and the reason.
    Unfit(&'static str, String),
    /// A figure of this store is missing, or no other store has that figure.
    Alone,
    /// All figures of the store are within the limit of the best ones. The sentences compare them.
    Near(Vec<String>),
    /// A figure of the store exceeds the limit.
    Far {
        /// Sentences that compare the figures.
        beside: Vec<String>,
        /// The name of a store whose figure is far better.
        better: String,
        /// Properties that none of the better stores has.
        only_here: Vec<&'static str>,
    },
}

/// Compares the figures of `store` with those of the best other store.
pub(super) fn rank_store(comparison: &Comparison, store: &StoreFacts) -> StoreRank {
    if let Some((pick, why)) = reason_against(comparison, store) {
        return StoreRank::Unfit(pick, why);
    }
    let others: Vec<&StoreFacts> = network_stores(comparison)
        .filter(|it| it.key != store.key)
        .collect();
    let (mut beside, mut far) = (Vec::new(), Vec::new());
    for (experiment, measure, what) in GUIDE_FIGURES {
        let own = comparison.spread(&store.key, experiment, measure);
        let ranked = rank_by_figure(comparison, others.iter().copied(), experiment, measure);
        let (Some(own), Some((best, top))) = (own, ranked.first()) else {
            return StoreRank::Alone;
        };
        let more = measure.more_is_better();
        let (better, worse) = if more {
            (top.median, own.median)
        } else {
            (own.median, top.median)
        };
        let times = better / worse;
        beside.push(comparison_sentence(store, best, times, more, what));
        if times > STAY_WITHIN {
            far.push(*best);
        }
    }
    let Some(first) = far.first() else {
        return StoreRank::Near(beside);
    };
    StoreRank::Far {
        beside,
        better: first.name.clone(),
        only_here: properties_only_here(comparison, store, &others),
    }
}

/// `MySQL takes 3.2 times as long as Redis for one cycle of one caller.`
fn comparison_sentence(
    store: &StoreFacts,
    best: &StoreFacts,
    times: f64,
    more: bool,
    what: &str,
) -> String {
    let (name, other) = (&store.name, &best.name);
    let shown = number(times.max(1.0 / times));
    if shown == number(1.0) {
        return format!("{name} and {other} are level in {what}.");
    }
    match (more, times > 1.0) {
        (false, true) => format!("{name} takes {shown} times as long as {other} for {what}."),
        (false, false) => format!("{other} takes {shown} times as long as {name} for {what}."),
        (true, true) => format!("{other} does {shown} times as many {what} as {name}."),
        (true, false) => format!("{name} does {shown} times as many {what} as {other}."),
    }
}
