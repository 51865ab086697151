//! The other ways of locking in one store.

use super::{
    figure_table::{Cell, FigureTable, Row},
    text::{counted, number, printed_range, time},
};
use crate::{
    compare::{Comparison, PeerRun, describe_arm, is_difference},
    results::statistics::Spread,
};

/// An arm with its description: `redis-raw: SET NX PX and DEL`.
fn arm_with_description(arm: &str) -> String {
    match describe_arm(arm) {
        Some(what) if what != arm => format!("{arm}: {what}"),
        _ => arm.to_owned(),
    }
}

/// The heading of one run of `distlock-lab peers`: `Redis: uncontended, 1 caller`.
pub(crate) fn run_title(comparison: &Comparison, run: &PeerRun) -> String {
    let name = comparison
        .store(&run.store)
        .map_or(run.store.as_str(), |store| store.name.as_str());
    let workload = run.workload.map_or("", crate::Workload::as_str);
    format!("{name}: {workload}, {}", counted(run.callers, "caller"))
}

/// The figures of each way of locking in one run, and the ratio over the first way. A ratio is
/// marked if it is a difference.
pub(crate) fn peer_table(run: &PeerRun) -> FigureTable<'_> {
    let shown = |spread: Option<Spread>, show: fn(f64) -> String| {
        spread.map_or(Cell::Empty, |it| Cell::Figure {
            median: show(it.median),
            marked: false,
            range: printed_range(it, show),
        })
    };
    let rows = run.figures.iter().map(|figures| {
        let ratio = run.ratios.iter().find(|ratio| ratio.arm == figures.arm);
        let ratio = ratio.and_then(|ratio| ratio.cycles_per_second);
        let ratio = ratio.map_or(Cell::Empty, |it| Cell::Figure {
            median: format!("× {}", number(it.median)),
            marked: is_difference(it, number),
            range: printed_range(it, number),
        });
        Row {
            colour: None,
            label: arm_with_description(&figures.arm),
            cells: vec![
                shown(figures.cycles_per_second, number),
                shown(figures.p50_us, time),
                shown(figures.p99_us, time),
                ratio,
            ],
        }
    });
    FigureTable {
        heading: [
            "way",
            "cycles a second",
            "half within",
            "99 % within",
            "over the first",
        ]
        .map(Into::into)
        .into(),
        rows: rows.collect(),
    }
}
