//! The tables of costs: titles, explanations, and columns.

use super::{
    figure_table::{Column, FigureTable},
    text::{bytes, kib, number, percent, time},
};
use crate::{
    compare::{Comparison, Measure},
    results::table::with_separators,
};

/// A table of costs: title, explanation, columns.
type CostTable = (&'static str, String, Vec<Column>);

/// The most important figures; `None` when none of them was measured.
pub(crate) fn overview_table(comparison: &Comparison) -> Option<FigureTable<'_>> {
    let columns = vec![
        Column::p50("one cycle", "uncontended"),
        Column::rate("cycles/s, 64 callers", "independent-64"),
        Column::p50("wake-up elsewhere", "wakeup"),
        Column::p50("takeover of a login", "kickout"),
        Column::p50("takeover, other node", "takeover-cross"),
    ];
    FigureTable::of_stores(comparison, columns)
}

/// Title, explanation and figures of each table of costs that has figures, in the order of the
/// page.
pub(crate) fn cost_tables(comparison: &Comparison) -> Vec<(&'static str, String, FigureTable<'_>)> {
    let mut all = cycle_costs(comparison);
    all.extend(waiting_costs());
    all.push(growth_costs(comparison));
    all.extend(kickout_costs());
    all.extend(recipe_costs());
    all.into_iter()
        .filter_map(|(title, note, columns)| {
            Some((title, note, FigureTable::of_stores(comparison, columns)?))
        })
        .collect()
}

/// Acquire and release without waiting.
fn cycle_costs(comparison: &Comparison) -> Vec<CostTable> {
    let mut rates = Vec::new();
    for size in comparison.sizes("independent") {
        rates.push(Column::new(
            if size == 1 {
                "1 caller".into()
            } else {
                format!("{size} callers")
            },
            format!("independent-{size}"),
            Measure::Rate,
            number,
        ));
    }
    vec![
        (
            "One caller",
            "One cycle is an acquire and a release.".into(),
            vec![
                Column::p50("half within", "uncontended"),
                Column::p99("99 % within", "uncontended"),
                Column::new(
                    "requests a cycle",
                    "uncontended",
                    Measure::Statements,
                    number,
                ),
                Column::new("bytes a cycle", "traffic", Measure::Bytes, bytes),
            ],
        ),
        (
            "Cycles a second, each caller its own name",
            "Where a store batches, many callers share one round trip and one disk flush.".into(),
            rates,
        ),
        (
            "What 64 callers cost the client",
            "Requests and processor time per cycle; peak resident memory of a process that does \
             nothing else."
                .into(),
            vec![
                Column::new(
                    "requests a cycle",
                    "independent-64",
                    Measure::Statements,
                    number,
                ),
                Column::new("processor a cycle", "independent-64", Measure::Cpu, time),
                Column::p99("99 % within", "independent-64"),
                Column::new("peak memory", "process-64", Measure::Memory, kib),
            ],
        ),
    ]
}

/// Callers that wait for one lock.
fn waiting_costs() -> Vec<CostTable> {
    vec![
        (
            "One name that everybody wants",
            "Sixteen callers of one process; busiest over idlest is 1 when all get the same. \
             Wake-up: from a release in one client to the grant in another client of the same \
             process; a polled store answers another process only at its next poll. While 64 \
             callers wait for a lock that is held elsewhere, the store is asked so often a second, \
             and so much travels both ways."
                .into(),
            vec![
                Column::rate("cycles a second", "contended-16"),
                Column::new(
                    "busiest over idlest",
                    "contended-16",
                    Measure::Unfairness,
                    number,
                ),
                Column::p50("hand-over, half within", "handoff-2"),
                Column::p50("wake-up elsewhere, half within", "wakeup"),
                Column::p99("wake-up, 99 % within", "wakeup"),
                Column::new(
                    "requests a second while \
                    waiting",
                    "waiting-64",
                    Measure::WaitingStatements,
                    number,
                ),
                Column::new(
                    "bytes a second while \
                    waiting",
                    "waiting-64",
                    Measure::WaitingBytes,
                    bytes,
                ),
            ],
        ),
        (
            "Fairness between processes",
            "Four processes want one lock, and each keeps it for 10 ms. When all get the same, \
             busiest over idlest is 1 and each share of the cycles is 25 %. Longest wait: of all \
             processes, from asking until the lock was released again, less the 10 ms."
                .into(),
            vec![
                Column::rate("cycles a second", "processes-4"),
                Column::new(
                    "busiest over idlest",
                    "processes-4",
                    Measure::Unfairness,
                    number,
                ),
                Column::new("least share", "processes-4", Measure::LeastShare, percent),
                Column::new("largest share", "processes-4", Measure::MostShare, percent),
                Column::new("longest wait", "processes-4", Measure::LongestWait, time),
            ],
        ),
    ]
}

/// The costs of a cycle while many other locks are held.
fn growth_costs(comparison: &Comparison) -> CostTable {
    let idle = comparison
        .sizes("idle")
        .into_iter()
        .map(|size| {
            let heading = format!("{} held", with_separators(u64::from(size)));
            Column::new(heading, format!("idle-{size}"), Measure::P50, time)
        })
        .collect();
    (
        "Growth: one cycle while other locks are held",
        "Half of the cycles of one caller are within this.".into(),
        idle,
    )
}

/// Logins that take sessions over, and messages between nodes.
fn kickout_costs() -> Vec<CostTable> {
    vec![
        (
            "The kick-out flow",
            "One account, two nodes: a login on the other device takes the session over and the \
             old one is told. Logins: different accounts, 32 at a time."
                .into(),
            vec![
                Column::p50("takeover, half within", "kickout"),
                Column::p99("99 % within", "kickout"),
                Column::rate("logins a second", "kickout"),
            ],
        ),
        (
            "The kick-out flow, with gateways and their clients",
            "One account, real WebSocket clients, two gateway nodes: from sending the new login \
             until the old client has read its notice and until its connection is gone, one \
             takeover at a time."
                .into(),
            vec![
                Column::p50("same node: told, half within", "takeover-local"),
                Column::p99("same node: told, 99 %", "takeover-local"),
                Column::p50(
                    "same node: gone, half \
                    within",
                    "takeover-local-gone",
                ),
                Column::p50("other node: told, half within", "takeover-cross"),
                Column::p99("other node: told, 99 %", "takeover-cross"),
                Column::p50(
                    "other node: gone, half \
                    within",
                    "takeover-cross-gone",
                ),
            ],
        ),
        (
            "Gateways with many clients",
            "Logins that each take over, and messages, in a second. Calls are to the store, per \
             takeover. An idle session's memory is that of the node's process, which for the \
             memory store has the records too."
                .into(),
            vec![
                Column::rate("logins a second", "takeovers"),
                Column::new("calls a takeover", "takeovers", Measure::Operations, number),
                Column::rate("messages a second", "messages"),
                Column::p50("a message, half within", "messages"),
                Column::new(
                    "memory of an idle session",
                    "sessions",
                    Measure::Memory,
                    kib,
                ),
            ],
        ),
    ]
}

/// Counters and the cache guard.
fn recipe_costs() -> Vec<CostTable> {
    vec![
        (
            "Unread counters",
            "Sixteen callers change one user's counters: an increment, and after every fourth a \
             clear. The ways give the same results; watch and script are a Redis server's own, \
             the transaction a database's. Begun anew: because somebody was in between, per change."
                .into(),
            vec![
                Column::rate("lock, changes a second", "counters-lock"),
                Column::rate(
                    "optimistic, changes a \
                    second",
                    "counters-optimistic",
                ),
                Column::new(
                    "begun anew a change",
                    "counters-optimistic",
                    Measure::Retries,
                    number,
                ),
                Column::rate("watch, changes a second", "counters-watch"),
                Column::new(
                    "begun anew a change",
                    "counters-watch",
                    Measure::Retries,
                    number,
                ),
                Column::rate("script, changes a second", "counters-script"),
                Column::rate(
                    "transaction, changes a \
                    second",
                    "counters-transaction",
                ),
            ],
        ),
        (
            "A hot value of a cache",
            "Sixty-four callers want one value that is fresh for 200 ms and takes 20 ms to load: \
             4.5 loads a second would do. The cache is in Redis, in the store's records, or in \
             memory where records tell no ages."
                .into(),
            vec![
                Column::new(
                    "loads a second, guarded",
                    "cache-guarded",
                    Measure::Loads,
                    number,
                ),
                Column::new(
                    "loads a second, without the \
                    guard",
                    "cache-naive",
                    Measure::Loads,
                    number,
                ),
                Column::rate("looks a second, guarded", "cache-guarded"),
                Column::p99("99 % within", "cache-guarded"),
            ],
        ),
    ]
}
