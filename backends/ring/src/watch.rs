//! The watch of a ring: it removes a member that is gone, and adds it back when it is well.
//!
//! This module decides; the view is changed by `admin`. Invariants:
//!
//! - Nothing is removed by a watch that reaches no majority of the active members: it may be the
//!   one that is cut off. A member that is removed by mistake harms nobody.
//! - A change is made only when the one before is over for all clients. A member that comes and
//!   goes is added back after ever longer pauses, or it would block its names for ever.

use std::{collections::BTreeMap, time::Duration};

use distlock_backend_kit::{Drivers, Target};
use distlock_core::{Clock, Moment, Result, Store};
use futures_util::future::join_all;

use crate::{
    admin::{Opened, Probed, probe},
    reads::no_view,
    view::{Removal, Seen},
};

/// The most doublings of the pause before a member is added back.
const MOST_DOUBLINGS: u32 = 6;

/// A process that watches the members of a ring. One of several is enough: an election on the
/// [ring store](Self::ring_store) says which.
#[derive(Debug)]
pub struct Watch {
    opened: Opened,
    dead_after: Duration,
    /// For each member whether it answers, and since when.
    health: BTreeMap<String, (bool, Moment)>,
}

/// A change that the watch has made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchChange {
    /// A member does not answer, or its clock differs from the others'.
    Removed {
        /// The name of the member.
        member: String,
        /// Why it was removed.
        reason: String,
    },
    /// A member that this or another watch had removed is well again.
    Added {
        /// The name of the member.
        member: String,
    },
}

impl Watch {
    /// Opens the ring. A member counts as gone when it has not answered for `dead_after`.
    ///
    /// # Errors
    /// As opening the ring.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open(
        target: impl Into<Target>,
        drivers: &Drivers,
        dead_after: Duration,
    ) -> Result<Self> {
        Ok(Self {
            opened: Opened::open(target, drivers).await?,
            dead_after,
            health: BTreeMap::new(),
        })
    }

    /// The ring store, whose locks say which of several watches leads.
    #[must_use]
    pub fn ring_store(&self) -> &Store {
        &self.opened.store
    }

    /// Looks at all members once, and makes at most one change.
    ///
    /// # Errors
    /// Those of the ring store. A member that does not answer is no error.
    ///
    /// # Cancel safety
    /// Safe: a change is one step.
    pub async fn look(&mut self) -> Result<Option<WatchChange>> {
        let clock = self.opened.store.clock();
        let probed = self.probe_all(&*clock).await;
        let now = clock.now();
        for (member, probed) in &probed {
            let answers = probed.is_some();
            let known = self.health.get(member).filter(|(was, _)| *was == answers);
            if known.is_none() {
                self.health.insert(member.clone(), (answers, now));
            }
        }
        let seen = self.opened.read().await?.ok_or_else(no_view)?;
        let Some(change) = decide(&seen, &probed, &self.health, self.dead_after, now) else {
            return Ok(None);
        };
        self.make(&change).await?;
        Ok(Some(change))
    }

    /// Closes the connections.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn close(&self) {
        self.opened.close().await;
    }

    /// The clock of each member of the configuration that answers, all at one moment.
    async fn probe_all(&self, clock: &dyn Clock) -> BTreeMap<String, Option<Probed>> {
        let begun = clock.now();
        let all = self.opened.members.all().iter().map(|member| async move {
            let since = clock.now().since(begun);
            let probed = probe(member, clock).await;
            let Ok(mut probed) = probed else {
                return (member.name().to_owned(), None);
            };
            let passed = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
            probed.clock = probed.clock.map(|clock| clock.saturating_sub(passed));
            probed.release(member).await;
            (member.name().to_owned(), Some(probed))
        });
        join_all(all).await.into_iter().collect()
    }

    async fn make(&self, change: &WatchChange) -> Result<()> {
        let changed = self.opened.change(|members, removals| match change {
            WatchChange::Removed { member, .. } => {
                // Another watch may have been faster.
                if members.remove(member) {
                    match removals.iter_mut().find(|it| it.member == *member) {
                        Some(removal) => removal.times = removal.times.saturating_add(1),
                        None => removals.push(Removal {
                            member: member.clone(),
                            times: 0,
                        }),
                    }
                }
                Ok(None)
            }
            WatchChange::Added { member } => {
                members.insert(member.clone());
                Ok(Some(member.clone()))
            }
        });
        changed.await.map(drop)
    }
}

/// The change that follows from what the members have answered, if any.
fn decide(
    seen: &Seen,
    probed: &BTreeMap<String, Option<Probed>>,
    health: &BTreeMap<String, (bool, Moment)>,
    dead_after: Duration,
    now: Moment,
) -> Option<WatchChange> {
    let view = &seen.view;
    let pause = view.quarantine() * 2;
    if !view.confirmed || seen.age_at(now) < pause {
        return None;
    }
    let of = |member: &String| probed.get(member).and_then(Option::as_ref);
    let answering = view.members.iter().filter(|member| of(member).is_some());
    if answering.count() * 2 <= view.members.len() {
        return None;
    }
    let lasts = |member: &String, wanted: bool| {
        let known = health.get(member).filter(|(answers, _)| *answers == wanted);
        known.map(|(_, since)| now.since(*since))
    };
    for member in &view.members {
        if lasts(member, false).is_some_and(|time| time >= dead_after) {
            return Some(WatchChange::Removed {
                member: member.clone(),
                reason: format!("it has not answered for {dead_after:?}"),
            });
        }
    }
    let limit = u64::try_from((view.max_lease() / 4).as_micros()).unwrap_or(u64::MAX);
    let mut clocks: Vec<u64> = view.members.iter().filter_map(|it| of(it)?.clock).collect();
    clocks.sort_unstable();
    // Of two clocks, nobody knows which is wrong.
    let middle = clocks.get(clocks.len() / 2).filter(|_| clocks.len() > 2);
    let differs = |member: &String| match (middle, of(member).and_then(|it| it.clock)) {
        (Some(middle), Some(clock)) => clock.abs_diff(*middle) > limit,
        _ => false,
    };
    if let Some(member) = view.members.iter().find(|member| differs(member)) {
        return Some(WatchChange::Removed {
            member: member.clone(),
            reason: "its clock differs from the others' by more than a quarter of the longest \
                     lease"
                .to_owned(),
        });
    }
    let mut away = view
        .removals
        .iter()
        .filter(|removal| !view.members.contains(&removal.member));
    let back = away.find(|removal| {
        let wait = pause * 2_u32.pow(removal.times.min(MOST_DOUBLINGS));
        lasts(&removal.member, true).is_some_and(|time| time >= wait) && !differs(&removal.member)
    });
    back.map(|removal| WatchChange::Added {
        member: removal.member.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{
        View,
        tests::{read, view_of},
    };

    const SECOND: Duration = Duration::from_secs(1);

    /// What the watch does at 100 s by a view of this age. Each member is named with its clock in
    /// milliseconds, or with none if it does not answer, and with the seconds since when.
    fn decided(view: &View, age: u64, members: &[(&str, Option<u64>, u64)]) -> Option<WatchChange> {
        let now = Moment::from_boot(SECOND * 100);
        let seen = read(view, SECOND * u32::try_from(age).unwrap(), 100, 100);
        let probed = members.iter().map(|(name, clock, _)| {
            let probed = clock.map(|clock| Probed::of_clock(clock * 1000));
            ((*name).to_owned(), probed)
        });
        let health = members.iter().map(|(name, clock, since)| {
            let since = Moment::from_boot(SECOND * u32::try_from(*since).unwrap());
            ((*name).to_owned(), (clock.is_some(), since))
        });
        let (probed, health) = (probed.collect(), health.collect());
        decide(&seen, &probed, &health, SECOND * 5, now)
    }

    fn removed(change: Option<WatchChange>) -> Option<String> {
        match change {
            Some(WatchChange::Removed { member, .. }) => Some(member),
            _ => None,
        }
    }

    #[test]
    fn a_member_that_is_gone_is_removed_by_a_watch_that_reaches_a_majority() {
        let view = view_of("abc");
        let well = [("a", Some(9), 0), ("b", Some(9), 0), ("c", Some(9), 0)];
        assert_eq!(decided(&view, 60, &well), None);
        let gone = [("a", Some(9), 0), ("b", None, 95), ("c", Some(9), 0)];
        assert_eq!(removed(decided(&view, 60, &gone)).as_deref(), Some("b"));
        // Not yet, and not so soon after the change before.
        let briefly = [("a", Some(9), 0), ("b", None, 96), ("c", Some(9), 0)];
        assert_eq!(decided(&view, 60, &briefly), None);
        assert_eq!(decided(&view, 14, &gone), None);
        let mut unconfirmed = view.clone();
        unconfirmed.confirmed = false;
        assert_eq!(decided(&unconfirmed, 60, &gone), None);
        // The watch itself may be cut off.
        let cut_off = [("a", Some(9), 0), ("b", None, 0), ("c", None, 0)];
        assert_eq!(decided(&view, 60, &cut_off), None);
        let two = [("a", Some(9), 0), ("b", None, 0)];
        assert_eq!(decided(&view_of("ab"), 60, &two), None);
        assert_eq!(decided(&view_of("a"), 60, &[("a", None, 0)]), None);
    }

    /// The longest lease is 5 s.
    #[test]
    fn a_clock_that_differs_from_the_others_is_removed() {
        let with = |clock| {
            [
                ("a", Some(9000), 0),
                ("b", Some(clock), 0),
                ("c", Some(9100), 0),
            ]
        };
        let view = view_of("abc");
        for clock in [7_750, 10_350] {
            assert_eq!(decided(&view, 60, &with(clock)), None, "{clock}");
        }
        for clock in [7_749, 10_351] {
            let member = removed(decided(&view, 60, &with(clock)));
            assert_eq!(member.as_deref(), Some("b"), "{clock}");
        }
        let two = [("a", Some(9000), 0), ("b", Some(1), 0)];
        assert_eq!(decided(&view_of("ab"), 60, &two), None);
    }

    /// Twice the quarantine is 14.28 s.
    #[test]
    fn a_member_comes_back_after_ever_longer_pauses() {
        let mut view = view_of("ab");
        let since = |since| [("a", Some(9), 0), ("b", Some(9), 0), ("c", Some(9), since)];
        let added = Some(WatchChange::Added {
            member: "c".to_owned(),
        });
        // An operator has removed it.
        assert_eq!(decided(&view, 60, &since(0)), None);
        for (times, late, soon) in [(0, 85, 86), (1, 71, 72), (2, 42, 43)] {
            view.removals = vec![Removal {
                member: "c".to_owned(),
                times,
            }];
            assert_eq!(decided(&view, 60, &since(late)), added, "{times}");
            assert_eq!(decided(&view, 60, &since(soon)), None, "{times}");
        }
        let apart = [("a", Some(9), 0), ("b", Some(9), 0), ("c", None, 0)];
        assert_eq!(decided(&view, 60, &apart), None);
    }
}
