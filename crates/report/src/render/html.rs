//! The page as HTML.

use std::fmt::Write as _;

use super::{
    charts,
    cost_table::cost_table,
    costs::{Column, all_cost_tables},
    failures,
    frame::{chart_html, wrap_in_page},
    peer_table::peer_table,
    sections,
    text::{escape, join_names, keep_units_on_line, number, time},
};
use crate::compare::{
    ALTERNATIVES, Comparison, LEASE_LIMIT, Measure, PEERS_NOT_MEASURED, advice, busy_warning,
    criteria, load_sentence, stores_without_peers,
};

/// The report as one self-contained page: it has no script, fetches nothing, and has colours for a
/// light and for a dark screen.
#[must_use]
pub fn html(comparison: &Comparison) -> String {
    let keys: Vec<(String, String)> = comparison
        .stores
        .iter()
        .map(|store| (store.key.clone(), store.product.clone()))
        .collect();
    let mut page = opening_section(comparison);
    page += &guide_section(comparison);
    page += &alternatives_box();
    page += &promises_section(comparison);
    page += &cost_section(comparison);
    if let Some(failures) = failures::failure_section(comparison) {
        page += "<h2 id=\"failure\">Behaviour under failure</h2>\n\
                 <p>A bar is the time in which a client believed to hold the lock: from the \
                 answer to its request until its \
                 release was sent, or until it was told that the lock is lost. The shaded part is \
                 the fault. Two bars at the \
                 same time would be two holders.</p>\n";
        page += &failures;
    }
    page += &peers_section(comparison);
    page += &method_section(comparison);
    wrap_in_page("Distributed locks, side by side", &keys, &page)
}

/// The other ways of locking in the same stores: a table for each run, or a sentence that they were
/// not measured.
fn peers_section(comparison: &Comparison) -> String {
    let mut html = String::from("<h2 id=\"peers\">Other ways in the same stores</h2>\n");
    if comparison.peers.is_empty() {
        let _ = writeln!(html, "<p>{}</p>", escape(PEERS_NOT_MEASURED));
        return html;
    }
    html += "<p>Measured on the same servers in the same run, each table with its ways \
        interleaved; the first row is the plain \
             one. Plain rows and raw commands have no lease renewal, no token and no loss notice: \
             they show the floor that \
             the store sets. A ratio is bold when no round contradicts it and it is not printed \
             as 1.</p>\n";
    for run in &comparison.peers {
        html += &peer_table(comparison, run);
    }
    if let Some(without) = stores_without_peers(comparison) {
        let _ = writeln!(html, "<p>{}</p>", escape(&without));
    }
    html
}

/// The box about alternatives to a lock.
fn alternatives_box() -> String {
    let mut html =
        String::from("<aside class=\"box\" id=\"instead\"><h2>When not to use a lock</h2>\n<dl>");
    for it in ALTERNATIVES {
        let _ = write!(
            html,
            "<dt>{}: <b>{}</b></dt><dd>{}</dd>",
            escape(it.when),
            escape(it.take),
            escape(it.why)
        );
    }
    let _ = write!(html, "</dl>\n<p>{}</p></aside>\n", escape(LEASE_LIMIT));
    html
}

/// The title, the circumstances of the run with its warnings, and the links to the sections.
fn opening_section(comparison: &Comparison) -> String {
    let about = &comparison.about;
    let names: Vec<&str> = comparison
        .stores
        .iter()
        .map(|store| store.name.as_str())
        .collect();
    let mut html = format!(
        "<h1>Distributed locks, side by side</h1>\n<p>{} behind one lock library, measured in one \
         run on one machine: what each \
         promises, what it costs, and what happens when something dies.</p>\n<p \
         class=\"quiet\">{}. distlock {}. {} interleaved \
         {} of every figure.</p>\n",
        escape(&join_names(&names)),
        escape(&about.date),
        escape(&about.version),
        about.rounds,
        if about.rounds == 1 { "round" } else { "rounds" },
    );
    for remark in busy_warning(comparison).iter().chain(&about.remarks) {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(remark));
    }
    for store in &comparison.stores {
        if let Some(why) = &store.stopped {
            let _ = writeln!(
                html,
                "<p class=\"bad\">{} died half-way, so its later figures are missing: {}</p>",
                escape(&store.name),
                escape(why)
            );
        }
    }
    html += "<nav><a href=\"#guide\">Which one?</a><a href=\"#instead\">When not to</a><a \
        href=\"#promises\">Promises</a><a href=\"#cost\">Cost</a>";
    if !comparison.scenarios.is_empty() {
        html += "<a href=\"#failure\">Failure</a>";
    }
    html + "<a href=\"#peers\">Other ways</a><a href=\"#method\">Method</a></nav>\n"
}

/// Figures of all stores at a glance, the advice, and the criteria of the advice.
fn guide_section(comparison: &Comparison) -> String {
    let mut html = String::from("<h2 id=\"guide\">Which one?</h2>\n");
    html += &overview_table(comparison);
    html += "<ul class=\"advice\">\n";
    for it in advice(comparison) {
        let _ = writeln!(
            html,
            "<li><span class=\"quiet\">{}</span><strong>{}</strong>{}</li>",
            escape(&it.need),
            escape(&it.pick),
            escape(&keep_units_on_line(&it.because))
        );
    }
    html += "</ul>\n<details open><summary>How this advice is made</summary>\n<ul class=\"quiet\">";
    for it in criteria() {
        let _ = write!(html, "<li>{}</li>", escape(&it));
    }
    html + "</ul></details>\n"
}

/// The table of the most important figures; empty when none of them was measured.
fn overview_table(comparison: &Comparison) -> String {
    let columns = [
        Column::new("one cycle", "uncontended", Measure::P50, time),
        Column::new(
            "cycles/s, 64 callers",
            "independent-64",
            Measure::Rate,
            number,
        ),
        Column::new("wake-up elsewhere", "wakeup", Measure::P50, time),
        Column::new("takeover of a login", "kickout", Measure::P50, time),
        Column::new("takeover, other node", "takeover-cross", Measure::P50, time),
    ];
    cost_table(comparison, &columns).unwrap_or_default()
}

/// The results of the suite, the declared capabilities, and a text about each store.
fn promises_section(comparison: &Comparison) -> String {
    let mut html = String::from("<h2 id=\"promises\">What each one promises</h2>\n");
    if let Some(table) = sections::property_table(comparison) {
        html += "<p>Put to the test by the conformance suite on these very servers: cases that \
            passed, of those that were \
                 asked. The last rows are what was seen when servers were broken.</p>\n";
        html += &table;
    }
    for (store, said) in sections::failed_cases(comparison) {
        let _ = writeln!(
            html,
            "<p class=\"bad\">{}: {}</p>",
            escape(&store),
            escape(&said)
        );
    }
    if let Some(table) = sections::capability_table(comparison) {
        html += "<h3>As declared, and checked by the suite</h3>\n";
        html += &table;
    }
    html + &sections::prose_list(comparison)
}

/// The charts and tables of costs, and the experiments that failed.
fn cost_section(comparison: &Comparison) -> String {
    let mut html = String::from("<h2 id=\"cost\">What it costs</h2>\n<div class=\"grid\">\n");
    let drawn = [
        charts::latency_chart(comparison, "uncontended", "One cycle, one caller"),
        Some(charts::throughput_chart(comparison))
            .filter(|_| !comparison.sizes("independent").is_empty()),
        charts::latency_chart(comparison, "wakeup", "Wake-up of a waiter elsewhere"),
        charts::latency_chart(comparison, "handoff-2", "Hand-over inside a process"),
        charts::idle_chart(comparison),
        charts::latency_chart(
            comparison,
            "kickout",
            "Takeover of a session by a new login",
        ),
        charts::latency_chart(
            comparison,
            "takeover-cross",
            "Takeover of a client of another gateway node",
        ),
    ];
    for svg in drawn.iter().flatten() {
        html += &chart_html(svg);
    }
    html += "\n</div>\n";
    for (title, note, columns) in all_cost_tables(comparison) {
        if let Some(table) = cost_table(comparison, &columns) {
            let _ = write!(
                html,
                "<h3>{}</h3>\n<p class=\"quiet\">{}</p>\n{table}",
                escape(title),
                escape(&note)
            );
        }
    }
    for (store, experiment, why) in comparison.failures() {
        let _ = writeln!(
            html,
            "<p class=\"bad\">{} failed in {}: {}</p>",
            escape(store),
            escape(experiment),
            escape(why)
        );
    }
    html
}

/// How the run was made: method, load, command, machine, and the setup of each store.
fn method_section(comparison: &Comparison) -> String {
    let about = &comparison.about;
    let mut html = String::from(
        "<h2 id=\"method\">How this was made</h2>\n<p>Stores take turns, round by round, every \
         other round backwards, so that \
         what is compared ran in the same minute. A figure is the median of its rounds with the \
         lowest and the highest beside \
         it. Callers go through the same locker, with renewal, tokens and loss notice. A store \
         that fails leaves no number.</p>\n",
    );
    let _ = writeln!(html, "<p>{}</p>", escape(&load_sentence(comparison)));
    let _ = writeln!(html, "<p><code>{}</code></p>", escape(&about.command));
    html += "<div class=\"scroll\"><table><tbody>";
    for (label, value) in &about.machine {
        let _ = write!(
            html,
            "<tr><th>{}</th><td class=\"text\">{}</td></tr>",
            escape(label),
            escape(value)
        );
    }
    for store in &comparison.stores {
        let _ = write!(
            html,
            "<tr><th>{}</th><td class=\"text\">{}; {}</td></tr>",
            escape(&store.name),
            escape(&store.server),
            escape(&store.setup)
        );
    }
    html + "</tbody></table></div>\n<p class=\"quiet\">Every figure is in report.json, every \
        round in samples/.</p>\n"
}
