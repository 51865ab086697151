//! Another lock server, beside the lock server of a comparison, with the figures that its authors
//! publish: it was not measured here.

use super::costs::spread_text;
use crate::{
    compare::{Comparison, Measure},
    results::statistics::Spread,
    text::{Table, number, time},
};

/// The name and version of the other server.
const SERVER: &str = "dflockd 1.16.0";
/// The machine on which its authors measured it.
const MACHINE: &str = "Apple M1 (MacBook Air, 8 GB)";

/// The callers, the cycles a second, and the times within which half and 99 % of the cycles ended,
/// in microseconds. The source is the table "Performance" in the README of
/// `github.com/mtingers/dflockd`, at commit 01261765618b8ed20d1a6d848addc754f9b9a224.
const FIGURES: [(u32, f64, f64, f64); 6] = [
    (1, 13_440.0, 62.0, 178.0),
    (10, 45_861.0, 215.0, 382.0),
    (50, 83_516.0, 513.0, 2_096.0),
    (100, 87_448.0, 935.0, 4_192.0),
    (200, 89_706.0, 1_864.0, 7_892.0),
    (500, 85_124.0, 5_117.0, 18_554.0),
];

/// The published figures, and those of the lock server if it was measured.
pub(super) fn lock_servers(it: &Comparison) -> Table {
    let heading = [
        "lock server",
        "machine",
        "callers",
        "cycles a second",
        "half within",
        "99 % within",
    ];
    let mut table = Table::new(heading);
    for store in it.stores.iter().filter(|it| it.product == "lock-server") {
        for callers in it.sizes("independent") {
            let text = |measure, show: fn(f64) -> String| {
                let spread = it.spread(&store.key, &format!("independent-{callers}"), measure);
                spread.map_or_else(|| "–".into(), |it: Spread| spread_text(it, show, false))
            };
            table.add_row([
                store.name.clone(),
                "this one".into(),
                callers.to_string(),
                text(Measure::Rate, number),
                text(Measure::P50, time),
                text(Measure::P99, time),
            ]);
        }
    }
    for (callers, rate, half, most) in FIGURES {
        table.add_row([
            SERVER.into(),
            MACHINE.into(),
            callers.to_string(),
            number(rate),
            time(half),
            time(most),
        ]);
    }
    table
}
