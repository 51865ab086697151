//! The tables of promises, as HTML.

use std::fmt::Write as _;

use super::text::{coloured_name, escape};
use crate::compare::{Comparison, PROPERTIES, StoreFacts, durability, prose, shown_by_faults};

/// The result of each property for each store; `None` when no store was tested.
pub(crate) fn property_table(comparison: &Comparison) -> Option<String> {
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
            let _ = write!(html, "<td class=\"{}\">{mark}", css_class(mark));
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
            let _ = write!(html, "<td class=\"{}\">{mark}</td>", css_class(mark));
        }
        html += "</tr>";
    }
    Some(html + "</tbody></table></div>\n")
}

/// The style class of a mark.
fn css_class(mark: &str) -> &'static str {
    match mark {
        "✓" => "ok",
        "✗" => "bad",
        _ => "none",
    }
}

/// The failed cases of the suite: the name of the store, and the message.
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

/// The capabilities of one store in words, as labels and values; `None` when they are unknown.
pub(crate) fn capability_rows(store: &StoreFacts) -> Option<Vec<(&'static str, String)>> {
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
        (
            "shortest lease",
            super::text::millis(whole_millis(it.min_ttl_ms)),
        ),
        (
            "longest lease at a time",
            it.max_lease_ms.map_or_else(
                || "as asked".into(),
                |ms| super::text::millis(whole_millis(ms)),
            ),
        ),
        ("locks survive a restart", yes(it.survives_restart)),
        ("hand-over in one step", yes(it.hand_over)),
        ("tickets", yes(it.tickets)),
    ])
}

/// Whole milliseconds as a floating-point number.
fn whole_millis(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64() * 1e3
}

/// The capabilities of each store; `None` when none is known.
pub(crate) fn capability_table(comparison: &Comparison) -> Option<String> {
    let stores: Vec<_> = comparison
        .stores
        .iter()
        .filter_map(|store| Some((store, capability_rows(store)?)))
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

/// The durability under which a store was measured.
pub(crate) fn durability_text(store: &StoreFacts) -> String {
    durability(store).unwrap_or_else(|| "not recorded".into())
}

/// The promise of each store and the events that break it, with its server and settings.
pub(crate) fn prose_list(comparison: &Comparison) -> String {
    let mut html = String::from("<div class=\"grid\">");
    for store in &comparison.stores {
        let _ = write!(
            html,
            "<section><h3>{}</h3><p class=\"quiet\">{}<br>{}<br>Durability when measured: {}</p>",
            coloured_name(store),
            escape(&store.server),
            escape(&store.setup),
            escape(&durability_text(store))
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
