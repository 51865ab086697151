//! Decides which fault excuses a violation, as the documentation allows.
//!
//! An excuse is bound to the lock, to the session, and to the time of one lease after the fault. A
//! long fault, or many short overlaps in a row, must not extend that time.

use std::collections::BTreeMap;

use super::judge::Limits;
use crate::chaos::history::{Event, Excuse, HistoryEntry, InjectedFault, Micros, NO_TOKEN};

/// The faults of a run, with the limits of their excuses.
pub(super) struct Excuses<'a> {
    faults: Vec<&'a InjectedFault>,
    /// The process that got each lock, by name and token.
    grantees: BTreeMap<(&'a str, u64), u32>,
    limits: Limits,
}

/// A time in which an older lease and a newer one of the same lock were both in use.
#[derive(Clone, Debug)]
pub(super) struct Overlap<'a> {
    pub(super) lock: &'a str,
    pub(super) older: Lease,
    /// The process with the older lease.
    pub(super) worker: u32,
    /// Whether a record lists the holders, which a client may read from a former primary.
    pub(super) is_shared: bool,
    /// Time of the earlier one of the two requests.
    pub(super) asked: Micros,
    pub(super) from: Micros,
    pub(super) to: Micros,
    /// Time since which the older lease was in use beside newer ones, of which this overlap has
    /// the last. [`find_first_overlaps`] sets it.
    pub(super) since: Micros,
}

/// Identifies a lease. A ticket passes a lease on with its token.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Lease {
    Token(u64),
    /// A lock without tokens: the process, and the number of the hold.
    Hold(u32, u64),
}

impl Lease {
    /// Returns the lease of a hold.
    pub(super) const fn of_hold(worker: u32, hold: u64, token: u64) -> Self {
        match token {
            NO_TOKEN => Self::Hold(worker, hold),
            token => Self::Token(token),
        }
    }
}

/// Sets [`Overlap::since`], and sorts the overlaps by lock, older lease and time.
///
/// An older lease that is in use beside many short ones overlaps each of them for a moment, and is
/// lost for all of that time. After a pause of `pause` the next overlap counts by itself.
pub(super) fn find_first_overlaps<A, B>(overlaps: &mut [(Overlap<'_>, A, B)], pause: Micros) {
    overlaps.sort_by_key(|(it, ..)| (it.lock, it.older, it.from));
    let mut last: Option<Overlap<'_>> = None;
    for (overlap, ..) in overlaps {
        let mut to = overlap.to;
        let same = |it: &&Overlap<'_>| it.lock == overlap.lock && it.older == overlap.older;
        if let Some(before) = last.as_ref().filter(same) {
            if overlap.from <= before.to + pause {
                overlap.since = before.since;
            }
            to = to.max(before.to);
        }
        last = Some(Overlap {
            to,
            ..overlap.clone()
        });
    }
}

impl<'a> Excuses<'a> {
    /// Collects the faults of a history.
    pub(super) fn of_history(history: &'a [HistoryEntry], limits: Limits) -> Self {
        let mut faults = Vec::new();
        let mut grantees = BTreeMap::new();
        for HistoryEntry { worker, event } in history {
            match event {
                Event::Fault(fault) => faults.push(fault),
                Event::Granted { name, token, .. } => {
                    grantees.insert((name.as_str(), *token), *worker);
                }
                _ => {}
            }
        }
        Self {
            faults,
            grantees,
            limits,
        }
    }

    /// Returns the faults.
    pub(super) fn faults(&self) -> &[&'a InjectedFault] {
        &self.faults
    }

    /// Finds the fault that excuses an overlap. One of the leases must have been requested before
    /// the end of the fault, or while an old primary still granted locks. The answer to that
    /// request may arrive later.
    pub(super) fn of_overlap(&self, overlap: &Overlap<'_>) -> Option<String> {
        let Overlap {
            asked,
            since,
            to,
            is_shared,
            ..
        } = *overlap;
        self.find(|fault, excuse| {
            let mut granted_until = self.granted_until(fault, excuse);
            if is_shared && *excuse == Excuse::FailedOver {
                granted_until = granted_until.max(fault.to + self.limits.record_failover_us);
            }
            // No documented exception lasts longer than a lease that was granted until then.
            let lease = granted_until - fault.to + self.limits.ttl_us;
            let most = match excuse {
                // The last renewal came at most one lease before the end.
                Excuse::SteppedClock { .. } => {
                    lease.min(self.stepped(to.saturating_sub(self.limits.ttl_us), since))
                }
                _ => lease,
            };
            self.explains(excuse, overlap.lock, overlap.worker)
                && asked <= granted_until
                && fault.from <= since
                && to - since <= most
                && to <= fault.to + lease
        })
    }

    /// Finds the fault that excuses a lock which somebody else got at `early`, although `worker`
    /// had requested it at `asked` and was to keep it until `until`.
    pub(super) fn of_early_end(
        &self,
        lock: &str,
        worker: u32,
        asked: Micros,
        [early, until]: [Micros; 2],
    ) -> Option<String> {
        self.find(|fault, excuse| {
            let enough = match excuse {
                Excuse::SteppedClock { .. } => until - early <= self.stepped(asked, early),
                _ => true,
            };
            let granted_until = self.granted_until(fault, excuse);
            let between = asked <= granted_until && fault.from <= early;
            enough && between && self.explains(excuse, lock, worker)
        })
    }

    /// Finds a fault after which the store may lack a lock's state that it acknowledged from `from`
    /// to `to`.
    pub(super) fn of_lost_lock(&self, from: Micros, to: Micros) -> Option<String> {
        self.find(|fault, excuse| {
            let until = self.granted_until(fault, excuse);
            excuse.may_lack_data() && fault.from <= to && from <= until
        })
    }

    /// Finds steps of the store's clock from `from` to `to` that together make up for `missing`.
    pub(super) fn of_missing_time(
        &self,
        from: Micros,
        to: Micros,
        missing: Micros,
    ) -> Option<String> {
        if self.stepped(from, to) < missing {
            return None;
        }
        self.find(|fault, excuse| {
            let stepped = matches!(excuse, Excuse::SteppedClock { .. });
            stepped && fault.from <= to && from <= fault.to
        })
    }

    /// Returns the faults after which the store may lack records, each with the time until which a
    /// former primary may still have answered.
    pub(super) fn record_losses(&self) -> impl Iterator<Item = (&'a InjectedFault, Micros)> {
        self.faults.iter().filter_map(|fault| {
            let late = match fault.excuse.as_ref()? {
                Excuse::FailedOver => self.limits.record_failover_us,
                Excuse::LostHistory => 0,
                _ => return None,
            };
            Some((*fault, fault.to + late))
        })
    }

    /// Returns the first fault whose excuse fits, for the text of a violation.
    fn find(&self, fits: impl Fn(&InjectedFault, &Excuse) -> bool) -> Option<String> {
        let mut faults = self.faults.iter();
        let fault = faults.find(|it| it.excuse.as_ref().is_some_and(|excuse| fits(it, excuse)))?;
        Some(format!("{} of {}", fault.kind, fault.target))
    }

    /// Returns the time until which a server may have granted locks that its successor lacks.
    fn granted_until(&self, fault: &InjectedFault, excuse: &Excuse) -> Micros {
        match excuse {
            // The old primary of a cluster may grant locks until its `cluster-node-timeout` has
            // passed.
            Excuse::FailedOver => fault.to + self.limits.failover_us,
            _ => fault.to,
        }
    }

    /// Tells whether an excuse can be about this lock of this process.
    fn explains(&self, excuse: &Excuse, lock: &str, worker: u32) -> bool {
        match excuse {
            Excuse::Removed { name } => name == lock,
            // A process has one session, and loses all locks of that session with it.
            Excuse::EndedSession { name, token } => {
                self.grantees.get(&(name.as_str(), *token)) == Some(&worker)
            }
            Excuse::LostHistory | Excuse::FailedOver | Excuse::SteppedClock { .. } => true,
        }
    }

    /// Returns how far the store's clock was put forward between two moments.
    fn stepped(&self, from: Micros, to: Micros) -> Micros {
        let between = self
            .faults
            .iter()
            .filter(|it| it.from <= to && from <= it.to);
        let steps = between.filter_map(|it| match it.excuse {
            Some(Excuse::SteppedClock { by_us }) => Some(by_us),
            _ => None,
        });
        steps.sum()
    }
}
