//! The locks that the store may still hold after their release.
//!
//! This module owns the list. Invariant: a lease is on the list from a release without an answer
//! until the store confirms a release, at least as long as the lease lasts. The module sends
//! nothing.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    clock::Moment,
    contract::Lease,
    sync::Mutex,
    types::{error::Error, ident::OwnerId, name::LockName},
};

/// A lock that was released, or whose grant was given back, and that the store may still hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unreleased {
    /// The name of the lock.
    pub name: LockName,
    /// The time after which the lease ends by itself, counted from the sending of its last request;
    /// zero if it has ended.
    pub ends_in: Duration,
    /// The error of the first release that failed, if one has failed. Later ones often say only
    /// that the store still does not answer.
    pub error: Option<Error>,
}

/// The leases whose release the store has not confirmed.
#[derive(Default)]
pub(crate) struct UnreleasedLeases {
    by_owner: Mutex<BTreeMap<OwnerId, Unconfirmed>>,
}

struct Unconfirmed {
    name: LockName,
    until: Moment,
    error: Option<Error>,
}

impl UnreleasedLeases {
    /// Puts a lease on the list that ends at `until` if no release is confirmed.
    pub(crate) fn add(&self, now: Moment, lease: &Lease, until: Moment) {
        let mut by_owner = self.by_owner.lock();
        // Without this a process that runs for long would keep all leases that ended by themselves.
        by_owner.retain(|_, lease| lease.until > now);
        by_owner.entry(lease.owner).or_insert_with(|| Unconfirmed {
            name: lease.name.clone(),
            until,
            error: None,
        });
    }

    /// Notes the error of a release of a lease on the list.
    pub(crate) fn note_error(&self, lease: &Lease, error: &Error) {
        if let Some(unconfirmed) = self.by_owner.lock().get_mut(&lease.owner) {
            unconfirmed.error.get_or_insert_with(|| error.clone());
        }
    }

    /// Removes a lease: the store has confirmed that its owner does not hold the lock.
    pub(crate) fn remove(&self, lease: &Lease) {
        self.by_owner.lock().remove(&lease.owner);
    }

    /// The locks of the leases on the list, in the order of their names.
    pub(crate) fn list(&self, now: Moment) -> Vec<Unreleased> {
        let mut list: Vec<_> = self
            .by_owner
            .lock()
            .values()
            .map(|lease| Unreleased {
                name: lease.name.clone(),
                ends_in: lease.until.since(now),
                error: lease.error.clone(),
            })
            .collect();
        list.sort_by(|one, other| one.name.cmp(&other.name));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::{Clock as _, ManualClock},
        types::error::ErrorKind,
    };

    #[test]
    fn a_lease_is_listed_until_its_release_is_confirmed() {
        let (clock, list) = (ManualClock::new(), UnreleasedLeases::default());
        let lease = |name| Lease::new(LockName::new(name).unwrap(), OwnerId::new(), None);
        let seen = |clock: &ManualClock| {
            let now = list.list(clock.now()).into_iter();
            now.map(|lock| (lock.name.to_string(), lock.ends_in.as_secs()))
                .collect::<Vec<_>>()
        };
        let [short, long, other] = ["b", "a", "c"].map(lease);
        for (lease, seconds) in [(&short, 5), (&long, 60), (&other, 60)] {
            list.add(
                clock.now(),
                lease,
                clock.now() + Duration::from_secs(seconds),
            );
        }
        list.note_error(&long, &Error::new(ErrorKind::Unavailable, "away"));
        list.remove(&other);
        assert_eq!(seen(&clock), [("a".to_owned(), 60), ("b".to_owned(), 5)]);
        clock.advance(Duration::from_secs(5));
        assert_eq!(seen(&clock), [("a".to_owned(), 55), ("b".to_owned(), 0)]);
        let error = list.list(clock.now()).remove(0).error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        // The next lease takes the place of one that has ended.
        list.add(clock.now(), &other, clock.now() + Duration::from_secs(1));
        assert_eq!(seen(&clock), [("a".to_owned(), 55), ("c".to_owned(), 1)]);
    }
}
