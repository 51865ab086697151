//! How much longer things may take where a fault was: only around that very fault, and for the node
//! that it concerns.

use distlock_kickout::NodeId;

use crate::{
    evidence::history::{Fact, History},
    report::{Rules, micros},
};

/// A node compares its sessions with the directory so often in the time of its lease.
const LOOKS_PER_LEASE: u64 = 3;

impl History {
    /// The time between two moments at which a node ran.
    pub(crate) fn awake_us(&self, node: &NodeId, from: u64, to: u64) -> u64 {
        let paused = |fact: &Fact| match fact {
            Fact::Paused {
                node: paused,
                from_us,
                to_us,
            } if paused == node => Some((*from_us, *to_us)),
            _ => None,
        };
        self.without(from, to, paused)
    }

    /// The time between two moments at which a node ran, and had its store.
    pub(crate) fn served_us(&self, node: &NodeId, from: u64, to: u64) -> u64 {
        self.without(from, to, |fact| without_service(fact, Some(node)))
    }

    /// The time between two moments at which every node ran, and had its store.
    pub(crate) fn calm_us(&self, from: u64, to: u64) -> u64 {
        self.without(from, to, |fact| without_service(fact, None))
    }

    /// Whether every node ran, and had its store, all the time between two moments.
    pub(crate) fn is_calm(&self, from: u64, to: u64) -> bool {
        self.calm_us(from, to) == to.saturating_sub(from)
    }

    /// Whether a session on `node` that lost its place at `from` heard of it in time, at `to`.
    ///
    /// Where nothing was broken it is told at once. Otherwise its node finds out by itself, at its
    /// next look or by the end of its lease; a look that had no store is lost.
    pub(crate) fn hears_in_time(&self, rules: &Rules, node: &NodeId, from: u64, to: u64) -> bool {
        let awake = self.awake_us(node, from, to);
        if awake <= micros(rules.settle()) {
            return true;
        }
        let look = micros(rules.node_lease) / LOOKS_PER_LEASE;
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
        self.without(from, to, lost) <= allowed
    }

    /// Whether something was broken at some time between two moments: a node, its way to others, or
    /// its way to the store.
    fn is_disturbed(&self, from: u64, to: u64) -> bool {
        self.facts.iter().any(|fact| match fact {
            Fact::Paused { from_us, to_us, .. }
            | Fact::NoStore { from_us, to_us, .. }
            | Fact::Unreachable { from_us, to_us, .. } => *from_us <= to && *to_us >= from,
            Fact::Killed { at_us, .. } => (from..=to).contains(at_us),
            _ => false,
        })
    }

    /// The time between two moments without some spans, which may overlap.
    fn without(&self, from: u64, to: u64, span: impl Fn(&Fact) -> Option<(u64, u64)>) -> u64 {
        let mut spans: Vec<_> = self.facts.iter().filter_map(span).collect();
        spans.sort_unstable();
        let (mut left, mut counted) = (to.saturating_sub(from), from);
        for (begin, end) in spans {
            // No time counts twice.
            let (begin, end) = (begin.max(counted), end.min(to));
            if begin < end {
                left = left.saturating_sub(end - begin);
                counted = end;
            }
        }
        left
    }
}

/// When a node, or any of them, did not run or had no store. An outage of the store itself is of no
/// node, and of all.
fn without_service(fact: &Fact, of: Option<&NodeId>) -> Option<(u64, u64)> {
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
