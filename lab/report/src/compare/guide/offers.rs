//! Properties that can be a reason to stay with a store whose figures are worse.

use super::{evidence::find_scenario, ranking::GUIDE_FIGURES};
use crate::compare::{
    model::{Comparison, ScenarioKind, StoreFacts},
    prose::failover_may_lose_locks,
};

/// Whether waiters are served in order. A case of the suite must have passed: a promise alone is no
/// reason for advice.
pub(super) fn serves_in_order(store: &StoreFacts) -> bool {
    let promised = store
        .promises
        .as_ref()
        .is_some_and(|it| it.fairness == "fifo");
    promised
        && store
            .properties
            .iter()
            .any(|it| it.property == "fairness" && it.passed > 0 && it.failed.is_empty())
}

/// A test whether this run has shown a property of a store.
type Offer = fn(&Comparison, &StoreFacts) -> bool;
const OFFERS: [(&str, Offer); 3] = [
    (IN_ORDER, |_, store| serves_in_order(store)),
    (GOES_ON, |comparison, store| {
        find_scenario(comparison, store, ScenarioKind::LeaderLost)
            .is_some_and(|it| it.usable_ms.is_some())
    }),
    (WITHOUT_LOSS, |comparison, store| {
        !failover_may_lose_locks(&store.product)
            && find_scenario(comparison, store, ScenarioKind::LeaderLost)
                .is_some_and(|it| it.usable_ms.is_some() && it.holder_kept == Some(true))
    }),
];
pub(super) const IN_ORDER: &str = "service in the order of arrival";
pub(super) const GOES_ON: &str = "locks that go on when a server dies";
pub(super) const WITHOUT_LOSS: &str = "locks that go on without loss when a server dies";

/// The properties that this store has, and that none of the better `others` has. Another store is
/// better if it has better values than this store for all figures of the guide.
pub(super) fn properties_only_here(
    comparison: &Comparison,
    store: &StoreFacts,
    others: &[&StoreFacts],
) -> Vec<&'static str> {
    let mut only: Vec<&str> = OFFERS
        .iter()
        .filter(|(_, offers)| {
            let better = |it: &&StoreFacts| {
                offers(comparison, it) && has_better_figures(comparison, it, store)
            };
            offers(comparison, store) && !others.iter().any(better)
        })
        .map(|(what, _)| *what)
        .collect();
    // The stronger property includes the weaker one, so the weaker one is left out.
    if only.contains(&WITHOUT_LOSS) {
        only.retain(|it| *it != GOES_ON);
    }
    only
}

/// Whether `one` has better values than `other` for all figures of the guide.
fn has_better_figures(comparison: &Comparison, one: &StoreFacts, other: &StoreFacts) -> bool {
    GUIDE_FIGURES.iter().all(|(experiment, measure, _)| {
        let of = |store: &StoreFacts| {
            let spread = comparison.spread(&store.key, experiment, *measure)?;
            Some(spread.median)
        };
        let (Some(one), Some(other)) = (of(one), of(other)) else {
            return false;
        };
        if measure.more_is_better() {
            one > other
        } else {
            one < other
        }
    })
}
