//! Runs every check over one history.

use crate::{
    checks::{
        completeness, confirmed, ends, generations, messages, nodes, ownership, removals, stale,
    },
    evidence::{history::History, sessions::Sessions},
    report::{Report, Rules},
    scene::Scene,
};

/// Checks a history against every invariant.
#[must_use]
pub fn check(history: &History, rules: &Rules) -> Report {
    let mut report = Report::default();
    let sessions = Sessions::of(history);
    let mut scene = Scene {
        history,
        sessions: &sessions,
        rules,
        report: &mut report,
    };
    completeness::check(&mut scene);
    ownership::check(&mut scene);
    generations::check(&mut scene);
    stale::check(&mut scene);
    removals::check(&mut scene);
    confirmed::check(&mut scene);
    ends::check(&mut scene);
    nodes::check(&mut scene);
    messages::check(&mut scene);
    report
}
