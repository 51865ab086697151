//! Allowances: after a fault, the checker accepts a late or missing step. Each allowance holds only
//! for the time and the node of its fault.

use distlock_kickout::NodeId;

use crate::{
    evidence::history::{Fact, History},
    report::{Rules, micros},
};

/// Number of reconciliations of a node in the time of one lease.
const RECONCILIATIONS_PER_LEASE: u64 = 3;

impl History {
    /// The part of the time from `from` to `to` in which a node ran.
    pub(crate) fn awake_us(&self, node: &NodeId, from: u64, to: u64) -> u64 {
        let paused = |fact: &Fact| match fact {
            Fact::Paused {
                node: paused,
                from_us,
                to_us,
            } if paused == node => Some((*from_us, *to_us)),
            _ => None,
        };
        self.time_without(from, to, paused)
    }

    /// The part of the time from `from` to `to` in which a node ran and reached the store.
    pub(crate) fn served_us(&self, node: &NodeId, from: u64, to: u64) -> u64 {
        self.time_without(from, to, |fact| span_without_service(fact, Some(node)))
    }

    /// The part of the time from `from` to `to` in which every node ran and reached the store.
    pub(crate) fn calm_us(&self, from: u64, to: u64) -> u64 {
        self.time_without(from, to, |fact| span_without_service(fact, None))
    }

    /// Whether every node ran and reached the store during the whole time from `from` to `to`.
    pub(crate) fn is_calm(&self, from: u64, to: u64) -> bool {
        self.calm_us(from, to) == to.saturating_sub(from)
    }

    /// Whether a session on `node` that lost its slot at `from` got its notice in time, at `to`.
    ///
    /// Without a fault the kick arrives within the settle time. After a fault the node finds the
    /// revocation at its next reconciliation, or ends the session with its lease. A reconciliation
    /// without the store finds nothing, so one more period is allowed.
    pub(crate) fn is_notice_in_time(
        &self,
        rules: &Rules,
        node: &NodeId,
        from: u64,
        to: u64,
    ) -> bool {
        let awake = self.awake_us(node, from, to);
        if awake <= micros(rules.settle_time()) {
            return true;
        }
        let look = micros(rules.node_lease) / RECONCILIATIONS_PER_LEASE;
        if !self.is_disturbed(from.saturating_sub(look), to) {
            return false;
        }
        let lost = |fact: &Fact| match fact {
            Fact::NoStore {
                node: of,
                from_us,
                to_us,
            } if of.as_ref().is_none_or(|of| of == node) => Some((
                *from_us.max(&from),
                (*to_us.min(&to)).min(from_us.max(&from) + look),
            )),
            Fact::Paused {
                node: of,
                from_us,
                to_us,
            } if of == node => Some((*from_us, *to_us)),
            _ => None,
        };
        let allowed = micros(rules.node_lease + rules.store_away + rules.slack);
        self.time_without(from, to, lost) <= allowed
    }

    /// Whether there was a fault between two moments: of a node, of its connections to other nodes,
    /// or of its connection to the store.
    fn is_disturbed(&self, from: u64, to: u64) -> bool {
        self.facts.iter().any(|fact| match fact {
            Fact::Paused { from_us, to_us, .. }
            | Fact::NoStore { from_us, to_us, .. }
            | Fact::Unreachable { from_us, to_us, .. } => *from_us <= to && *to_us >= from,
            Fact::Killed { at_us, .. } => (from..=to).contains(at_us),
            _ => false,
        })
    }

    /// The time from `from` to `to` without the spans that `span` finds in the facts.
    fn time_without(&self, from: u64, to: u64, span: impl Fn(&Fact) -> Option<(u64, u64)>) -> u64 {
        let mut spans: Vec<_> = self.facts.iter().filter_map(span).collect();
        spans.sort_unstable();
        let (mut left, mut counted) = (to.saturating_sub(from), from);
        for (begin, end) in spans {
            // A moment that is in several spans counts once.
            let (begin, end) = (begin.max(counted), end.min(to));
            if begin < end {
                left = left.saturating_sub(end - begin);
                counted = end;
            }
        }
        left
    }
}

/// The span of a fact in which the node `of` did not run or could not reach the store. With `None`
/// the span may be of any node. A fact without a node concerns all nodes.
fn span_without_service(fact: &Fact, of: Option<&NodeId>) -> Option<(u64, u64)> {
    let (node, span) = match fact {
        Fact::Paused {
            node,
            from_us,
            to_us,
        } => (Some(node), (*from_us, *to_us)),
        Fact::NoStore {
            node,
            from_us,
            to_us,
        } => (node.as_ref(), (*from_us, *to_us)),
        _ => return None,
    };
    let counts = match (node, of) {
        (Some(node), Some(of)) => node == of,
        _ => true,
    };
    counts.then_some(span)
}
