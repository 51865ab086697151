//! The checks, grouped by the invariants that they cover.
//!
//! Each check reads the evidence and adds to the report. No file here uses another file here.

pub(crate) mod completeness;
pub(crate) mod confirmed;
pub(crate) mod ends;
pub(crate) mod generations;
pub(crate) mod messages;
pub(crate) mod nodes;
pub(crate) mod ownership;
pub(crate) mod removals;
pub(crate) mod stale;
