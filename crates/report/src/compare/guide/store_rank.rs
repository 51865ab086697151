//! How the figures of a store compare with those of the best other store.

use super::{
    criteria::STAY_WITHIN,
    fitness::{network_stores, unfit},
    offers::only_here,
    ranking::{LOOKED_AT, ranked},
};
use crate::{
    compare::model::{Comparison, StoreFacts},
    render::text::number,
};

/// The figures of a store compared with those of the others.
pub(super) enum StoreRank {
    /// It must not be advised: the advice to print instead, and the reason.
    Unfit(&'static str, String),
    /// Its figures are missing, or those of all other stores.
    Alone,
    /// Its figures are near the best ones.
    Near(Vec<String>),
    /// Its figures are far from the best ones.
    Far {
        beside: Vec<String>,
        better: String,
        only_here: Vec<&'static str>,
    },
}

pub(super) fn rank_store(comparison: &Comparison, store: &StoreFacts) -> StoreRank {
    if let Some((pick, why)) = unfit(comparison, store) {
        return StoreRank::Unfit(pick, why);
    }
    let others: Vec<&StoreFacts> = network_stores(comparison)
        .filter(|it| it.key != store.key)
        .collect();
    let (mut beside, mut far) = (Vec::new(), Vec::new());
    for (experiment, measure, what) in LOOKED_AT {
        let own = comparison.spread(&store.key, experiment, measure);
        let ranked = ranked(comparison, others.iter().copied(), experiment, measure);
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
        beside.push(compared(store, best, times, more, what));
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
        only_here: only_here(comparison, store, &others),
    }
}

/// `MySQL takes 3.2 times as long as Redis for one cycle of one caller.`
fn compared(store: &StoreFacts, best: &StoreFacts, times: f64, more: bool, what: &str) -> String {
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
