//! Sentences that give the figures behind a piece of advice.

use std::time::Duration;

use crate::{
    compare::{
        durability::durability,
        model::{Comparison, Measure, Scenario, ScenarioKind, StoreFacts},
        prose::failover_may_lose_locks,
    },
    render::text::{millis, number, time},
};

/// The scenario of one kind that was run in a store.
pub(super) fn find_scenario<'a>(
    comparison: &'a Comparison,
    store: &StoreFacts,
    kind: ScenarioKind,
) -> Option<&'a Scenario> {
    comparison
        .scenarios
        .iter()
        .find(|it| it.store == store.key && it.kind == kind)
}

/// The time until locks could be taken again after a fault, and the fate of the lock that was held.
/// `None` when it was not measured.
pub(super) fn recovery_sentence(
    comparison: &Comparison,
    store: &StoreFacts,
    kind: ScenarioKind,
) -> Option<String> {
    let fault = find_scenario(comparison, store, kind)?;
    let what = match kind {
        ScenarioKind::HolderKilled => return None,
        ScenarioKind::ServerKilled => "its server was killed and started again",
        ScenarioKind::ServerPaused => "its server stood still",
        ScenarioKind::LeaderLost if failover_may_lose_locks(&store.product) => {
            "its primary was killed"
        }
        ScenarioKind::LeaderLost => "its leader was killed",
    };
    Some(format!(
        "{} gave locks again {} after {what}{}.",
        store.name,
        millis(fault.usable_ms?),
        match fault.holder_kept {
            Some(true) => ", and the lock that was held stayed held",
            Some(false) => ", and the lock that was held was lost, which its holder was told",
            None => "",
        }
    ))
}

/// A warning if a failover of the store can lose a granted lock; empty otherwise.
pub(super) fn loss_warning(store: &StoreFacts) -> String {
    if !failover_may_lose_locks(&store.product) {
        return String::new();
    }
    format!(
        "{} replicates asynchronously, so a failover can lose a granted lock: then only the token \
         tells two holders apart.",
        store.name
    )
}

/// The figures of one store, in a sentence.
pub(super) fn figures_sentence(comparison: &Comparison, store: &StoreFacts) -> String {
    let mut parts = Vec::new();
    let spread = |experiment: &str, measure| comparison.spread(&store.key, experiment, measure);
    if let Some(it) = spread("uncontended", Measure::P50) {
        parts.push(format!("{} for one cycle of one caller", time(it.median)));
    }
    if let Some(it) = spread("independent-64", Measure::Rate) {
        let rate = number(it.median);
        parts.push(format!("{rate} cycles a second with 64 callers"));
    }
    if let Some(it) = spread("wakeup", Measure::P50) {
        let late = time(it.median);
        parts.push(format!(
            "{late} from a release to the grant in another client"
        ));
    }
    let killed = find_scenario(comparison, store, ScenarioKind::HolderKilled);
    if let Some((ttl, next)) = killed.and_then(|it| Some((it.ttl_ms, it.next_holder_ms?))) {
        parts.push(format!(
            "{} from the death of a holder to the next grant (lease {} s)",
            millis(next),
            number(Duration::from_millis(ttl).as_secs_f64())
        ));
    }
    if parts.is_empty() {
        return format!("{}: not measured.", store.name);
    }
    format!("{}: {}.", store.name, parts.join(", "))
}

/// `Measured under: Redis, append-only file, appendfsync everysec; Postgres,
/// synchronous_commit=on.`
pub(super) fn durability_sentence(stores: &[&StoreFacts]) -> String {
    let each: Vec<String> = stores
        .iter()
        .map(|store| {
            let durability = durability(store);
            let said = durability.as_deref().unwrap_or("durability not recorded");
            format!("{}, {said}", store.name)
        })
        .collect();
    format!("Measured under: {}.", each.join("; "))
}
