//! A held lock in a form that a program can store and read again.
//!
//! A server that hosts the table exports its locks when it stops, and gives them back when it
//! starts. The moments are those of the boot-time clock, so they mean something only until the
//! machine is started again.

use distlock_core::{FencingToken, HolderLabel, LockName, Meta, Moment, OwnerId};
use uuid::Uuid;

/// One held lock, with everything that the table knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldLock {
    /// The lock.
    pub name: LockName,
    /// The owner that the table compares.
    pub owner: OwnerId,
    /// The token of the grant, or the raised one.
    pub token: FencingToken,
    /// The end of the lease.
    pub expires: Moment,
    /// The time of the grant in microseconds since 1970, for display.
    pub granted_micros: u64,
    /// The holder's label.
    pub holder: HolderLabel,
    /// The holder's text.
    pub meta: Option<Meta>,
    /// The nonce of the ticket that can be used now.
    pub nonce: Option<Uuid>,
}

impl HeldLock {
    /// A lock without text and ticket, granted at an unknown time.
    #[must_use]
    pub const fn new(
        name: LockName,
        owner: OwnerId,
        token: FencingToken,
        expires: Moment,
        holder: HolderLabel,
    ) -> Self {
        Self {
            name,
            owner,
            token,
            expires,
            granted_micros: 0,
            holder,
            meta: None,
            nonce: None,
        }
    }
}
