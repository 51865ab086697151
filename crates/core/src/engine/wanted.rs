//! A lock as a caller wants it, and as the store granted it.
//!
//! This module owns the step from a grant to a lease that the keeper keeps. Invariant: every grant
//! that becomes a lease is in the keeper's schedule before its caller sees it. The module never
//! asks the store.

use std::{sync::Arc, time::Duration};

use crate::{
    contract::{AcquireRequest, Grant},
    engine::{
        bounded::CallEnd,
        clock::Moment,
        lease_state::{LeaseState, Renew},
        local_queue::LocalTurn,
        parts::LockerParts,
    },
    types::ttl::margin,
};

/// One lock that a caller asks for.
#[derive(Clone, Debug)]
pub(crate) struct WantedLock {
    pub(crate) request: AcquireRequest,
    /// `None` = without end.
    pub(crate) wait: Option<Duration>,
    pub(crate) end: CallEnd,
    pub(crate) renew: Renew,
    /// Whether the caller gets an error after a few tries while the store is away, instead of
    /// waiting until it is back.
    pub(crate) gives_up: bool,
}

/// A lock that was granted, before its lease is kept.
pub(crate) struct WonLock {
    pub(crate) request: AcquireRequest,
    pub(crate) turn: Option<LocalTurn>,
    pub(crate) grant: Grant,
    pub(crate) sent: Moment,
    pub(crate) granted: Moment,
    /// Whether an earlier request of the same owner was never answered. If it arrives late, it sets
    /// the lease to its own TTL, which may end sooner.
    pub(crate) has_unanswered: bool,
}

impl WonLock {
    /// Passes the lease to the keeper thread. The result is its state, and the moment at which the
    /// lock was known to be held.
    pub(crate) fn into_lease_state(
        self,
        parts: &Arc<LockerParts>,
        renew: Renew,
    ) -> (Arc<LeaseState>, Moment) {
        let turn = if parts.queues_at_the_store() {
            // The next task of this process joins the store queue while this one holds the lock.
            drop(self.turn);
            None
        } else {
            self.turn
        };
        let lease_state = LeaseState::new(
            &self.request,
            &self.grant,
            self.sent,
            renew,
            turn,
            parts.timing.clock(),
            &parts.meters,
        );
        if self.has_unanswered {
            lease_state.note_unanswered_ttl(self.request.ttl);
        }
        parts.adopt(&lease_state, &self.grant.loss);
        (lease_state, self.granted)
    }
}

/// `now`, unless the grant's deadline has passed by then.
pub(crate) fn in_time(now: Moment, grant: &Grant, sent: Moment) -> Option<Moment> {
    let from = grant.counted_from(sent);
    (now < from + (grant.valid_for - margin(grant.valid_for))).then_some(now)
}
