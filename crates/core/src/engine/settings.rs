//! The options of one locker, and the check of a TTL against its store.
//!
//! Invariant: a TTL that passed [`Settings::checked_ttl`] is at least the store's shortest one.
//! This module never asks the store for anything: it reads its capabilities only.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    contract::capabilities::Capabilities,
    types::{
        duration::written,
        error::{Error, ErrorKind, Result},
        ident::HolderLabel,
        ttl::Ttl,
    },
};

/// Options that all clones of a locker share.
pub(crate) struct Settings {
    hand_over_limit: u32,
    default_holder: HolderLabel,
    /// Whether the log has the warning that the store grants less than the TTL that was asked for.
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

    /// How many hand-overs in a row there may be before a release.
    pub(crate) const fn hand_over_limit(&self) -> u32 {
        self.hand_over_limit
    }

    /// The holder label where the caller gives none.
    pub(crate) fn default_holder(&self) -> HolderLabel {
        self.default_holder.clone()
    }

    /// A TTL that this store accepts.
    pub(crate) fn checked_ttl(&self, capabilities: &Capabilities, ttl: Duration) -> Result<Ttl> {
        let checked = Ttl::new(ttl)?;
        let least = capabilities.min_ttl;
        if checked.duration() < least {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "ttl of {} is below the {} that {} can keep",
                    written(ttl),
                    written(least),
                    capabilities.backend
                ),
            ));
        }
        self.warn_of_shorter_lease(capabilities, checked);
        Ok(checked)
    }

    /// Warns, once per locker, of a TTL that is longer than any lease of this store. Renewal keeps
    /// the lock all the same. But a program that stands still, or cannot reach the store, loses the
    /// lock sooner than its TTL says.
    fn warn_of_shorter_lease(&self, capabilities: &Capabilities, ttl: Ttl) {
        let Capabilities {
            backend,
            max_lease: Some(max_lease),
            max_lease_option: option,
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
        let longer = option.map_or_else(String::new, |option| {
            format!("; the option `{option}` makes its leases longer")
        });
        tracing::warn!(
            backend,
            ?ttl,
            ?max_lease,
            "the store grants shorter leases than the TTL of {ttl} that was asked for, \
             {max_lease:?} at most, and renewal goes on at that rhythm{longer}",
        );
    }
}
