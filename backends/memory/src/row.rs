//! One held lock in the table.
//!
//! Invariant: a row is small, because a store may have a million of them. A row must never read a
//! clock; each call passes the time in.

use std::time::{Duration, SystemTime};

use distlock_core::{
    AcquireRequest, FencingToken, HolderInfo, HolderLabel, Lease, LockName, LossReason, Meta,
    Moment, OwnerId, Renewal, TicketStep, Ttl,
};
use uuid::Uuid;

use crate::{HeldLock, table::Now};

/// The lease of one lock name. The row may stay in memory after the lease has expired.
#[derive(Debug)]
pub(crate) struct Row {
    owner: OwnerId,
    token: FencingToken,
    /// The end of the lease in nanoseconds since boot. A `u64` needs half the bytes of a
    /// [`Moment`].
    expires: u64,
    /// The time of the grant in microseconds since 1970, for display.
    granted: u64,
    holder: HolderLabel,
    /// The parts that few locks have; boxed to keep the row small.
    extra: Option<Box<Extra>>,
}

#[derive(Debug, Default)]
struct Extra {
    meta: Option<Meta>,
    /// The nonce of the ticket that can be used now; `None` without such a ticket.
    nonce: Option<Uuid>,
}

impl Row {
    pub(crate) fn new(now: Now, token: FencingToken, request: &AcquireRequest) -> Self {
        Self {
            owner: request.owner,
            token,
            expires: nanos_since_boot(now.boot + request.ttl.duration()),
            granted: now.wall_micros,
            holder: request.holder.clone(),
            extra: request.meta.clone().map(|meta| {
                Box::new(Extra {
                    meta: Some(meta),
                    nonce: None,
                })
            }),
        }
    }

    /// The row of a lock that was held before.
    pub(crate) fn restored(held: &HeldLock) -> Self {
        let extra = (held.meta.is_some() || held.nonce.is_some()).then(|| {
            Box::new(Extra {
                meta: held.meta.clone(),
                nonce: held.nonce,
            })
        });
        Self {
            owner: held.owner,
            token: held.token,
            expires: nanos_since_boot(held.expires),
            granted: held.granted_micros,
            holder: held.holder.clone(),
            extra,
        }
    }

    /// The lock of this row, which has this name.
    pub(crate) fn held_lock(&self, name: &LockName) -> HeldLock {
        let expires = Moment::from_boot(Duration::from_nanos(self.expires));
        let holder = self.holder.clone();
        let mut held = HeldLock::new(name.clone(), self.owner, self.token, expires, holder);
        held.granted_micros = self.granted;
        held.nonce = self.nonce();
        held.meta = self.extra.as_ref().and_then(|extra| extra.meta.clone());
        held
    }

    /// Whether the lease has not expired.
    pub(crate) fn is_live(&self, now: Moment) -> bool {
        nanos_since_boot(now) < self.expires
    }

    /// Returns the time until the lease expires; zero afterwards.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        Duration::from_nanos(self.expires.saturating_sub(nanos_since_boot(now)))
    }

    pub(crate) const fn token(&self) -> FencingToken {
        self.token
    }

    pub(crate) fn is_owned_by(&self, owner: OwnerId) -> bool {
        self.owner == owner
    }

    /// Starts the lease again: it expires `ttl` from now.
    pub(crate) fn restart_lease(&mut self, now: Moment, ttl: Ttl) {
        self.expires = nanos_since_boot(now + ttl.duration());
    }

    /// Checks that this lease holds the lock now. The error is the reason of the loss.
    pub(crate) fn check(&self, now: Moment, lease: &Lease) -> Result<(), LossReason> {
        if self.owner != lease.owner {
            Err(LossReason::TakenOver)
        } else if !self.is_live(now) || lease.token.is_some_and(|token| token != self.token) {
            // The owner is the same and the token is another one: the lease expired, and the owner
            // was then granted the lock again.
            Err(LossReason::Expired)
        } else if lease.nonce.is_some() && lease.nonce != self.nonce() {
            // The ticket was redeemed before, or a later ticket replaced it. In both cases the
            // bearer of this ticket does not hold the lock.
            Err(LossReason::TakenOver)
        } else {
            Ok(())
        }
    }

    fn nonce(&self) -> Option<Uuid> {
        self.extra.as_ref().and_then(|extra| extra.nonce)
    }

    /// Restarts the lease, raises the token, and stores or removes the ticket's nonce, in one step.
    pub(crate) fn renew(&mut self, now: Moment, renewal: &Renewal) {
        match renewal.ticket {
            TicketStep::Issue(nonce) => {
                self.extra.get_or_insert_default().nonce = Some(nonce);
            }
            TicketStep::Redeem => {
                if let Some(extra) = &mut self.extra {
                    extra.nonce = None;
                }
            }
            TicketStep::Keep => {}
        }
        if let Some(floor) = renewal.token_floor {
            self.token = self.token.max(floor);
        }
        self.restart_lease(now, renewal.ttl);
    }

    /// Returns the description of the holder that other clients see.
    pub(crate) fn holder_info(&self, now: Moment) -> HolderInfo {
        let mut info = HolderInfo::new(self.holder.as_str());
        info.meta = self
            .extra
            .as_ref()
            .and_then(|extra| extra.meta.as_ref())
            .map(|meta| meta.as_str().to_owned());
        info.token = Some(self.token);
        info.acquired_at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(self.granted));
        info.expires_in = Some(self.remaining(now));
        info
    }
}

fn nanos_since_boot(moment: Moment) -> u64 {
    // A `u64` of nanoseconds is enough for 584 years since boot.
    u64::try_from(moment.since_boot().as_nanos()).unwrap_or(u64::MAX)
}
