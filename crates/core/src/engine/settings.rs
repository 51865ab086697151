//! The options of one locker, and the check of a TTL against its store.
//!
//! Invariant: a TTL that passed [`Settings::checked_ttl`] is at least the store's shortest one.
//! This module sends nothing to the store: it reads only the backend's capabilities.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    contract::capabilities::Capabilities,
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
