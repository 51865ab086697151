//! The options of one locker, its clock, the jitter of its pauses, and the check of a TTL against
//! its store.
//!
//! A seed makes the random numbers of a locker repeatable. Invariant: a TTL that passed
//! [`Settings::checked_ttl`] is at least the store's shortest one. This module sends nothing to the
//! store: it reads only the backend's capabilities.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    clock::{Clock, Moment},
    contract::capabilities::Capabilities,
    sync::Mutex,
    types::{
        duration::format_duration,
        error::{Error, ErrorKind, Result},
        ident::HolderLabel,
        ttl::Ttl,
    },
};

/// Options that all clones of a locker share.
pub(crate) struct Settings {
    hand_over_limit: u32,
    default_holder: HolderLabel,
    /// Whether this locker has logged the warning that the store grants shorter leases than the
    /// requested TTL. The warning is logged once for each locker.
    warned_of_shorter_lease: AtomicBool,
}

impl Settings {
    pub(crate) fn new(hand_over_limit: u32) -> Self {
        Self {
            hand_over_limit,
            default_holder: HolderLabel::of_this_process(),
            warned_of_shorter_lease: AtomicBool::new(false),
        }
    }

    /// The number of hand-overs in a row after which the lock is released at the store.
    pub(crate) const fn hand_over_limit(&self) -> u32 {
        self.hand_over_limit
    }

    /// The holder label of a caller that sets no label.
    pub(crate) fn default_holder(&self) -> HolderLabel {
        self.default_holder.clone()
    }

    /// Checks a TTL against the limits of the library and of this store, and converts it.
    pub(crate) fn checked_ttl(&self, capabilities: &Capabilities, ttl: Duration) -> Result<Ttl> {
        let checked = Ttl::new(ttl)?;
        let least = capabilities.min_ttl;
        if checked.duration() < least {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "ttl of {} is below the {} that {} can keep",
                    format_duration(ttl),
                    format_duration(least),
                    capabilities.backend
                ),
            ));
        }
        self.warn_of_shorter_lease(capabilities, checked);
        Ok(checked)
    }

    /// Logs a warning, once for each locker, when the TTL is longer than the longest lease of this
    /// store. Renewals still keep the lock. But a program that is paused, or that cannot reach the
    /// store, loses the lock sooner than its TTL suggests.
    fn warn_of_shorter_lease(&self, capabilities: &Capabilities, ttl: Ttl) {
        let Capabilities {
            backend,
            max_lease: Some(max_lease),
            session_timeout,
            ..
        } = capabilities
        else {
            return;
        };
        if ttl.duration() <= *max_lease
            || self.warned_of_shorter_lease.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let longer = if session_timeout.is_some() {
            "; with a longer session_timeout its leases are longer"
        } else {
            ""
        };
        tracing::warn!(
            backend,
            ?ttl,
            ?max_lease,
            session_timeout = session_timeout.map(tracing::field::debug),
            "the store grants shorter leases than the TTL of {ttl} that was asked for, \
             {max_lease:.1?} at most, and renewal goes on at that rhythm{longer}",
        );
    }
}

/// A clock and a generator of random numbers.
pub(crate) struct Timing {
    clock: Arc<dyn Clock>,
    random: Mutex<fastrand::Rng>,
}

impl Timing {
    /// Without a `seed`, the random numbers differ in each locker.
    pub(crate) fn new(clock: Arc<dyn Clock>, seed: Option<u64>) -> Self {
        let random = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self {
            clock,
            random: Mutex::new(random),
        }
    }

    pub(crate) const fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A random time between half of `pause` and all of it, so that callers that failed at the same
    /// moment do not ask again at the same moment.
    pub(crate) fn jitter(&self, pause: Duration) -> Duration {
        let mut random = self.random.lock();
        pause.mul_f64(0.5 + random.f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn jitter_leaves_at_least_half_of_a_pause_and_never_makes_it_longer() {
        let timing = Timing::new(Arc::new(SystemClock), Some(7));
        let pause = Duration::from_secs(1);
        let times: Vec<_> = (0..1000).map(|_| timing.jitter(pause)).collect();
        assert!(times.iter().all(|time| (pause / 2..=pause).contains(time)));
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(*most - *least > pause / 4, "{least:?} to {most:?}");
    }
}
