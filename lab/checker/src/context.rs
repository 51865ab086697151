//! The evidence that the checks read, and the report that the checks fill.

use crate::{
    evidence::{history::History, sessions::Sessions},
    report::{Report, Rules},
};

/// The history of one run, its rules, and the report in progress.
pub(crate) struct CheckContext<'a> {
    pub(crate) history: &'a History,
    pub(crate) sessions: &'a Sessions<'a>,
    pub(crate) rules: &'a Rules,
    pub(crate) report: &'a mut Report,
}
