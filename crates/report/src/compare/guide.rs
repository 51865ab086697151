//! Which store to pick, from what was measured. Nothing is said that the figures of this run do not carry.

use crate::{
    compare::{Comparison, Measure, ScenarioKind, StoreFacts},
    render::text::{millis, number, time},
};

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The reader's situation or need.
    pub need: String,
    /// What to do.
    pub pick: String,
    /// The figures behind it.
    pub because: String,
}

/// All that can be said: first by need, then by what the reader already runs.
#[must_use]
pub fn advice(comparison: &Comparison) -> Vec<Advice> {
    let mut all = by_need(comparison);
    for store in &comparison.stores {
        all.extend(by_store(comparison, store));
    }
    all
}

fn shared(comparison: &Comparison) -> impl Iterator<Item = &StoreFacts> {
    comparison
        .stores
        .iter()
        .filter(|store| store.stopped.is_none() && reach(store) == "network")
}

fn reach(store: &StoreFacts) -> &str {
    store.promises.as_ref().map_or("", |it| it.reach.as_str())
}

fn by_need(comparison: &Comparison) -> Vec<Advice> {
    let mut all = Vec::new();
    if let Some(store) = comparison
        .stores
        .iter()
        .find(|store| reach(store) == "host" && store.stopped.is_none())
    {
        all.push(Advice {
            need: "One host, and no server to run".into(),
            pick: store.name.clone(),
            because: facts(comparison, store),
        });
    }
    let largest = comparison.sizes("independent").into_iter().max();
    if let Some(callers) = largest {
        let experiment = format!("independent-{callers}");
        all.extend(best(
            comparison,
            "Most locks a second over the network",
            &experiment,
            Measure::Rate,
            &format!("cycles a second with {callers} callers"),
            number,
        ));
    }
    all.extend(best(
        comparison,
        "The lowest latency over the network",
        "uncontended",
        Measure::P50,
        "for one cycle of one caller",
        time,
    ));
    all.extend(best(
        comparison,
        "The fastest wake-up of a waiter elsewhere",
        "wakeup",
        Measure::P50,
        "from a release to the grant in another client",
        time,
    ));
    let in_order: Vec<&str> = shared(comparison)
        .filter(|store| {
            store
                .promises
                .as_ref()
                .is_some_and(|it| it.fairness == "fifo")
        })
        .map(|store| store.name.as_str())
        .collect();
    if !in_order.is_empty() {
        all.push(Advice {
            need: "Waiters of several processes served in the order in which they came".into(),
            pick: in_order.join(" or "),
            because: "Nothing else here promises it; the suite checks that it is so.".into(),
        });
    }
    for scenario in &comparison.scenarios {
        let (ScenarioKind::LeaderLost, Some(usable), Some(store)) = (
            scenario.kind,
            scenario.usable_ms,
            comparison.store(&scenario.store),
        ) else {
            continue;
        };
        all.push(Advice {
            need: "Locks that go on when a server dies".into(),
            pick: store.name.clone(),
            because: format!(
                "With its leader killed, a lock could be taken again after {}{}.",
                millis(usable),
                match scenario.holder_kept {
                    Some(true) => ", and the one that was held stayed held",
                    Some(false) => "; the one that was held was lost, and its holder was told",
                    None => "",
                }
            ),
        });
    }
    all
}

/// Who is clearly best among the stores that are reached over the network; or that nobody is.
fn best(
    comparison: &Comparison,
    need: &str,
    experiment: &str,
    measure: Measure,
    what: &str,
    show: fn(f64) -> String,
) -> Option<Advice> {
    let mut all: Vec<_> = shared(comparison)
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
    let ((first, top), (second, next)) = (*all.first()?, *all.get(1)?);
    let figures = format!(
        "{} {what}, {} {}",
        show(top.median),
        second.name,
        show(next.median)
    );
    // Everybody whose range meets the best one's.
    let level: Vec<&str> = all
        .iter()
        .filter(|(_, it)| it.high >= top.low && it.low <= top.high)
        .map(|(store, _)| store.name.as_str())
        .collect();
    Some(if level.len() < 2 {
        Advice {
            need: need.into(),
            pick: first.name.clone(),
            because: format!("{figures}; the ranges of the rounds do not meet."),
        }
    } else {
        Advice {
            need: need.into(),
            pick: level.join(" or "),
            because: format!(
                "{figures}; the ranges of the rounds overlap, so this run does not tell them apart."
            ),
        }
    })
}

fn by_store(comparison: &Comparison, store: &StoreFacts) -> Option<Advice> {
    if reach(store) != "network" {
        return None;
    }
    let need = format!("You already run {}", store.name);
    if let Some(why) = &store.stopped {
        return Some(Advice {
            need,
            pick: "No advice from this run".into(),
            because: format!("It stopped answering: {why}"),
        });
    }
    let broken: Vec<&str> = store
        .properties
        .iter()
        .filter(|it| !it.failed.is_empty())
        .map(|it| it.property.as_str())
        .collect();
    if !broken.is_empty() {
        return Some(Advice {
            need,
            pick: "Not before this is understood".into(),
            because: format!("The suite found broken promises: {}.", broken.join(", ")),
        });
    }
    Some(Advice {
        need,
        pick: format!("Stay with {}", store.name),
        because: facts(comparison, store) + &after_a_crash(comparison, store),
    })
}

/// What became of a held lock when the server died and came back.
fn after_a_crash(comparison: &Comparison, store: &StoreFacts) -> String {
    let crash = comparison
        .scenarios
        .iter()
        .find(|it| it.store == store.key && it.kind == ScenarioKind::ServerKilled);
    let Some((Some(kept), Some(usable))) = crash.map(|it| (it.holder_kept, it.usable_ms)) else {
        return String::new();
    };
    format!(
        " With its server killed and started again, a lock could be taken again after {}, and {}.",
        millis(usable),
        if kept {
            "the one that was held stayed held"
        } else {
            "the one that was held had run out meanwhile, which its holder was told"
        }
    )
}

/// The figures of one store in a sentence.
fn facts(comparison: &Comparison, store: &StoreFacts) -> String {
    let mut parts = Vec::new();
    let spread = |experiment: &str, measure| comparison.spread(&store.key, experiment, measure);
    if let Some(it) = spread("uncontended", Measure::P50) {
        parts.push(format!("one cycle {}", time(it.median)));
    }
    if let Some(it) = spread("independent-64", Measure::Rate) {
        parts.push(format!(
            "{} cycles a second with 64 callers",
            number(it.median)
        ));
    }
    if let Some(it) = spread("wakeup", Measure::P50) {
        parts.push(format!("a waiter elsewhere woken in {}", time(it.median)));
    }
    let killed = comparison
        .scenarios
        .iter()
        .find(|it| it.store == store.key && it.kind == ScenarioKind::HolderKilled);
    if let Some((ttl, next)) = killed.and_then(|it| Some((it.ttl_ms, it.next_holder_ms?))) {
        parts.push(format!(
            "the next holder {} after a killed one (lease {} s)",
            millis(next),
            number(std::time::Duration::from_millis(ttl).as_secs_f64())
        ));
    }
    if parts.is_empty() {
        return "Nothing was measured.".into();
    }
    let mut text = parts.join(", ");
    if let Some(first) = text.get(..1) {
        text = first.to_uppercase() + &text[1..];
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::model::tests::small;

    fn network(mut comparison: Comparison) -> Comparison {
        for store in &mut comparison.stores {
            store.promises = Some(crate::compare::Promises {
                fencing: "per_name".into(),
                fairness: "none".into(),
                wakeup: "push".into(),
                lease: "ttl".into(),
                min_ttl_ms: 100,
                max_lease_ms: None,
                survives_restart: true,
                expiry_clock: "server".into(),
                reach: "network".into(),
                tickets: true,
                hand_over: true,
            });
        }
        comparison
    }

    #[test]
    fn a_winner_needs_ranges_that_do_not_meet() {
        let all = advice(&network(small()));
        let of = |need: &str| all.iter().find(|it| it.need.contains(need)).unwrap();
        assert_eq!(of("Most locks").pick, "Redis");
        assert_eq!(of("lowest latency").pick, "SQLite or Redis");
        assert!(of("lowest latency").because.contains("overlap"));
    }

    #[test]
    fn a_store_that_died_is_not_advised() {
        let mut all = network(small());
        all.stores[0].stopped = Some("connection refused".into());
        let said = advice(&all);
        let redis = said.iter().find(|it| it.need.contains("Redis")).unwrap();
        assert!(redis.because.contains("connection refused"));
        assert!(said.iter().all(|it| it.pick != "Redis"));
    }
}
