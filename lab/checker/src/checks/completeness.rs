//! Completeness of the history: no event is missing.

use std::collections::BTreeMap;

use distlock_kickout::{Boot, NodeId};

use crate::{check::CheckContext, report::Invariant};

/// Checks that the events of each process are numbered without gaps. An incomplete history proves
/// nothing.
pub(crate) fn check(context: &mut CheckContext<'_>) {
    let mut last: BTreeMap<&NodeId, (u64, Boot)> = BTreeMap::new();
    for event in &context.history.nodes {
        let before = last.insert(&event.node, (event.seq, event.boot));
        let follows = match before {
            // A new process counts from 1.
            Some((seq, boot)) => event.seq == seq + 1 || (event.seq == 1 && event.boot > boot),
            None => true,
        };
        context.report.expect(Invariant::Complete, follows, || {
            format!(
                "node {}: event {} after event {}",
                event.node,
                event.seq,
                before.map_or(0, |(seq, _)| seq)
            )
        });
    }
}
