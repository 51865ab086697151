//! The record of one lock: its stored form and its meaning.
//!
//! Invariant: a stored record, with its version and its age, describes its lock completely. This
//! module must never read a clock.

use std::time::{Duration, SystemTime};

use distlock_core::{
    AcquireRequest, FencingToken, HolderInfo, Lease, LockInfo, LockName, LossReason, OwnerId, Ttl,
    Version, micros,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The JSON under a lock's key. Unknown fields are refused, because a later version may have stored
/// something there that decides who holds the lock.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    owner: Uuid,
    /// `null`: the token is the version of this record, which is not known before the write.
    pub(crate) token: Option<FencingToken>,
    holder: String,
    meta: Option<String>,
    ttl_ms: u64,
    /// The nonce of the ticket that can be redeemed now; `null` without such a ticket.
    pub(crate) ticket: Option<Uuid>,
    /// Time of the grant by the holder's wall clock, for display.
    acquired_at_unix_us: u64,
    /// Random id of this write. After a lost answer, it shows whether the stored record is from
    /// this write.
    pub(crate) write: Uuid,
}

impl Record {
    pub(crate) fn new(request: &AcquireRequest, now_since_1970: Duration) -> Self {
        Self {
            owner: *request.owner.as_uuid(),
            token: None,
            holder: request.holder.as_str().to_owned(),
            meta: request.meta.as_ref().map(|meta| meta.as_str().to_owned()),
            ttl_ms: request.ttl.as_millis(),
            ticket: None,
            acquired_at_unix_us: micros(now_since_1970),
            write: Uuid::new_v4(),
        }
    }

    /// The record of the same grant with a new TTL.
    pub(crate) fn renewed(&self, token: FencingToken, ttl: Ttl) -> Self {
        Self {
            token: Some(token),
            ttl_ms: ttl.as_millis(),
            write: Uuid::new_v4(),
            ..self.clone()
        }
    }

    pub(crate) fn is_of(&self, owner: OwnerId) -> bool {
        self.owner == *owner.as_uuid()
    }

    /// The TTL, counted from the moment at which the record was written. `None`: the stored number
    /// is not a valid TTL.
    pub(crate) fn ttl(&self) -> Option<Ttl> {
        Ttl::from_millis(self.ttl_ms).ok()
    }
}

/// A record as read from the store, with its version, token, TTL and age.
pub(crate) struct StoredLock {
    pub(crate) record: Record,
    pub(crate) version: Version,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Ttl,
    pub(crate) age: Duration,
}

impl StoredLock {
    pub(crate) fn is_live(&self) -> bool {
        self.age < self.ttl.duration()
    }

    pub(crate) fn expired_for(&self) -> Duration {
        self.age.saturating_sub(self.ttl.duration())
    }

    /// Checks that this lease holds the lock now. The error is the reason of the loss.
    pub(crate) fn check(&self, lease: &Lease) -> Result<(), LossReason> {
        if !self.record.is_of(lease.owner) {
            Err(LossReason::TakenOver)
        } else if !self.is_live() || lease.token.is_some_and(|token| token != self.token) {
            // The owner is the same and the token is another one: the lease expired, and the owner
            // was then granted the lock again.
            Err(LossReason::Expired)
        } else if lease.nonce.is_some() && lease.nonce != self.record.ticket {
            // The ticket was redeemed before, or a later ticket replaced it. In both cases another
            // process may hold the lock, so the bearer of this ticket does not.
            Err(LossReason::TakenOver)
        } else {
            Ok(())
        }
    }

    pub(crate) fn info(&self) -> HolderInfo {
        let mut info = HolderInfo::new(&*self.record.holder);
        info.meta.clone_from(&self.record.meta);
        info.token = Some(self.token);
        info.acquired_at = SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_micros(self.record.acquired_at_unix_us));
        info.expires_in = Some(self.ttl.duration().saturating_sub(self.age));
        info
    }

    pub(crate) fn lock_info(&self, name: LockName) -> LockInfo {
        if self.is_live() {
            return LockInfo::held(name, self.info());
        }
        let mut info = LockInfo::free(name);
        info.last_token = Some(self.token);
        info
    }
}
