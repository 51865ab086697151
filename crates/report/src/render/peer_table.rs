//! The table of other ways of locking in one store, as HTML.

use std::fmt::Write as _;

use super::text::{escape, number, on_one_line, range_suffix, time};
use crate::{
    compare::{Comparison, PeerRun, describe_arm, is_difference},
    results::statistics::Spread,
};

/// An arm with its description: `redis-raw: SET NX PX and DEL`.
pub(crate) fn arm_with_description(arm: &str) -> String {
    match describe_arm(arm) {
        Some(what) if what != arm => format!("{arm}: {what}"),
        _ => arm.to_owned(),
    }
}

/// The heading and the table of one run of `distlock-peers`: each way of locking with its figures,
/// or the reason why there are none.
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
                |it| {
                    format!(
                        "{}{}",
                        on_one_line(&show(it.median)),
                        range_suffix(it, show)
                    )
                },
            )
        };
        let ratio = ratio.map_or_else(
            || "–".into(),
            |it| {
                let text = format!("×\u{a0}{}", number(it.median));
                if is_difference(it, number) {
                    format!("<b>{text}</b>{}", range_suffix(it, number))
                } else {
                    format!("{text}{}", range_suffix(it, number))
                }
            },
        );
        let _ = write!(
            html,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{ratio}</td></tr>",
            escape(&arm_with_description(&figures.arm)),
            shown(figures.cycles_per_second, number),
            shown(figures.p50_us, time),
            shown(figures.p99_us, time),
        );
    }
    html + "</tbody></table></div>\n"
}
