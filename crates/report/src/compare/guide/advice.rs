//! Which store to pick, from what was measured.
//!
//! It owns the criteria, which the report prints. Every sentence names its stores, and every number
//! has its unit. It says nothing that this run does not show.

use std::{iter::once, time::Duration};

use crate::{
    compare::{
        Comparison, Measure, Scenario, ScenarioKind, StoreFacts,
        durability::{durability, not_durable},
        prose::failover_may_lose,
    },
    render::text::{millis, number, time},
    results::statistics::Spread,
};

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The reader's situation or need.
    pub need: String,
    /// What to do.
    pub pick: String,
    /// The figures behind it, in whole sentences.
    pub because: String,
}

/// "Stay with" needs figures at most so many times worse than the best other store's. Below that,
/// the work under the lock costs more than the lock, and a second store costs more to run.
pub const STAY_WITHIN: f64 = 5.0;

/// The figures that "stay with" looks at: experiment, measure, what it is.
const LOOKED_AT: [(&str, Measure, &str); 2] = [
    ("uncontended", Measure::P50, "one cycle of one caller"),
    (
        "independent-64",
        Measure::Rate,
        "cycles a second with 64 callers",
    ),
];

/// What decides about the advice, for the report itself.
#[must_use]
pub fn criteria() -> Vec<String> {
    let within = number(STAY_WITHIN);
    vec![
        "Each store was measured under the durability that stands behind \"Measured under\". A store that answers before \
         a grant is on its disk is faster for that reason, and a power cut can take back its last grants."
            .into(),
        "A best store is named only where the ranges of the rounds do not meet and the printed figures differ.".into(),
        format!(
            "\"Stay with X\" is said of a store that is reached over the network if all of this holds in this report: X \
             did not stop; the suite found no broken promise; no fault gave two holders or a store that did not come \
             back; `doctor` warns of none of the settings that durability rests on; and, beside the best other such \
             store, one cycle of one caller takes at most {within} times as long and 64 callers do at least 1/{within} \
             of the cycles a second."
        ),
        format!(
            "If only the figures fall short, \"stay with X\" is limited to what no store with better figures offers here: \
             {IN_ORDER}, {GOES_ON}, or {WITHOUT_LOSS}."
        ),
    ]
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

fn reach(store: &StoreFacts) -> &str {
    store.promises.as_ref().map_or("", |it| it.reach.as_str())
}

/// Reached over the network, and nothing speaks against it.
fn shared(comparison: &Comparison) -> impl Iterator<Item = &StoreFacts> {
    comparison
        .stores
        .iter()
        .filter(|store| reach(store) == "network" && unfit(comparison, store).is_none())
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
    let in_order: Vec<&StoreFacts> = shared(comparison)
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
    for store in shared(comparison) {
        let Some(survived) = survived(comparison, store, ScenarioKind::LeaderLost) else {
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
            because: sentences([survived, may_lose(store), measured_under(&[store])]),
        });
    }
    all
}

/// The suite must have seen it: a promise alone is no advice.
fn serves_in_order(store: &StoreFacts) -> bool {
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

/// Who is clearly best among the stores that are reached over the network; or that nobody is.
fn best(
    comparison: &Comparison,
    need: &str,
    experiment: &str,
    measure: Measure,
    show: &dyn Fn(f64) -> String,
) -> Option<Advice> {
    let all = ranked(comparison, shared(comparison), experiment, measure);
    let ((first, top), (second, next)) = (*all.first()?, *all.get(1)?);
    // Whose range meets the best one's, or who prints the same.
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

/// Best first.
fn ranked<'a>(
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

fn by_store(comparison: &Comparison, store: &StoreFacts) -> Option<Advice> {
    if reach(store) != "network" {
        return None;
    }
    let name = &store.name;
    let (pick, why) = match standing(comparison, store) {
        Standing::Unfit(pick, why) => (pick.to_owned(), sentences([why])),
        Standing::Alone => (
            "No advice from this run".to_owned(),
            sentences([
                facts(comparison, store),
                format!("No figures of another store stand beside those of {name} here."),
            ]),
        ),
        Standing::Near(beside) => (
            format!("Stay with {name}"),
            sentences(once(facts(comparison, store)).chain(beside)),
        ),
        Standing::Far {
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
        Standing::Far {
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
    let after_a_crash = survived(comparison, store, ScenarioKind::ServerKilled);
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

/// How a store stands beside the others.
enum Standing {
    /// It must not be advised: what to do instead, and why.
    Unfit(&'static str, String),
    /// Its figures, or all others', are missing.
    Alone,
    /// Its figures are near the best ones.
    Near(Vec<String>),
    /// They are not; and what it offers that no store with better figures does.
    Far {
        beside: Vec<String>,
        better: String,
        only_here: Vec<&'static str>,
    },
}

fn standing(comparison: &Comparison, store: &StoreFacts) -> Standing {
    if let Some((pick, why)) = unfit(comparison, store) {
        return Standing::Unfit(pick, why);
    }
    let others: Vec<&StoreFacts> = shared(comparison)
        .filter(|it| it.key != store.key)
        .collect();
    let (mut beside, mut far) = (Vec::new(), Vec::new());
    for (experiment, measure, what) in LOOKED_AT {
        let own = comparison.spread(&store.key, experiment, measure);
        let ranked = ranked(comparison, others.iter().copied(), experiment, measure);
        let (Some(own), Some((best, top))) = (own, ranked.first()) else {
            return Standing::Alone;
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
        return Standing::Near(beside);
    };
    Standing::Far {
        beside,
        better: first.name.clone(),
        only_here: only_here(comparison, store, &others),
    }
}

/// What may speak for a store whose figures do not.
type Offer = fn(&Comparison, &StoreFacts) -> bool;
const OFFERS: [(&str, Offer); 3] = [
    (IN_ORDER, |_, store| serves_in_order(store)),
    (GOES_ON, |comparison, store| {
        played(comparison, store, ScenarioKind::LeaderLost).is_some_and(|it| it.usable_ms.is_some())
    }),
    (WITHOUT_LOSS, |comparison, store| {
        !failover_may_lose(&store.product)
            && played(comparison, store, ScenarioKind::LeaderLost)
                .is_some_and(|it| it.usable_ms.is_some() && it.holder_kept == Some(true))
    }),
];
const IN_ORDER: &str = "service in the order of arrival";
const GOES_ON: &str = "locks that go on when a server dies";
const WITHOUT_LOSS: &str = "locks that go on without loss when a server dies";

/// What a store offers, and no store does whose figures are better.
fn only_here(
    comparison: &Comparison,
    store: &StoreFacts,
    others: &[&StoreFacts],
) -> Vec<&'static str> {
    let mut only: Vec<&str> = OFFERS
        .iter()
        .filter(|(_, offers)| {
            let better = |it: &&StoreFacts| offers(comparison, it) && nearer(comparison, it, store);
            offers(comparison, store) && !others.iter().any(better)
        })
        .map(|(what, _)| *what)
        .collect();
    // The stronger one says it all.
    if only.contains(&WITHOUT_LOSS) {
        only.retain(|it| *it != GOES_ON);
    }
    only
}

/// Whether all figures that are looked at are better than another store's.
fn nearer(comparison: &Comparison, one: &StoreFacts, other: &StoreFacts) -> bool {
    LOOKED_AT.iter().all(|(experiment, measure, _)| {
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

/// Why a store must not be advised at all.
fn unfit(comparison: &Comparison, store: &StoreFacts) -> Option<(&'static str, String)> {
    let name = &store.name;
    if let Some(why) = &store.stopped {
        let why = format!("{name} stopped answering: {why}");
        return Some(("No advice from this run", why));
    }
    let broken: Vec<&str> = store
        .properties
        .iter()
        .filter(|it| !it.failed.is_empty())
        .map(|it| it.property.as_str())
        .collect();
    if !broken.is_empty() {
        let why = format!(
            "The suite found broken promises of {name}: {}.",
            broken.join(", ")
        );
        return Some(("Not before this is understood", why));
    }
    let wrong = comparison
        .scenarios
        .iter()
        .find(|it| it.store == store.key && (it.broken.is_some() || it.failed.is_some()));
    if let Some(wrong) = wrong {
        let said = wrong.broken.as_ref().or(wrong.failed.as_ref());
        let why = format!(
            "{name} did not pass \"{}\": {}.",
            wrong.kind.title(),
            said.map_or("", String::as_str)
        );
        return Some(("Not before this is understood", why));
    }
    if let Some(setting) = not_durable(store).first() {
        let why = format!("On {name}, {} is {}.", setting.check, setting.detail);
        return Some(("Not with these settings", why));
    }
    None
}

fn played<'a>(
    comparison: &'a Comparison,
    store: &StoreFacts,
    kind: ScenarioKind,
) -> Option<&'a Scenario> {
    comparison
        .scenarios
        .iter()
        .find(|it| it.store == store.key && it.kind == kind)
}

/// When locks could be taken again after a fault, and what became of the one that was held.
fn survived(comparison: &Comparison, store: &StoreFacts, kind: ScenarioKind) -> Option<String> {
    let fault = played(comparison, store, kind)?;
    let what = match kind {
        ScenarioKind::HolderKilled => return None,
        ScenarioKind::ServerKilled => "its server was killed and started again",
        ScenarioKind::ServerPaused => "its server stood still",
        ScenarioKind::LeaderLost if failover_may_lose(&store.product) => "its primary was killed",
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

fn may_lose(store: &StoreFacts) -> String {
    if !failover_may_lose(&store.product) {
        return String::new();
    }
    format!(
        "{} replicates asynchronously, so a failover can lose a granted lock: then only the token tells two holders apart.",
        store.name
    )
}

/// The figures of one store in a sentence.
fn facts(comparison: &Comparison, store: &StoreFacts) -> String {
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
    let killed = played(comparison, store, ScenarioKind::HolderKilled);
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
fn measured_under(stores: &[&StoreFacts]) -> String {
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

/// `a, b or c`.
fn names(stores: &[&StoreFacts], last: &str) -> String {
    let names: Vec<&str> = stores.iter().map(|it| it.name.as_str()).collect();
    match names.as_slice() {
        [many @ .., end] if !many.is_empty() => format!("{} {last} {end}", many.join(", ")),
        all => all.concat(),
    }
}

fn sentences(all: impl IntoIterator<Item = String>) -> String {
    let all: Vec<String> = all.into_iter().filter(|it| !it.is_empty()).collect();
    all.join(" ")
}
