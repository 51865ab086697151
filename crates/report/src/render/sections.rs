//! The tables of the page.

use std::fmt::Write as _;

use super::text::{bytes, escape, kib, number, percent, time, unbroken};
use crate::{
    compare::{
        Comparison, Measure, PROPERTIES, PeerRun, StoreFacts, durability, is_difference, prose,
        shown_by_faults, way,
    },
    results::statistics::Spread,
    results::table::count,
};

/// A column of a table of costs: heading, experiment, measure, how it is written.
pub(crate) struct Column {
    pub(crate) heading: String,
    pub(crate) experiment: String,
    pub(crate) measure: Measure,
    pub(crate) show: fn(f64) -> String,
}

impl Column {
    pub(crate) fn new(
        heading: impl Into<String>,
        experiment: impl Into<String>,
        measure: Measure,
        show: fn(f64) -> String,
    ) -> Self {
        Self {
            heading: heading.into(),
            experiment: experiment.into(),
            measure,
            show,
        }
    }

    /// Whose figure is marked, if any is.
    pub(crate) fn best<'a>(&self, comparison: &'a Comparison) -> Option<&'a str> {
        comparison.clear_best(&self.experiment, self.measure, self.show)
    }
}

/// The tables of costs: title, explanation, columns. Empty columns are left out by whoever draws them.
pub(crate) fn costs(comparison: &Comparison) -> Vec<(&'static str, String, Vec<Column>)> {
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
    let idle = comparison
        .sizes("idle")
        .into_iter()
        .map(|size| {
            let heading = format!("{} held", count(u64::from(size)));
            Column::new(heading, format!("idle-{size}"), Measure::P50, time)
        })
        .collect();
    vec![
        (
            "One caller",
            "One cycle is an acquire and a release.".into(),
            vec![
                Column::new("half within", "uncontended", Measure::P50, time),
                Column::new("99 % within", "uncontended", Measure::P99, time),
                Column::new("requests a cycle", "uncontended", Measure::Statements, number),
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
            "Requests and processor time per cycle; peak resident memory of a process that does nothing else.".into(),
            vec![
                Column::new("requests a cycle", "independent-64", Measure::Statements, number),
                Column::new("processor a cycle", "independent-64", Measure::Cpu, time),
                Column::new("99 % within", "independent-64", Measure::P99, time),
                Column::new("peak memory", "process-64", Measure::Memory, kib),
            ],
        ),
        (
            "One name that everybody wants",
            "Sixteen callers of one process; busiest over idlest is 1 when all get the same. Wake-up: from a release in one \
             client to the grant in another. While 64 callers wait for a lock that is held elsewhere, the store is asked so \
             often a second, and so much travels both ways."
                .into(),
            vec![
                Column::new("cycles a second", "contended-16", Measure::Rate, number),
                Column::new("busiest over idlest", "contended-16", Measure::Unfairness, number),
                Column::new("hand-over, half within", "handoff-2", Measure::P50, time),
                Column::new("wake-up elsewhere, half within", "wakeup", Measure::P50, time),
                Column::new("wake-up, 99 % within", "wakeup", Measure::P99, time),
                Column::new("requests a second while waiting", "waiting-64", Measure::WaitingStatements, number),
                Column::new("bytes a second while waiting", "waiting-64", Measure::WaitingBytes, bytes),
            ],
        ),
        (
            "Fairness between processes",
            "Four processes want one lock, and each keeps it for 10 ms. When all get the same, busiest over idlest is 1 and \
             each share of the cycles is 25 %. Longest wait: of all processes, from asking until the lock was released \
             again, less the 10 ms."
                .into(),
            vec![
                Column::new("cycles a second", "processes-4", Measure::Rate, number),
                Column::new("busiest over idlest", "processes-4", Measure::Unfairness, number),
                Column::new("least share", "processes-4", Measure::LeastShare, percent),
                Column::new("largest share", "processes-4", Measure::MostShare, percent),
                Column::new("longest wait", "processes-4", Measure::LongestWait, time),
            ],
        ),
        (
            "Growth: one cycle while other locks are held",
            "Half of the cycles of one caller are within this.".into(),
            idle,
        ),
        (
            "The kick-out flow",
            "One account, two nodes: a login on the other device takes the session over and the old one is told. Logins: \
             different accounts, 32 at a time."
                .into(),
            vec![
                Column::new("takeover, half within", "kickout", Measure::P50, time),
                Column::new("99 % within", "kickout", Measure::P99, time),
                Column::new("logins a second", "kickout", Measure::Rate, number),
            ],
        ),
        (
            "The kick-out flow, with gateways and their clients",
            "One account, real WebSocket clients, two gateway nodes: from sending the new login until the old client has read \
             its notice and until its connection is gone, one takeover at a time."
                .into(),
            vec![
                Column::new("same node: told, half within", "takeover-local", Measure::P50, time),
                Column::new("same node: told, 99 %", "takeover-local", Measure::P99, time),
                Column::new("same node: gone, half within", "takeover-local-gone", Measure::P50, time),
                Column::new("other node: told, half within", "takeover-cross", Measure::P50, time),
                Column::new("other node: told, 99 %", "takeover-cross", Measure::P99, time),
                Column::new("other node: gone, half within", "takeover-cross-gone", Measure::P50, time),
            ],
        ),
        (
            "Gateways with many clients",
            "Logins that each take over, and messages, in a second, two ways of routing: fenced compares at the target, locked \
             holds the account's lock from the lookup until the delivery. Calls are to the store, per takeover. An idle session's \
             memory is that of the node's process, which for the memory store has the records too."
                .into(),
            vec![
                Column::new("logins a second, fenced", "takeover-fenced", Measure::Rate, number),
                Column::new("logins a second, locked", "takeover-locked", Measure::Rate, number),
                Column::new("calls a takeover", "takeover-fenced", Measure::Operations, number),
                Column::new("messages a second, fenced", "route-fenced", Measure::Rate, number),
                Column::new("messages a second, locked", "route-locked", Measure::Rate, number),
                Column::new("a message, fenced, half within", "route-fenced", Measure::P50, time),
                Column::new("a message, locked, half within", "route-locked", Measure::P50, time),
                Column::new("memory of an idle session", "sessions", Measure::Memory, kib),
            ],
        ),
        (
            "Unread counters",
            "Sixteen callers change one user's counters: an increment, and after every fourth a clear. The ways give the same \
             results; watch and script are a Redis server's own, the transaction a database's. Begun anew: because somebody \
             was in between, per change."
                .into(),
            vec![
                Column::new("lock, changes a second", "counters-lock", Measure::Rate, number),
                Column::new("optimistic, changes a second", "counters-optimistic", Measure::Rate, number),
                Column::new("begun anew a change", "counters-optimistic", Measure::Retries, number),
                Column::new("watch, changes a second", "counters-watch", Measure::Rate, number),
                Column::new("begun anew a change", "counters-watch", Measure::Retries, number),
                Column::new("script, changes a second", "counters-script", Measure::Rate, number),
                Column::new("transaction, changes a second", "counters-transaction", Measure::Rate, number),
            ],
        ),
        (
            "A hot value of a cache",
            "Sixty-four callers want one value that is fresh for 200 ms and takes 20 ms to load: 4.5 loads a second would do. \
             The cache is in Redis, in the store's records, or in memory where records tell no ages."
                .into(),
            vec![
                Column::new("loads a second, guarded", "cache-guarded", Measure::Loads, number),
                Column::new("loads a second, without the guard", "cache-naive", Measure::Loads, number),
                Column::new("looks a second, guarded", "cache-guarded", Measure::Rate, number),
                Column::new("99 % within", "cache-guarded", Measure::P99, time),
            ],
        ),
    ]
}

/// A table of costs; `None` when nobody has a number or a reason for any column.
pub(crate) fn cost_table(comparison: &Comparison, columns: &[Column]) -> Option<String> {
    let columns: Vec<&Column> = columns
        .iter()
        .filter(|column| {
            comparison
                .figures
                .iter()
                .any(|it| it.experiment == column.experiment && it.measure == column.measure)
        })
        .collect();
    if columns.is_empty() {
        return None;
    }
    let mut html = String::from("<div class=\"scroll\"><table><thead><tr><th>store</th>");
    for column in &columns {
        let _ = write!(html, "<th>{}</th>", escape(&column.heading));
    }
    html += "</tr></thead><tbody>";
    for store in &comparison.stores {
        let _ = write!(html, "<tr><th>{}</th>", named(store));
        for column in &columns {
            html += &cell(comparison, store, column);
        }
        html += "</tr>";
    }
    Some(html + "</tbody></table></div>\n")
}

fn cell(comparison: &Comparison, store: &StoreFacts, column: &Column) -> String {
    let figure = comparison.figure(&store.key, &column.experiment, column.measure);
    if let Some(why) = figure.and_then(|it| it.missing.as_ref()) {
        return format!(
            "<td class=\"bad\" title=\"{}\">{}</td>",
            escape(why),
            gone(store)
        );
    }
    let Some(spread) = figure.and_then(crate::compare::Figure::spread) else {
        return "<td class=\"none\">–</td>".into();
    };
    let best = column.best(comparison) == Some(&store.key);
    let middle = unbroken(&(column.show)(spread.median));
    let middle = if best {
        format!("<b>{middle}</b>")
    } else {
        middle
    };
    format!("<td>{middle}{}</td>", behind(spread, column.show))
}

/// What stands where a number should be.
pub(crate) fn gone(store: &StoreFacts) -> &'static str {
    if store.stopped.is_some() {
        "died"
    } else {
        "failed"
    }
}

/// The range, where there was more than one round.
fn behind(spread: Spread, show: fn(f64) -> String) -> String {
    if show(spread.low) == show(spread.high) {
        return String::new();
    }
    // A line may break at the "to" only.
    let (low, high) = (unbroken(&show(spread.low)), unbroken(&show(spread.high)));
    format!("<small>{low} to {high}</small>")
}

/// A store's name with its colour.
pub(crate) fn named(store: &StoreFacts) -> String {
    format!(
        // No line breaks between the dot and the name.
        "<span class=\"dot\" style=\"color:var(--{})\">\u{25cf}</span>\u{a0}{}",
        store.key,
        escape(&store.name)
    )
}

/// Properties by store.
pub(crate) fn properties(comparison: &Comparison) -> Option<String> {
    if comparison
        .stores
        .iter()
        .all(|store| store.properties.is_empty())
    {
        return None;
    }
    let mut html = String::from("<div class=\"scroll\"><table><thead><tr><th>property</th>");
    for store in &comparison.stores {
        let _ = write!(html, "<th>{}</th>", escape(&store.name));
    }
    html += "</tr></thead><tbody>";
    for property in PROPERTIES {
        let _ = write!(html, "<tr><th>{}</th>", escape(property.title));
        for store in &comparison.stores {
            let Some(result) = store
                .properties
                .iter()
                .find(|it| it.property == property.key)
            else {
                html += "<td class=\"none\">–</td>";
                continue;
            };
            let cases = result.passed as usize + result.failed.len();
            let mark = result.mark();
            let _ = write!(html, "<td class=\"{}\">{mark}", class(mark));
            if cases > 0 {
                let _ = write!(html, " <small>{} of {cases}</small>", result.passed);
            }
            html += "</td>";
        }
        html += "</tr>";
    }
    for (title, marks) in shown_by_faults(comparison) {
        let _ = write!(html, "<tr><th>{title}</th>");
        for mark in marks {
            let _ = write!(html, "<td class=\"{}\">{mark}</td>", class(mark));
        }
        html += "</tr>";
    }
    Some(html + "</tbody></table></div>\n")
}

fn class(mark: &str) -> &'static str {
    match mark {
        "✓" => "ok",
        "✗" => "bad",
        _ => "none",
    }
}

/// What failed in the suite, word for word.
pub(crate) fn failed_cases(comparison: &Comparison) -> Vec<(String, String)> {
    comparison
        .stores
        .iter()
        .flat_map(|store| {
            store
                .properties
                .iter()
                .flat_map(|it| &it.failed)
                .map(|said| (store.name.clone(), said.clone()))
        })
        .collect()
}

/// One capability in words: label, and its value for a store.
pub(crate) fn capabilities(store: &StoreFacts) -> Option<Vec<(&'static str, String)>> {
    let it = store.promises.as_ref()?;
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    Some(vec![
        (
            "who can share it",
            match it.reach.as_str() {
                "process" => "tasks of one process".into(),
                "host" => "processes of one host".into(),
                "network" => "anybody who can connect".into(),
                other => other.to_owned(),
            },
        ),
        (
            "order of waiting processes",
            match it.fairness.as_str() {
                "fifo" => "first come, first served".into(),
                "none" => "whoever asks first".into(),
                other => other.to_owned(),
            },
        ),
        ("wake-up", it.wakeup.clone()),
        (
            "a lease hangs on",
            match it.lease.as_str() {
                "ttl" => "its own time".into(),
                "session" => "the session".into(),
                other => other.to_owned(),
            },
        ),
        ("whose clock ends it", it.expiry_clock.clone()),
        (
            "tokens rise",
            match it.fencing.as_str() {
                "global" => "over all locks".into(),
                "per_name" => "per name".into(),
                other => other.to_owned(),
            },
        ),
        ("shortest lease", super::text::millis(small(it.min_ttl_ms))),
        (
            "longest lease at a time",
            it.max_lease_ms
                .map_or_else(|| "as asked".into(), |ms| super::text::millis(small(ms))),
        ),
        ("locks survive a restart", yes(it.survives_restart)),
        ("hand-over in one step", yes(it.hand_over)),
        ("tickets", yes(it.tickets)),
    ])
}

fn small(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64() * 1e3
}

/// Capabilities by store.
pub(crate) fn capability_table(comparison: &Comparison) -> Option<String> {
    let stores: Vec<_> = comparison
        .stores
        .iter()
        .filter_map(|store| Some((store, capabilities(store)?)))
        .collect();
    let (_, first) = stores.first()?;
    let mut html = String::from("<div class=\"scroll\"><table><thead><tr><th></th>");
    for (store, _) in &stores {
        let _ = write!(html, "<th>{}</th>", escape(&store.name));
    }
    html += "</tr></thead><tbody>";
    for (row, (label, _)) in first.iter().enumerate() {
        let _ = write!(html, "<tr><th>{label}</th>");
        for (_, all) in &stores {
            let value = all.get(row).map_or("", |(_, value)| value.as_str());
            let _ = write!(html, "<td>{}</td>", escape(value));
        }
        html += "</tr>";
    }
    Some(html + "</tbody></table></div>\n")
}

/// Under which durability it was measured.
pub(crate) fn durable(store: &StoreFacts) -> String {
    durability(store).unwrap_or_else(|| "not recorded".into())
}

/// What each store promises and what breaks it, with its server and settings.
pub(crate) fn prose_list(comparison: &Comparison) -> String {
    let mut html = String::from("<div class=\"grid\">");
    for store in &comparison.stores {
        let _ = write!(
            html,
            "<section><h3>{}</h3><p class=\"quiet\">{}<br>{}<br>Durability when measured: {}</p>",
            named(store),
            escape(&store.server),
            escape(&store.setup),
            escape(&durable(store))
        );
        if let Some(prose) = prose(&store.product) {
            let _ = write!(
                html,
                "<p>{}</p><p><b>What breaks it.</b> {}</p>",
                escape(prose.promise),
                escape(prose.breaks)
            );
        }
        let open: Vec<_> = store
            .findings
            .iter()
            .filter(|it| it.verdict == "warn" || it.verdict == "fail")
            .collect();
        if !open.is_empty() {
            html += "<p class=\"quiet\">Found on this server:</p><ul class=\"quiet\">";
            for finding in open {
                let _ = write!(
                    html,
                    "<li>{} ({}): {}</li>",
                    escape(&finding.check),
                    escape(&finding.verdict),
                    escape(&finding.detail)
                );
            }
            html += "</ul>";
        }
        if let Some(why) = &store.stopped {
            let _ = write!(html, "<p class=\"bad\">Died half-way: {}</p>", escape(why));
        }
        html += "</section>";
    }
    html + "</div>\n"
}

/// An arm with what it does: `redis-raw: SET NX PX and DEL`.
pub(crate) fn way_named(arm: &str) -> String {
    match way(arm) {
        Some(what) if what != arm => format!("{arm}: {what}"),
        _ => arm.to_owned(),
    }
}

/// Other ways of locking in one store.
pub(crate) fn peer_table(comparison: &Comparison, run: &PeerRun) -> String {
    let name = comparison
        .store(&run.store)
        .map_or(run.store.as_str(), |store| store.name.as_str());
    let workload = run.workload.map_or("", crate::Workload::as_str);
    let heading = format!(
        "<h3>{}: {workload}, {} {}</h3>",
        escape(name),
        run.callers,
        if run.callers == 1 {
            "caller"
        } else {
            "callers"
        },
    );
    if let Some(why) = &run.missing {
        return format!(
            "{heading}<p class=\"bad\">Not measured: {}</p>\n",
            escape(why)
        );
    }
    let mut html = format!(
        "{heading}<div class=\"scroll\"><table><thead><tr><th>way</th><th>cycles a second</th>\
         <th>half within</th><th>99 % within</th><th>over the first</th></tr></thead><tbody>"
    );
    for figures in &run.figures {
        let ratio = run
            .ratios
            .iter()
            .find(|ratio| ratio.arm == figures.arm)
            .and_then(|ratio| ratio.cycles_per_second);
        let shown = |spread: Option<Spread>, show: fn(f64) -> String| {
            spread.map_or_else(
                || "–".into(),
                |it| format!("{}{}", unbroken(&show(it.median)), behind(it, show)),
            )
        };
        let ratio = ratio.map_or_else(
            || "–".into(),
            |it| {
                let text = format!("×\u{a0}{}", number(it.median));
                if is_difference(it, number) {
                    format!("<b>{text}</b>{}", behind(it, number))
                } else {
                    format!("{text}{}", behind(it, number))
                }
            },
        );
        let _ = write!(
            html,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{ratio}</td></tr>",
            escape(&way_named(&figures.arm)),
            shown(figures.cycles_per_second, number),
            shown(figures.p50_us, time),
            shown(figures.p99_us, time),
        );
    }
    html + "</tbody></table></div>\n"
}
