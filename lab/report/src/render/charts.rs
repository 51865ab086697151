//! The data of each chart.

use super::{
    svg::{Bar, LineSeries, RangeRow, Svg},
    text::{millis, number, time},
};
use crate::{
    compare::{Comparison, Measure, Scenario, ScenarioKind, StoreFacts},
    results::table::with_separators,
};

/// Key and product of each store: the product decides the colour.
pub(crate) fn store_keys(comparison: &Comparison) -> Vec<(String, String)> {
    comparison
        .stores
        .iter()
        .map(|store| (store.key.clone(), store.product.clone()))
        .collect()
}

/// The note under a chart that says how its values were measured.
fn rounds_note(comparison: &Comparison) -> String {
    format!("median of {} interleaved rounds", comparison.about.rounds)
}

/// The charts of what a store costs.
pub(crate) fn cost_charts(comparison: &Comparison) -> Vec<Svg> {
    let latency = |experiment, title| latency_chart(comparison, experiment, title);
    let throughput =
        (!comparison.sizes("independent").is_empty()).then(|| throughput_chart(comparison));
    let charts = [
        latency("uncontended", "One cycle, one caller"),
        throughput,
        latency("wakeup", "Wake-up of a waiter elsewhere"),
        latency("handoff-2", "Hand-over inside a process"),
        idle_chart(comparison),
        latency("kickout", "Takeover of a session by a new login"),
        latency(
            "takeover-cross",
            "Takeover of a client of another gateway node",
        ),
    ];
    charts.into_iter().flatten().collect()
}

/// Cycles a second, by the number of callers.
fn throughput_chart(comparison: &Comparison) -> Svg {
    let sizes = comparison.sizes("independent");
    let series = line_series(comparison, |store| {
        sizes
            .iter()
            .map(|size| {
                let experiment = format!("independent-{size}");
                let rate = comparison.spread(&store.key, &experiment, Measure::Rate)?;
                Some(rate.median)
            })
            .collect()
    });
    let steps: Vec<String> = sizes
        .iter()
        .map(|size| {
            if *size == 1 {
                "1 caller".into()
            } else {
                size.to_string()
            }
        })
        .collect();
    Svg::new(
        "Lock cycles a second",
        &format!("each caller its own name; {}", rounds_note(comparison)),
        store_keys(comparison),
    )
    .draw_lines(&steps, &series, short_number)
}

/// Throughput by the number of callers, as a picture of its own for a README.
#[must_use]
pub fn throughput_svg(comparison: &Comparison) -> String {
    throughput_chart(comparison).standalone()
}

/// Latency of one caller while other locks are held in the store. `None` when fewer than two
/// numbers of held locks were measured.
fn idle_chart(comparison: &Comparison) -> Option<Svg> {
    let sizes = comparison.sizes("idle");
    if sizes.len() < 2 {
        return None;
    }
    let series = line_series(comparison, |store| {
        sizes
            .iter()
            .map(|size| {
                let experiment = format!("idle-{size}");
                let time = comparison.spread(&store.key, &experiment, Measure::P50)?;
                Some(time.median)
            })
            .collect()
    });
    let steps: Vec<String> = sizes
        .iter()
        .map(|size| format!("{} held", with_separators(u64::from(*size))))
        .collect();
    Some(
        Svg::new(
            "One cycle while other locks are held",
            &format!("one caller; {}", rounds_note(comparison)),
            store_keys(comparison),
        )
        .draw_lines(&steps, &series, coarse_time),
    )
}

/// One line for each store that has a value at one step at least.
fn line_series(
    comparison: &Comparison,
    values: impl Fn(&StoreFacts) -> Vec<Option<f64>>,
) -> Vec<LineSeries> {
    comparison
        .stores
        .iter()
        .map(|store| LineSeries {
            key: store.key.clone(),
            label: store.name.clone(),
            values: values(store),
        })
        .filter(|series| series.values.iter().any(Option::is_some))
        .collect()
}

/// A latency of every store: the median, and a bar to the 99th percentile. `None` when no store has
/// this latency.
fn latency_chart(comparison: &Comparison, experiment: &str, title: &str) -> Option<Svg> {
    let mut rows: Vec<RangeRow> = comparison
        .stores
        .iter()
        .filter_map(|store| {
            let middle = comparison.spread(&store.key, experiment, Measure::P50)?;
            let slow = comparison.spread(&store.key, experiment, Measure::P99);
            Some(RangeRow {
                key: store.key.clone(),
                label: store.name.clone(),
                low: middle.median,
                middle: middle.median,
                high: slow.map_or(middle.median, |slow| slow.median.max(middle.median)),
                text: time(middle.median),
            })
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    rows.sort_by(|a, b| a.middle.total_cmp(&b.middle));
    let note = "dot: half are faster; bar: to the slowest in a hundred";
    Some(Svg::new(title, note, store_keys(comparison)).draw_ranges(&rows, coarse_time))
}

/// The time from a fault to the next holder, or to the next cycle that succeeds.
pub(crate) fn recovery_chart(comparison: &Comparison, kind: ScenarioKind) -> Option<Svg> {
    let mut rows: Vec<RangeRow> = comparison
        .scenarios
        .iter()
        .filter(|scenario| scenario.kind == kind)
        .filter_map(|scenario| {
            let store = comparison.store(&scenario.store)?;
            let value = scenario_time(scenario)?;
            Some(RangeRow {
                key: store.key.clone(),
                label: store.name.clone(),
                low: value,
                middle: value,
                high: value,
                text: millis(value),
            })
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    rows.sort_by(|a, b| a.middle.total_cmp(&b.middle));
    let note = match kind {
        ScenarioKind::HolderKilled => "from SIGKILL to the grant of the next holder",
        ScenarioKind::ServerKilled => {
            "from SIGKILL until a lock can be taken again, restart included"
        }
        ScenarioKind::ServerPaused => "from SIGSTOP until a lock can be taken again",
        ScenarioKind::LeaderLost => {
            "from SIGKILL of the deciding server until a lock can be taken again"
        }
    };
    Some(Svg::new(kind.title(), note, store_keys(comparison)).draw_ranges(&rows, coarse_millis))
}

/// The time that a scenario measures.
pub(crate) fn scenario_time(scenario: &Scenario) -> Option<f64> {
    match scenario.kind {
        ScenarioKind::HolderKilled => scenario.next_holder_ms,
        _ => scenario.usable_ms,
    }
}

/// The clients of a scenario, and the times in which each client believed to hold the lock.
pub(crate) fn holders_chart(comparison: &Comparison, scenario: &Scenario) -> Option<Svg> {
    let store = comparison.store(&scenario.store)?;
    let bar = |it: &crate::compare::Interval| Bar {
        from: it.from,
        until: it.until,
        text: it.label.clone(),
    };
    let lanes: Vec<(String, Vec<Bar>)> = scenario
        .lanes
        .iter()
        .map(|lane| (lane.who.clone(), lane.holds.iter().map(bar).collect()))
        .collect();
    let end = scenario
        .lanes
        .iter()
        .flat_map(|lane| &lane.holds)
        .chain(&scenario.fault)
        .map(|it| it.until)
        .fold(0.0, f64::max);
    if end <= 0.0 {
        return None;
    }
    let fault = scenario.fault.as_ref().map(bar);
    Some(
        Svg::new(&store.name, scenario.kind.title(), store_keys(comparison)).draw_lanes(
            &store.key,
            end * 1.02,
            fault.as_ref(),
            &lanes,
        ),
    )
}

/// A number for an axis: `250`, `10k`, `1M`.
fn short_number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", number(value / 1e6)),
        value if value >= 1e3 => format!("{}k", number(value / 1e3)),
        value => number(value),
    }
}

/// A time for an axis: `10 µs`, `1 ms`.
fn coarse_time(us: f64) -> String {
    match us {
        us if us <= 0.0 => "0".into(),
        us if us < 1.0 => format!("{} ns", number(us * 1e3)),
        us if us < 1e3 => format!("{} µs", number(us)),
        us if us < 1e6 => format!("{} ms", number(us / 1e3)),
        us => format!("{} s", number(us / 1e6)),
    }
}

/// As `coarse_time`, for milliseconds.
fn coarse_millis(ms: f64) -> String {
    coarse_time(ms * 1e3)
}
