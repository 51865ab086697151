//! The advice of a report: first by need, then by the store that the reader already runs.
//!
//! Every sentence names its stores, and every number has its unit. The advice must not say anything
//! that this run does not show.

use std::iter::once;

use super::{
    evidence::{facts, may_lose, measured_under, recovery_after},
    fitness::{network_stores, reach, unfit},
    offers::serves_in_order,
    ranking::ranked,
    store_rank::{StoreRank, rank_store},
    words::{names, sentences},
};
use crate::{
    compare::{
        model::{Comparison, Measure, ScenarioKind, StoreFacts},
        prose::failover_may_lose,
    },
    render::text::{number, time},
};

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The reader's situation or need.
    pub need: String,
    /// The advice.
    pub pick: String,
    /// The figures behind it, in whole sentences.
    pub because: String,
}

/// All advice: first by need, then by the store that the reader already runs.
#[must_use]
pub fn advice(comparison: &Comparison) -> Vec<Advice> {
    let mut all = by_need(comparison);
    for store in &comparison.stores {
        all.extend(by_store(comparison, store));
    }
    all
}

fn by_need(comparison: &Comparison) -> Vec<Advice> {
    let mut all = Vec::new();
    if let Some(store) = comparison
        .stores
        .iter()
        .find(|store| reach(store) == "host" && unfit(comparison, store).is_none())
    {
        all.push(Advice {
            need: "One host, and no server to run".into(),
            pick: store.name.clone(),
            because: sentences([facts(comparison, store), measured_under(&[store])]),
        });
    }
    if let Some(callers) = comparison.sizes("independent").into_iter().max() {
        all.extend(best(
            comparison,
            "Most locks a second over the network",
            &format!("independent-{callers}"),
            Measure::Rate,
            &|value| {
                let unit = if callers == 1 { "caller" } else { "callers" };
                format!("{} cycles a second with {callers} {unit}", number(value))
            },
        ));
    }
    all.extend(best(
        comparison,
        "The lowest latency over the network",
        "uncontended",
        Measure::P50,
        &|value| format!("{} for one cycle of one caller", time(value)),
    ));
    all.extend(best(
        comparison,
        "The fastest wake-up of a waiter elsewhere",
        "wakeup",
        Measure::P50,
        &|value| {
            format!(
                "{} from a release to the grant in another client",
                time(value)
            )
        },
    ));
    let in_order: Vec<&StoreFacts> = network_stores(comparison)
        .filter(|it| serves_in_order(it))
        .collect();
    if !in_order.is_empty() {
        all.push(Advice {
            need: "Waiters of several processes served in the order in which they came".into(),
            pick: names(&in_order, "or"),
            because: format!(
                "Of the stores over the network here, {} alone {} it, and the suite saw it there.",
                names(&in_order, "and"),
                if in_order.len() == 1 {
                    "promises"
                } else {
                    "promise"
                },
            ),
        });
    }
    for store in network_stores(comparison) {
        let Some(recovery) = recovery_after(comparison, store, ScenarioKind::LeaderLost) else {
            continue;
        };
        let caution = failover_may_lose(&store.product);
        all.push(Advice {
            need: "Locks that go on when a server dies".into(),
            pick: if caution {
                format!("{}, if the token is checked at every write", store.name)
            } else {
                store.name.clone()
            },
            because: sentences([recovery, may_lose(store), measured_under(&[store])]),
        });
    }
    all
}

/// Names the best of the stores over the network, if its figures are clearly the best. Otherwise
/// names all stores that this run does not tell apart.
fn best(
    comparison: &Comparison,
    need: &str,
    experiment: &str,
    measure: Measure,
    show: &dyn Fn(f64) -> String,
) -> Option<Advice> {
    let all = ranked(comparison, network_stores(comparison), experiment, measure);
    let ((first, top), (second, next)) = (*all.first()?, *all.get(1)?);
    // Stores whose range meets the range of the first one, or whose printed figure is the same.
    let level: Vec<&StoreFacts> = all
        .iter()
        .filter(|(_, it)| {
            (it.high >= top.low && it.low <= top.high) || show(it.median) == show(top.median)
        })
        .map(|(store, _)| *store)
        .collect();
    let figures = format!(
        "{}: {}; {}: {}.",
        first.name,
        show(top.median),
        second.name,
        show(next.median)
    );
    let (pick, why, measured) = if level.len() < 2 {
        let why = format!(
            "The rounds of {} overlap those of no other store.",
            first.name
        );
        (first.name.clone(), why, measured_under(&[first, second]))
    } else {
        let why = format!(
            "This run does not tell {} apart: ranges meet, or the printed figures are equal.",
            names(&level, "and")
        );
        (names(&level, "or"), why, measured_under(&level))
    };
    Some(Advice {
        need: need.into(),
        pick,
        because: sentences([figures, why, measured]),
    })
}

fn by_store(comparison: &Comparison, store: &StoreFacts) -> Option<Advice> {
    if reach(store) != "network" {
        return None;
    }
    let name = &store.name;
    let (pick, why) = match rank_store(comparison, store) {
        StoreRank::Unfit(pick, why) => (pick.to_owned(), sentences([why])),
        StoreRank::Alone => (
            "No advice from this run".to_owned(),
            sentences([
                facts(comparison, store),
                format!("No figures of another store stand beside those of {name} here."),
            ]),
        ),
        StoreRank::Near(beside) => (
            format!("Stay with {name}"),
            sentences(once(facts(comparison, store)).chain(beside)),
        ),
        StoreRank::Far {
            beside,
            better,
            only_here,
        } if only_here.is_empty() => (
            format!("Rather {better} for its figures"),
            sentences(
                once(facts(comparison, store))
                    .chain(beside)
                    .chain(once(format!(
                        "Stores with better figures offer here all that {name} offers."
                    ))),
            ),
        ),
        StoreRank::Far {
            beside, only_here, ..
        } => (
            format!("Stay with {name} only for {}", only_here.join(" and ")),
            sentences(
                once(facts(comparison, store))
                    .chain(beside)
                    .chain(once(format!(
                        "No store with better figures than {name} was seen here to offer {}.",
                        only_here.join(" or ")
                    ))),
            ),
        ),
    };
    let after_a_crash = recovery_after(comparison, store, ScenarioKind::ServerKilled);
    Some(Advice {
        need: format!("You already run {name}"),
        pick,
        because: sentences([
            why,
            after_a_crash.unwrap_or_default(),
            may_lose(store),
            measured_under(&[store]),
        ]),
    })
}
