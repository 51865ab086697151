//! The tables of costs, as data: titles, notes, and columns.

use crate::{
    compare::{Comparison, Measure, StoreFacts},
    results::statistics::Spread,
    text::{Table, with_separators},
};

/// A table of costs.
pub(crate) struct CostTable {
    pub(crate) title: &'static str,
    pub(crate) note: &'static str,
    columns: &'static [Column],
}

/// The heading, the experiment and the measure of a column. An experiment that ends with `*` stands
/// for all its sizes, and the heading is then the word after the size.
type Column = (&'static str, &'static str, Measure);

use Measure::{
    Bytes, Cpu, LeastShare, Loads, LongestWait, Memory, MostShare, Operations, P50, P99, Rate,
    Retries, Statements, Unfairness, WaitingBytes, WaitingStatements,
};

/// The most important figures.
pub(crate) const OVERVIEW: CostTable = CostTable {
    title: "",
    note: "",
    columns: &[
        ("one cycle", "uncontended", P50),
        ("cycles/s, 64 callers", "independent-64", Rate),
        ("wake-up elsewhere", "wakeup", P50),
        ("takeover, other node", "takeover-cross", P50),
    ],
};

/// All tables, in the order of the page.
pub(crate) const TABLES: [CostTable; 10] = [
    CostTable {
        title: "One caller",
        note: "One cycle is an acquire and a release.",
        columns: &[
            ("half within", "uncontended", P50),
            ("99 % within", "uncontended", P99),
            ("requests a cycle", "uncontended", Statements),
            ("bytes a cycle", "traffic", Bytes),
        ],
    },
    CostTable {
        title: "Cycles a second, each caller its own name",
        note: "Where a store batches, many callers share one round trip and one disk flush.",
        columns: &[("callers", "independent-*", Rate)],
    },
    CostTable {
        title: "What 64 callers cost the client",
        note: "Peak memory is that of a process that does nothing else.",
        columns: &[
            ("requests a cycle", "independent-64", Statements),
            ("processor a cycle", "independent-64", Cpu),
            ("99 % within", "independent-64", P99),
            ("peak memory", "process-64", Memory),
        ],
    },
    CostTable {
        title: "One name that everybody wants",
        note: "Sixteen callers of one process. Wake-up: from a release in one client to the grant \
               in another client of the same process. Waiting: 64 callers wait for a lock that is \
               held elsewhere.",
        columns: &[
            ("cycles a second", "contended-16", Rate),
            ("busiest over idlest", "contended-16", Unfairness),
            ("hand-over, half within", "handoff-2", P50),
            ("wake-up elsewhere, half within", "wakeup", P50),
            ("wake-up, 99 % within", "wakeup", P99),
            (
                "requests a second while waiting",
                "waiting-64",
                WaitingStatements,
            ),
            ("bytes a second while waiting", "waiting-64", WaitingBytes),
        ],
    },
    CostTable {
        title: "Fairness between processes",
        note: "Four processes want one lock, and each keeps it for 10 ms. Longest wait: from \
               asking until the lock was released again, less the 10 ms.",
        columns: &[
            ("cycles a second", "processes-4", Rate),
            ("busiest over idlest", "processes-4", Unfairness),
            ("least share", "processes-4", LeastShare),
            ("largest share", "processes-4", MostShare),
            ("longest wait", "processes-4", LongestWait),
        ],
    },
    CostTable {
        title: "Growth: one cycle while other locks are held",
        note: "Half of the cycles of one caller are within this.",
        columns: &[("held", "idle-*", P50)],
    },
    CostTable {
        title: "The kick-out flow, with gateways and their clients",
        note: "From sending the new login until the old client has read its notice, and until its \
               connection is gone. One takeover at a time, real WebSocket clients, two nodes.",
        columns: &[
            ("same node: told, half within", "takeover-local", P50),
            ("same node: told, 99 %", "takeover-local", P99),
            ("same node: gone, half within", "takeover-local-gone", P50),
            ("other node: told, half within", "takeover-cross", P50),
            ("other node: told, 99 %", "takeover-cross", P99),
            ("other node: gone, half within", "takeover-cross-gone", P50),
        ],
    },
    CostTable {
        title: "Gateways with many clients",
        note: "Logins that each take over, and messages, in a second. Calls are to the store, per \
               takeover. An idle session's memory is that of the node's process, which for the \
               memory store has the records too.",
        columns: &[
            ("logins a second", "takeovers", Rate),
            ("calls a takeover", "takeovers", Operations),
            ("messages a second", "messages", Rate),
            ("a message, half within", "messages", P50),
            ("memory of an idle session", "sessions", Memory),
        ],
    },
    CostTable {
        title: "Unread counters",
        note: "Sixteen callers change one user's counters: an increment, and after every fourth a \
               clear. Begun anew: because somebody was in between, per change.",
        columns: &[
            ("lock, changes a second", "counters-lock", Rate),
            ("optimistic, changes a second", "counters-optimistic", Rate),
            ("begun anew a change", "counters-optimistic", Retries),
            ("watch, changes a second", "counters-watch", Rate),
            ("begun anew a change", "counters-watch", Retries),
            ("script, changes a second", "counters-script", Rate),
            (
                "transaction, changes a second",
                "counters-transaction",
                Rate,
            ),
        ],
    },
    CostTable {
        title: "A hot value of a cache",
        note: "Sixty-four callers want one value that is fresh for 200 ms and takes 20 ms to load: \
               4.5 loads a second would do.",
        columns: &[
            ("loads a second, guarded", "cache-guarded", Loads),
            ("loads a second, without the guard", "cache-naive", Loads),
            ("looks a second, guarded", "cache-guarded", Rate),
            ("99 % within", "cache-guarded", P99),
        ],
    },
];

impl CostTable {
    /// A row for each store, without the columns that no store has a figure for.
    pub(crate) fn fill(&self, comparison: &Comparison) -> Table {
        let columns: Vec<_> = self.sized_columns(comparison);
        let mut table = Table::new(["store"].into_iter().chain(columns.iter().map(|it| &*it.0)));
        for store in comparison.stores.iter().filter(|_| !columns.is_empty()) {
            let cells = columns
                .iter()
                .map(|(_, experiment, measure)| cell(comparison, store, experiment, *measure));
            table.add_row([store.name.clone()].into_iter().chain(cells));
        }
        table
    }

    /// The columns that a store has a figure for, one for each size of an experiment with sizes.
    fn sized_columns(&self, comparison: &Comparison) -> Vec<(String, String, Measure)> {
        let mut all = Vec::new();
        for (title, experiment, measure) in self.columns {
            match experiment.strip_suffix("-*") {
                None => all.push(((*title).to_owned(), (*experiment).to_owned(), *measure)),
                Some(family) => all.extend(comparison.sizes(family).into_iter().map(|size| {
                    let title = format!("{} {title}", with_separators(size.into()));
                    (title, format!("{family}-{size}"), *measure)
                })),
            }
        }
        all.retain(|(_, experiment, measure)| {
            let mut figures = comparison.figures.iter();
            figures.any(|it| it.experiment == *experiment && it.measure == *measure)
        });
        all
    }
}

/// The figure of a store, in bold if it is clearly the best one.
fn cell(comparison: &Comparison, store: &StoreFacts, experiment: &str, measure: Measure) -> String {
    if comparison.missing(&store.key, experiment).is_some() {
        let died = store.stopped.is_some();
        return if died { "died" } else { "failed" }.into();
    }
    let is_best = comparison.clear_best(experiment, measure) == Some(&store.key);
    let spread = comparison.spread(&store.key, experiment, measure);
    spread.map_or_else(
        || "–".into(),
        |spread| spread_text(spread, |it| measure.show(it), is_best),
    )
}

/// The median, in bold if it is marked, with its range unless that is printed alike.
pub(crate) fn spread_text(
    Spread { median, low, high }: Spread,
    show: impl Fn(f64) -> String,
    marked: bool,
) -> String {
    let bold = if marked { "**" } else { "" };
    let [median, low, high] = [median, low, high].map(show);
    let range = if low == high {
        String::new()
    } else {
        format!(" ({low} to {high})")
    };
    format!("{bold}{median}{bold}{range}")
}
