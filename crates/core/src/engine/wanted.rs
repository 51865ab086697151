//! A lock as a caller wants it, and as the store granted it.
//!
//! This module owns the step from a grant to a lease in the keeper's schedule. Invariant: every
//! grant that becomes a lease is in the keeper's schedule before its caller sees it. The module
//! sends nothing to the store.

use std::sync::Arc;

use crate::{
    contract::{AcquireRequest, Grant},
    engine::{
        bounded::Wait,
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
    pub(crate) wait: Wait,
    pub(crate) renew: Renew,
    /// Whether the caller gets an error after a few attempts while the store is unreachable,
    /// instead of waiting until the store answers again.
    pub(crate) gives_up: bool,
}

/// A lock that was granted, before its lease is in the keeper's schedule.
pub(crate) struct WonLock {
    pub(crate) request: AcquireRequest,
    pub(crate) turn: Option<LocalTurn>,
    pub(crate) grant: Grant,
    pub(crate) sent: Moment,
    pub(crate) granted: Moment,
    /// Whether an earlier request of the same owner was never answered. Such a request may reach
    /// the store late and set the lease to its own TTL, which may end sooner.
    pub(crate) has_unanswered: bool,
}

impl WonLock {
    /// Creates the lease and puts it into the keeper's schedule. Returns the lease, and the moment
    /// at which this process knew of the grant.
    pub(crate) fn into_lease_state(
        self,
        parts: &Arc<LockerParts>,
        renew: Renew,
    ) -> (Arc<LeaseState>, Moment) {
        let turn = if parts.queues_at_the_store() {
            // The drop passes the turn on, so the next task of this process joins the store queue
            // while this task holds the lock.
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

/// Returns `now` if the deadline of the grant has not passed at `now`.
pub(crate) fn before_deadline(now: Moment, grant: &Grant, sent: Moment) -> Option<Moment> {
    let from = grant.counted_from(sent);
    (now < from + (grant.valid_for - margin(grant.valid_for))).then_some(now)
}
