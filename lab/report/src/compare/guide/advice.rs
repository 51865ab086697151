//! The advice of a report: first by need, then by the store that the reader already runs.
//!
//! Every sentence names its stores, and every number has its unit. The advice must not say anything
//! that this run does not show.

use std::iter::once;

use super::{
    evidence::{durability_sentence, figures_sentence, loss_warning, recovery_sentence},
    fitness::{network_stores, reach_of, reason_against},
    offers::serves_in_order,
    ranking::rank_by_figure,
    store_rank::{StoreRank, rank_store},
    words::{join_sentences, join_store_names},
};
use crate::{
    compare::{
        model::{Comparison, Measure, ScenarioKind, StoreFacts},
        prose::failover_may_lose_locks,
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
    let mut all = advice_by_need(comparison);
    for store in &comparison.stores {
        all.extend(advice_for_user_of(comparison, store));
    }
    all
}

/// Advice for each need that this run can answer.
fn advice_by_need(comparison: &Comparison) -> Vec<Advice> {
    let mut all = Vec::new();
    if let Some(store) = comparison
        .stores
        .iter()
        .find(|store| reach_of(store) == "host" && reason_against(comparison, store).is_none())
    {
        all.push(Advice {
            need: "One host, and no server to run".into(),
            pick: store.name.clone(),
            because: join_sentences([
                figures_sentence(comparison, store),
                durability_sentence(&[store]),
            ]),
        });
    }
    if let Some(callers) = comparison.sizes("independent").into_iter().max() {
        all.extend(best_over_network(
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
    all.extend(best_over_network(
        comparison,
        "The lowest latency over the network",
        "uncontended",
        Measure::P50,
        &|value| format!("{} for one cycle of one caller", time(value)),
    ));
    all.extend(best_over_network(
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
            pick: join_store_names(&in_order, "or"),
            because: format!(
                "Of the stores over the network here, {} alone {} it, and the suite saw it there.",
                join_store_names(&in_order, "and"),
                if in_order.len() == 1 {
                    "promises"
                } else {
                    "promise"
                },
            ),
        });
    }
    for store in network_stores(comparison) {
        let Some(recovery) = recovery_sentence(comparison, store, ScenarioKind::LeaderLost) else {
            continue;
        };
        let caution = failover_may_lose_locks(&store.product);
        all.push(Advice {
            need: "Locks that go on when a server dies".into(),
            pick: if caution {
                format!("{}, if the token is checked at every write", store.name)
            } else {
                store.name.clone()
            },
            because: join_sentences([recovery, loss_warning(store), durability_sentence(&[store])]),
        });
    }
    all
}

/// Advises the best store over the network, if its figures are clearly the best. Otherwise advises
/// all stores that this run cannot tell apart from the best one. `None` when fewer than two stores
/// have the figure.
fn best_over_network(
    comparison: &Comparison,
    need: &str,
    experiment: &str,
    measure: Measure,
    show: &dyn Fn(f64) -> String,
) -> Option<Advice> {
    let all = rank_by_figure(comparison, network_stores(comparison), experiment, measure);
    let ((first, top), (second, next)) = (*all.first()?, *all.get(1)?);
    // The stores that this run cannot tell apart from the best one: the ranges overlap, or the
    // printed figures are equal.
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
        (
            first.name.clone(),
            why,
            durability_sentence(&[first, second]),
        )
    } else {
        let why = format!(
            "This run does not tell {} apart: ranges meet, or the printed figures are equal.",
            join_store_names(&level, "and")
        );
        (
            join_store_names(&level, "or"),
            why,
            durability_sentence(&level),
        )
    };
    Some(Advice {
        need: need.into(),
        pick,
        because: join_sentences([figures, why, measured]),
    })
}

/// Advice for a reader who already runs `store`; `None` for a store that is not reached over the
/// network.
fn advice_for_user_of(comparison: &Comparison, store: &StoreFacts) -> Option<Advice> {
    if reach_of(store) != "network" {
        return None;
    }
    let name = &store.name;
    let (pick, why) = match rank_store(comparison, store) {
        StoreRank::Unfit(pick, why) => (pick.to_owned(), join_sentences([why])),
        StoreRank::Alone => (
            "No advice from this run".to_owned(),
            join_sentences([
                figures_sentence(comparison, store),
                format!("No figures of another store stand beside those of {name} here."),
            ]),
        ),
        StoreRank::Near(beside) => (
            format!("Stay with {name}"),
            join_sentences(once(figures_sentence(comparison, store)).chain(beside)),
        ),
        StoreRank::Far {
            beside,
            better,
            only_here,
        } if only_here.is_empty() => (
            format!("Rather {better} for its figures"),
            join_sentences(
                once(figures_sentence(comparison, store))
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
            join_sentences(
                once(figures_sentence(comparison, store))
                    .chain(beside)
                    .chain(once(format!(
                        "No store with better figures than {name} was seen here to offer {}.",
                        only_here.join(" or ")
                    ))),
            ),
        ),
    };
    let after_a_crash = recovery_sentence(comparison, store, ScenarioKind::ServerKilled);
    Some(Advice {
        need: format!("You already run {name}"),
        pick,
        because: join_sentences([
            why,
            after_a_crash.unwrap_or_default(),
            loss_warning(store),
            durability_sentence(&[store]),
        ]),
    })
}
