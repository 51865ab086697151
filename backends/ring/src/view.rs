//! The view: the members of the ring, and what is left of the views before.
//!
//! This module owns the stored form of a view, and decides which member owns a name and whether the
//! name is in quarantine. It reads no clock and sends nothing. Invariants:
//!
//! - A name is free only when every lease that its earlier owner may have granted has ended. V and
//!   L stay the same as long as the ring store has a view, so the times of the present view are
//!   those of its predecessors.
//! - What is left of a quarantine counts from the age of the confirmed view, by the ring store's
//!   clock, and from the receipt of that age by the client's clock. It must never count from the
//!   sending of the read: the store told the age later.

use std::time::Duration;

use distlock_core::{
    Entry, Epoch, Error, ErrorKind, LockName, Moment, RecordKey, Result, excerpt, micros,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{rendezvous, shared::NAME};

/// The key of the view in the ring store, beside the records of the ring's users.
const KEY: &str = "distlock-ring";

/// The longest time for which a view may be used without reading it again.
pub(crate) const LONGEST_VALIDITY: Duration = Duration::from_secs(10);

/// The longest lease of any ring.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// A view as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct View {
    /// The id of the ring. It changes when the ring store has lost the view.
    pub(crate) ring: Uuid,
    pub(crate) number: u64,
    /// The names of the members, sorted.
    pub(crate) members: Vec<String>,
    /// V: the time for which the view may be used without reading it again.
    pub(crate) validity_ms: u64,
    /// L: the longest lease.
    pub(crate) max_lease_ms: u64,
    pub(crate) pending: Vec<Pending>,
    /// The members that the watch has removed, also those that it has added back. A step of an
    /// operator removes the entry.
    pub(crate) removals: Vec<Removal>,
    /// How far the tokens of any member may be ahead of the ring store's clock, in microseconds. A
    /// raised token of an earlier view may be as far ahead, so it never falls.
    pub(crate) lead_us: u64,
    /// Whether this is the second of the two writes.
    pub(crate) confirmed: bool,
}

/// The members of an earlier view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pending {
    /// Sorted. Empty: the view was lost, and nobody knows them.
    pub(crate) members: Vec<String>,
    /// What was left of the quarantine when the present view was written.
    pub(crate) remains_ms: u64,
}

/// A member that the watch has removed, and may add back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Removal {
    pub(crate) member: String,
    /// How often it was removed before the last time.
    pub(crate) times: u32,
}

impl View {
    pub(crate) fn key() -> Result<RecordKey> {
        RecordKey::new(KEY)
    }

    pub(crate) fn parse(value: &[u8]) -> Result<Self> {
        let corrupt = || {
            let text = String::from_utf8_lossy(value);
            let problem = format!("record \"{KEY}\" is no view of a ring: {}", excerpt(&text));
            Error::new(ErrorKind::Corrupt, problem).on(NAME)
        };
        let view: Self =
            serde_json::from_slice(value).map_err(|error| corrupt().caused_by(error))?;
        let is_good = !view.members.is_empty()
            && view.members.is_sorted()
            && !view.validity().is_zero()
            && view.validity() <= LONGEST_VALIDITY
            && !view.max_lease().is_zero()
            && view.max_lease() <= LONGEST_LEASE;
        if is_good { Ok(view) } else { Err(corrupt()) }
    }

    pub(crate) fn stored(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Internal, "a view cannot be written as JSON").caused_by(error)
        })
    }

    pub(crate) const fn validity(&self) -> Duration {
        Duration::from_millis(self.validity_ms)
    }

    pub(crate) const fn max_lease(&self) -> Duration {
        Duration::from_millis(self.max_lease_ms)
    }

    /// The time between a change and the first grant of a name that has moved.
    pub(crate) fn quarantine(&self) -> Duration {
        quarantine(self.validity(), self.max_lease())
    }

    /// The history that tokens belong to: that of the ring, because names move between members.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch::new(self.ring.to_string())
    }

    /// The same view, confirmed.
    pub(crate) fn confirmed(mut self) -> Self {
        self.confirmed = true;
        self
    }

    /// Whether the other view is this one, before or after its confirmation.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.clone().confirmed() == other.clone().confirmed()
    }

    /// The first view of a ring. The ring store may have lost an earlier view, with other members
    /// and a longer lease. So all names are in quarantine for the longest time of any ring, unless
    /// an operator says that the ring is new.
    ///
    /// It needs no second write: the earlier view could not be read any more when its writer found
    /// none.
    pub(crate) fn first(mut self, is_new: bool) -> Self {
        self.pending = Vec::new();
        if !is_new {
            self.pending.push(Pending::unknown());
        }
        self.confirmed = true;
        self
    }

    /// A first view in the place of this one, which the ring store has gone back to. Others may
    /// read this one until the new view is seen, so there are two writes.
    pub(crate) fn reset(&self, number: u64) -> Self {
        Self {
            ring: Uuid::new_v4(),
            number: number.max(self.number + 1),
            pending: vec![Pending::unknown()],
            removals: Vec::new(),
            confirmed: false,
            ..self.clone()
        }
    }

    /// The view after this one, which was read at this age. `number` is a lower bound of its
    /// number.
    pub(crate) fn next(&self, age: Duration, members: Vec<String>, number: u64) -> Self {
        // What has passed counts from the confirmation: before it, others may use an earlier view.
        let passed = if self.confirmed {
            u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
        } else {
            0
        };
        let mut pending: Vec<Pending> = Vec::new();
        let own = Pending {
            members: self.members.clone(),
            remains_ms: millis(self.quarantine()),
        };
        let earlier = self.pending.iter().filter_map(|it| {
            Some(Pending {
                members: it.members.clone(),
                remains_ms: it.remains_ms.checked_sub(passed)?,
            })
        });
        // No name moves between two views with the same members.
        let own = (self.members != members).then_some(own);
        for one in earlier.chain(own) {
            // Views with the same members are one, with the longer quarantine.
            match pending.iter_mut().find(|it| it.members == one.members) {
                Some(same) => same.remains_ms = same.remains_ms.max(one.remains_ms),
                None => pending.push(one),
            }
        }
        Self {
            number: number.max(self.number + 1),
            members,
            pending,
            confirmed: false,
            ..self.clone()
        }
    }
}

impl Pending {
    /// A view of which nothing is known, not even its times.
    fn unknown() -> Self {
        Self {
            members: Vec::new(),
            remains_ms: millis(quarantine(LONGEST_VALIDITY, LONGEST_LEASE)),
        }
    }
}

/// V + L, and a margin for clocks that do not run at the same rate.
fn quarantine(validity: Duration, max_lease: Duration) -> Duration {
    let sum = validity + max_lease;
    sum + (sum / 50).max(Duration::from_millis(50))
}

/// Rounded up: a quarantine must not become shorter.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// A view that was read.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) view: View,
    pub(crate) entry: Entry,
    /// The age of the view at the answer.
    pub(crate) age: Duration,
    read: Reading,
    /// The moment from which the view may not be used any more.
    pub(crate) until: Moment,
}

/// The ring store's clock, as an answer told it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) store_time: Duration,
    pub(crate) received: Moment,
}

impl Reading {
    /// What the ring store's clock has reached at this moment, in microseconds.
    pub(crate) fn at(&self, now: Moment) -> u64 {
        micros(self.store_time + now.since(self.received))
    }
}

/// What the view says of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing<'a> {
    /// The member that owns the name.
    pub(crate) owner: &'a str,
    /// What is left of the quarantine of a name that has moved; zero if it is over.
    pub(crate) left: Duration,
    /// No token that an earlier owner of the name has given is above this number.
    pub(crate) floor: u64,
}

impl Seen {
    /// The view in this entry, whose read was sent at one moment and answered at another.
    pub(crate) fn new(entry: Entry, sent: Moment, received: Moment) -> Result<Self> {
        let view = View::parse(&entry.value)?;
        let (Some(age), Some(store_time)) = (entry.age, entry.store_time) else {
            let problem = "the ring store does not tell the age of its records";
            return Err(Error::new(ErrorKind::InvalidConfig, problem).on(NAME));
        };
        Ok(Self {
            until: sent + view.validity(),
            read: Reading {
                store_time,
                received,
            },
            view,
            entry,
            age,
        })
    }

    /// The ring store's clock, as it was told with this view.
    pub(crate) const fn reading(&self) -> Reading {
        self.read
    }

    /// The age of the view at this moment.
    pub(crate) fn age_at(&self, now: Moment) -> Duration {
        self.age + now.since(self.read.received)
    }

    /// What is left of the quarantine that began with a pending view.
    pub(crate) fn left(&self, pending: &Pending, now: Moment) -> Duration {
        let remains = Duration::from_millis(pending.remains_ms);
        if self.view.confirmed {
            remains.saturating_sub(self.age_at(now))
        } else {
            remains
        }
    }

    /// What the view says of a name at this moment.
    pub(crate) fn standing(&self, name: &LockName, now: Moment) -> Standing<'_> {
        let owner = rendezvous::owner(&self.view.members, name.as_str()).unwrap_or_default();
        let moved =
            self.view.pending.iter().filter(|pending| {
                rendezvous::owner(&pending.members, name.as_str()) != Some(owner)
            });
        let longest = moved.max_by_key(|pending| pending.remains_ms);
        let left = longest.map_or(Duration::ZERO, |pending| self.left(pending, now));
        // The quarantines of pending views that this view no longer has were over when it was
        // written.
        let remains = longest.map_or(0, |pending| pending.remains_ms);
        let written = self.read.store_time.saturating_sub(self.age);
        let from = written + Duration::from_millis(remains);
        Standing {
            owner,
            left,
            floor: micros(from).saturating_add(self.view.lead_us),
        }
    }

    /// The other members that may still have a lease of a name.
    pub(crate) fn earlier_owners(&self, name: &LockName, now: Moment) -> Vec<&str> {
        let owner = rendezvous::owner(&self.view.members, name.as_str());
        let pending = self.view.pending.iter();
        let live = pending.filter(|pending| !self.left(pending, now).is_zero());
        let owners = live.filter_map(|it| rendezvous::owner(&it.members, name.as_str()));
        let mut owners: Vec<_> = owners.filter(|it| Some(*it) != owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use distlock_core::Version;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn names(members: &str) -> Vec<String> {
        members.chars().map(String::from).collect()
    }

    /// V = 2 s and L = 5 s: a quarantine of 7.14 s.
    pub(crate) fn view_of(members: &str) -> View {
        View {
            ring: Uuid::nil(),
            number: 1,
            members: names(members),
            validity_ms: 2000,
            max_lease_ms: 5000,
            pending: Vec::new(),
            removals: Vec::new(),
            lead_us: 0,
            confirmed: true,
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(SECOND * u32::try_from(seconds).unwrap())
    }

    pub(crate) fn read(view: &View, age: Duration, sent: u64, received: u64) -> Seen {
        let entry = Entry::new(Version::new(1), view.stored().unwrap(), Some(age));
        let entry = entry.read_at(SECOND * 1000);
        Seen::new(entry, at(sent), at(received)).unwrap()
    }

    /// A name that moves from `a` or `b` to `c`, and one that stays.
    fn moving_and_staying() -> (LockName, LockName) {
        let owner = |members: &str, name: &LockName| {
            rendezvous::owner(&names(members), name.as_str()).map(str::to_owned)
        };
        let all: Vec<_> = (0..50)
            .map(|number| LockName::new(format!("n{number}")).unwrap())
            .collect();
        let moves = |name: &&LockName| owner("ab", name) != owner("abc", name);
        let moving = all.iter().find(moves).unwrap();
        let staying = all.iter().find(|name| !moves(name)).unwrap();
        (moving.clone(), staying.clone())
    }

    #[test]
    fn a_moved_name_is_in_quarantine_from_the_age_of_the_confirmed_view() {
        let (moving, staying) = moving_and_staying();
        let changed = view_of("ab").next(SECOND * 100, names("abc"), 0);
        assert_eq!(changed.number, 2);
        let unconfirmed = read(&changed, SECOND * 60, 10, 12);
        assert_eq!(unconfirmed.standing(&staying, at(12)).left, Duration::ZERO);
        let left = Duration::from_millis(7140);
        assert_eq!(unconfirmed.standing(&moving, at(12)).left, left);
        assert_eq!(unconfirmed.standing(&moving, at(30)).left, left);
        let seen = read(&changed.confirmed(), SECOND, 10, 12);
        let left = |now| seen.standing(&moving, at(now)).left;
        // One second was over at the answer, and nothing of it before.
        assert_eq!(left(12), Duration::from_millis(6140));
        assert_eq!(left(15), Duration::from_millis(3140));
        assert_eq!(left(19), Duration::ZERO);
        assert_eq!(seen.until, at(12));
        assert_eq!(seen.earlier_owners(&moving, at(15)).len(), 1);
        assert!(seen.earlier_owners(&moving, at(19)).is_empty());
        assert!(seen.earlier_owners(&staying, at(15)).is_empty());
    }

    #[test]
    fn a_second_change_carries_what_is_left_of_the_first() {
        let (moving, _) = moving_and_staying();
        let first = view_of("ab").next(SECOND, names("abc"), 0).confirmed();
        let second = first.next(SECOND * 3, names("abcd"), 77);
        assert_eq!(second.number, 77);
        let told: Vec<_> = second
            .pending
            .iter()
            .map(|it| (it.members.concat(), it.remains_ms))
            .collect();
        assert_eq!(told, [("ab".to_owned(), 4140), ("abc".to_owned(), 7140)]);
        // The same members again: the name has moved once, and is in quarantine although the last
        // change did not move it.
        let again = first.next(SECOND * 3, names("abc"), 0).confirmed();
        let seen = read(&again, Duration::ZERO, 0, 0);
        assert_eq!(
            seen.standing(&moving, at(0)).left,
            Duration::from_millis(4140)
        );
        // An unconfirmed view has begun no quarantine.
        let unconfirmed = view_of("ab").next(SECOND, names("abc"), 0);
        let next = unconfirmed.next(SECOND * 3, names("ab"), 0);
        assert_eq!(next.pending[0].remains_ms, 7140);
        // A view with the same members moves no name.
        assert!(
            view_of("ab")
                .next(SECOND, names("ab"), 0)
                .pending
                .is_empty()
        );
        // What is over is left out.
        assert_eq!(first.next(SECOND * 9, names("ab"), 0).pending.len(), 1);
    }

    #[test]
    fn a_first_view_grants_nothing_before_any_earlier_lease_has_ended() {
        let (moving, staying) = moving_and_staying();
        let first = read(&view_of("abc").first(false), SECOND, 0, 0);
        for name in [&moving, &staying] {
            let left = first.standing(name, at(0)).left;
            assert_eq!(left, Duration::from_millis(70_400));
        }
        // A view that takes the place of an earlier one waits until it was seen.
        let reset = view_of("abc").reset(0);
        assert_eq!((reset.number, reset.ring == Uuid::nil()), (2, false));
        let unseen = read(&reset, SECOND * 60, 0, 0)
            .standing(&staying, at(0))
            .left;
        assert_eq!(unseen, Duration::from_millis(71_400));
        let seen = read(&reset.confirmed(), SECOND, 0, 0);
        let left = seen.standing(&moving, at(0)).left;
        assert_eq!(left, Duration::from_millis(70_400));
        let new = read(&view_of("abc").first(true), SECOND, 0, 0);
        assert_eq!(new.standing(&moving, at(0)).left, Duration::ZERO);
    }

    #[test]
    fn the_floor_of_a_token_is_the_end_of_the_quarantine_and_the_lead() {
        let (moving, staying) = moving_and_staying();
        let mut changed = view_of("ab").next(SECOND, names("abc"), 0).confirmed();
        changed.lead_us = 5;
        let seen = read(&changed, SECOND * 10, 0, 0);
        // Written at 990 s by the ring store's clock.
        assert_eq!(seen.standing(&moving, at(0)).floor, 997_140_005);
        assert_eq!(seen.standing(&staying, at(0)).floor, 990_000_005);
    }

    #[test]
    fn a_view_that_nobody_can_have_written_is_refused() {
        let refused = |view: View| View::parse(&view.stored().unwrap()).unwrap_err().kind();
        let good = view_of("ab");
        assert_eq!(View::parse(&good.stored().unwrap()).unwrap(), good);
        let no_members = view_of("");
        let unsorted = view_of("ba");
        let mut no_time = view_of("ab");
        no_time.validity_ms = 0;
        let mut long_lease = view_of("ab");
        long_lease.max_lease_ms = 3_600_000;
        for view in [no_members, unsorted, no_time, long_lease] {
            assert_eq!(refused(view), ErrorKind::Corrupt);
        }
    }
}
