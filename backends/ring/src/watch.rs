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
use distlock_core::{Clock, HolderLabel, Moment, Result, Store, micros};
use futures_util::future::join_all;

use crate::{
    admin::{Opened, Told, probe},
    reads::no_view,
    view::{Removal, Seen, View},
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
        let probed = self.probe_all(&*clock).await?;
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
        let is_made = self.make(&seen.view, &change).await?;
        Ok(is_made.then_some(change))
    }

    /// Closes the connections.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn close(&self) {
        self.opened.close().await;
    }

    /// What each member of the configuration that answers tells of its clock at one moment.
    async fn probe_all(&self, clock: &dyn Clock) -> Result<BTreeMap<String, Option<Told>>> {
        let (label, begun) = (&HolderLabel::new("ring watch")?, clock.now());
        let all = self.opened.members.all().iter().map(|member| async move {
            let probed = probe(member, clock, label, begun).await.ok();
            if let Some(probed) = &probed {
                probed.release(member).await;
            }
            (member.name().to_owned(), probed.map(|probed| probed.told))
        });
        Ok(join_all(all).await.into_iter().collect())
    }

    /// Changes the view that the decision was made by, and no other: an operator or another watch
    /// may have changed the members meanwhile. Returns whether that was done.
    async fn make(&self, decided: &View, change: &WatchChange) -> Result<bool> {
        let changed = self.opened.change(|view, members, removals| {
            if (view.ring, view.number) != (decided.ring, decided.number) {
                return Ok(None);
            }
            match change {
                WatchChange::Removed { member, .. } => {
                    members.remove(member);
                    match removals.iter_mut().find(|it| it.member == *member) {
                        Some(removal) => removal.times = removal.times.saturating_add(1),
                        None => removals.push(Removal {
                            member: member.clone(),
                            times: 0,
                        }),
                    }
                    Ok(None)
                }
                WatchChange::Added { member } => {
                    members.insert(member.clone());
                    Ok(Some(member.clone()))
                }
            }
        });
        changed.await
    }
}

/// The change that follows from what the members have answered, if any.
fn decide(
    seen: &Seen,
    probed: &BTreeMap<String, Option<Told>>,
    health: &BTreeMap<String, (bool, Moment)>,
    dead_after: Duration,
    now: Moment,
) -> Option<WatchChange> {
    let view = &seen.view;
    let pause = view.quarantine() * 2;
    if !view.confirmed || seen.age_at(now) < pause {
        return None;
    }
    let answers = |member: &&String| matches!(probed.get(*member), Some(Some(_)));
    if view.members.iter().filter(answers).count() * 2 <= view.members.len() {
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
    let limit = micros(view.max_lease() / 4);
    let clock_of = |member: &String| match probed.get(member) {
        Some(Some(Told::Clock { earliest, latest })) => Some((*earliest, *latest)),
        _ => None,
    };
    let mut clocks: Vec<_> = view.members.iter().filter_map(clock_of).collect();
    clocks.sort_unstable_by_key(|(_, latest)| *latest);
    // Of two clocks, nobody knows which is wrong.
    let middle = clocks.get(clocks.len() / 2).filter(|_| clocks.len() > 2);
    // A member that answers late may have had any time in between.
    let differs = |member: &String| match (middle, clock_of(member)) {
        (Some((from, to)), Some((earliest, latest))) => {
            earliest > to.saturating_add(limit) || latest.saturating_add(limit) < *from
        }
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
    use std::sync::Arc;

    use distlock_core::ErrorKind;
    use distlock_memory::MemoryDriver;

    use super::*;
    use crate::{
        RingDriver, Terms, add, init, remove,
        view::tests::{read, view_of},
    };

    const SECOND: Duration = Duration::from_secs(1);

    /// What the watch does at 100 s by a view of this age. Each member is named with its clock in
    /// milliseconds, or with none if it does not answer, and with the seconds since when.
    fn decided(view: &View, age: u64, members: &[(&str, Option<u64>, u64)]) -> Option<WatchChange> {
        let now = Moment::from_boot(SECOND * 100);
        let seen = read(view, SECOND * u32::try_from(age).unwrap(), 100, 100);
        let probed = members.iter().map(|(name, clock, _)| {
            let told = clock.map(|clock| Told::Clock {
                earliest: clock * 1000,
                latest: clock * 1000,
            });
            ((*name).to_owned(), told)
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
        // An answer that was late for 2 s may be that of a clock like the others.
        let seen = read(&view, SECOND * 60, 100, 100);
        let told = |earliest: u64, latest: u64| {
            let well = Told::Clock {
                earliest: 9_000_000,
                latest: 9_000_000,
            };
            let slow = Told::Clock { earliest, latest };
            let told = [("a", well), ("b", slow), ("c", well)];
            let probed = told.map(|(name, told)| (name.to_owned(), Some(told)));
            let now = Moment::from_boot(SECOND * 100);
            decide(&seen, &probed.into(), &BTreeMap::new(), SECOND * 5, now)
        };
        assert_eq!(told(8_500_000, 10_500_000), None);
        assert!(told(10_500_000, 12_500_000).is_some());
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

    /// Between the decision of a watch and its step, others may change the members.
    #[tokio::test]
    async fn a_step_that_was_decided_by_another_view_changes_nothing() {
        const URL: &str = "ring:?records=memory:w&member=a=memory:w-a&member=b=memory:w-b";
        let drivers = Drivers::new()
            .with(Arc::new(MemoryDriver))
            .with(Arc::new(RingDriver));
        init(URL, &drivers, Terms::default(), true).await.unwrap();
        let watch = Watch::open(URL, &drivers, SECOND).await.unwrap();
        let view = async || watch.opened.read().await.unwrap().unwrap().view;
        let gone = |member: &str| WatchChange::Removed {
            member: member.to_owned(),
            reason: "it is gone".to_owned(),
        };
        let decided = view().await;
        remove(URL, &drivers, "b").await.unwrap();
        assert!(!watch.make(&decided, &gone("a")).await.unwrap());
        let present = view().await;
        assert_eq!(present.members, ["a"]);
        let last = watch.make(&present, &gone("a")).await.unwrap_err();
        assert_eq!(last.kind(), ErrorKind::InvalidConfig, "{last}");
        assert_eq!(view().await, present);

        // An operator keeps a member away that a watch has removed.
        add(URL, &drivers, "b").await.unwrap();
        assert!(watch.make(&view().await, &gone("b")).await.unwrap());
        let removed = view().await;
        assert_eq!(removed.removals.len(), 1);
        remove(URL, &drivers, "b").await.unwrap();
        let kept = view().await;
        assert!(kept.removals.is_empty(), "{kept:?}");
        let back = WatchChange::Added {
            member: "b".to_owned(),
        };
        assert!(!watch.make(&removed, &back).await.unwrap());
        assert_eq!(view().await, kept);
        let again = remove(URL, &drivers, "b").await.unwrap_err();
        assert!(again.to_string().contains("not active"), "{again}");
        watch.close().await;
    }
}
