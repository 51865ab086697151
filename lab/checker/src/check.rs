//! Runs every check over one history.
//!
//! `CheckContext` holds the evidence that the checks read, and the report that they fill.

use crate::{
    checks::{
        completeness, confirmed, ends, generations, messages, nodes, ownership, removals, stale,
    },
    evidence::{history::History, sessions::Sessions},
    report::{Report, Rules},
};

/// Checks a history against every invariant.
#[must_use]
pub fn check(history: &History, rules: &Rules) -> Report {
    let mut report = Report::default();
    let sessions = Sessions::from_history(history);
    let mut context = CheckContext {
        history,
        sessions: &sessions,
        rules,
        report: &mut report,
    };
    completeness::check(&mut context);
    ownership::check(&mut context);
    generations::check(&mut context);
    stale::check(&mut context);
    removals::check(&mut context);
    confirmed::check(&mut context);
    ends::check(&mut context);
    nodes::check(&mut context);
    messages::check(&mut context);
    report
}

/// The history of one run, its rules, and the report in progress.
pub(crate) struct CheckContext<'a> {
    pub(crate) history: &'a History,
    pub(crate) sessions: &'a Sessions<'a>,
    pub(crate) rules: &'a Rules,
    pub(crate) report: &'a mut Report,
}
