//! Storm control: limits on the logins of one account and of one node.
//!
//! A login beyond a limit is refused, with a delay before the client may try again. This module
//! never asks the store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distlock_core::Clock;

use crate::{
    login::rates::{MIN_RETRY_AFTER, Rates},
    model::ident::Uid,
    wait::jitter,
};

/// Limits on logins. Each node counts by itself. The limit per account slows down two devices that
/// end each other's sessions again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// Average number of logins of one account per second; 0 = no limit.
    pub per_second: u32,
    /// Number of logins that one account may make at once after a pause.
    pub burst: u32,
    /// Number of logins that may be in progress on this node at the same time; 0 = no limit.
    pub under_way: usize,
}

impl Admission {
    /// No limits, for a server with limits of its own.
    #[must_use]
    pub const fn unbounded() -> Self {
        Self {
            per_second: 0,
            burst: 0,
            under_way: 0,
        }
    }

    /// Limits the logins of one account: `per_second` on average, and `burst` at once after a
    /// pause.
    #[must_use]
    pub const fn per_account(mut self, per_second: u32, burst: u32) -> Self {
        self.per_second = per_second;
        self.burst = burst;
        self
    }

    /// Limits the logins in progress on this node at the same time.
    #[must_use]
    pub const fn under_way(mut self, most: usize) -> Self {
        self.under_way = most;
        self
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::unbounded()
    }
}

/// Counts logins against the limits.
#[derive(Debug)]
pub(crate) struct Admissions {
    most: usize,
    under_way: Arc<AtomicUsize>,
    accounts: Rates<Uid>,
}

/// Counts one login in progress until it is dropped.
#[derive(Debug)]
pub(crate) struct AdmissionPermit(Arc<AtomicUsize>);

/// The refusal of a login beyond a limit. The client may try again later.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Throttled {
    /// The exceeded limit: `account` or `node`.
    pub(crate) scope: &'static str,
    pub(crate) retry_after: Duration,
}

impl Admissions {
    pub(crate) fn new(bounds: Admission, clock: Arc<dyn Clock>) -> Self {
        Self {
            most: bounds.under_way,
            under_way: Arc::default(),
            accounts: Rates::new(bounds.per_second, bounds.burst, clock),
        }
    }

    /// Admits one login that is within the bounds. The login counts as in progress until the permit
    /// is dropped.
    pub(crate) fn take_permit(&self, uid: &Uid) -> Result<AdmissionPermit, Throttled> {
        let before = self.under_way.fetch_add(1, Ordering::AcqRel);
        let permit = AdmissionPermit(Arc::clone(&self.under_way));
        if self.most > 0 && before >= self.most {
            return Err(Throttled {
                scope: "node",
                retry_after: MIN_RETRY_AFTER + jitter(Duration::from_secs(2)),
            });
        }
        let throttled = |retry_after| Throttled {
            scope: "account",
            retry_after,
        };
        self.accounts.take(uid).map_err(throttled)?;
        Ok(permit)
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;

    use super::*;

    #[test]
    fn an_account_is_slowed_down_and_others_are_not() {
        let clock = ManualClock::new();
        let bounds = Admission::unbounded().per_account(2, 5);
        let admissions = Admissions::new(bounds, Arc::new(clock.clone()));
        let (anna, otto) = (Uid::new("anna").unwrap(), Uid::new("otto").unwrap());
        for _ in 0..5 {
            admissions.take_permit(&anna).unwrap();
        }
        let throttled = admissions.take_permit(&anna).unwrap_err();
        assert_eq!(throttled.scope, "account");
        let advised = throttled.retry_after;
        assert!(advised >= Duration::from_millis(500) && advised <= Duration::from_secs(1));
        admissions.take_permit(&otto).unwrap();
        clock.advance(Duration::from_millis(500));
        admissions.take_permit(&anna).unwrap();
        admissions.take_permit(&anna).unwrap_err();
    }

    #[test]
    fn a_node_runs_a_bounded_number_of_logins_at_the_same_time() {
        let admissions = Admissions::new(
            Admission::unbounded().under_way(2),
            Arc::new(ManualClock::new()),
        );
        let uid = Uid::new("anna").unwrap();
        let (first, _second) = (
            admissions.take_permit(&uid).unwrap(),
            admissions.take_permit(&uid).unwrap(),
        );
        assert_eq!(admissions.take_permit(&uid).unwrap_err().scope, "node");
        assert_eq!(admissions.take_permit(&uid).unwrap_err().scope, "node");
        drop(first);
        drop(admissions.take_permit(&uid).unwrap());
    }
}
