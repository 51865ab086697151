//! The operations that a backend sends in batches, and the store's answers to them.
//!
//! The module owns the rules that hold for every store: which lock an operation is about, how an
//! answer becomes the result of a call, and which operation takes an answer back. It knows no
//! statement and no script.

use std::time::Duration;

use distlock_core::{
    AcquireRequest, Attempt, Deleted, Error, ErrorKind, Expect, FencingToken, Forced, Grant,
    HandOver, HolderInfo, Lease, LockName, RecordKey, ReleaseOutcome, Renewal, Renewed, Result,
    Version, Written,
};

/// One change of a lock or a record.
#[derive(Debug)]
pub enum Operation {
    /// Extends a lease.
    Renew(Lease, Renewal),
    /// Ends a lease.
    Release(Lease),
    /// Passes a lock to the next waiter of this process.
    HandOver(Lease, AcquireRequest),
    /// Takes a free lock.
    Acquire(AcquireRequest),
    /// Ends the lease that has this token, on the order of an administrator.
    ForceRelease(LockName, FencingToken),
    /// Writes a record that must not exist.
    Create(RecordKey, Vec<u8>),
    /// Writes a record that must have this version.
    Replace(RecordKey, Vec<u8>, Version),
    /// Deletes a record that must have this version.
    Delete(RecordKey, Version),
}

/// The kind of an [`Operation`]. Renewals are urgent: a renewal that arrives after the end of the
/// lease loses the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the variants are those of `Operation`")]
pub enum OperationKind {
    Renew,
    Release,
    HandOver,
    Acquire,
    ForceRelease,
    Create,
    Replace,
    Delete,
}

/// The store's answer to an [`Operation`].
#[derive(Debug)]
#[expect(missing_docs, reason = "the variants hold the results of the calls")]
pub enum Answer {
    Renewed(Renewed),
    Released(ReleaseOutcome),
    HandedOver(HandOver),
    Acquired(Attempt<Grant>),
    /// The lock is held, and the store will notify this process of the release. Whether an expiry
    /// is notified too depends on the store.
    BusyNotified(Option<HolderInfo>),
    Forced(Forced),
    Written(Written),
    Deleted(Deleted),
}

impl OperationKind {
    /// The name in metrics: one for each statement of a store.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Renew => "renew",
            Self::Release => "release",
            Self::HandOver => "hand_over",
            Self::Acquire => "acquire",
            Self::ForceRelease => "force_release",
            Self::Create => "create_record",
            Self::Replace => "replace_record",
            Self::Delete => "delete_record",
        }
    }

    /// The name in errors: the method that the caller has called.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Create | Self::Replace => "put",
            Self::Delete => "delete",
            kind => kind.name(),
        }
    }
}

impl Operation {
    /// The write of a record.
    #[must_use]
    pub fn put(key: &RecordKey, value: &[u8], expect: Expect) -> Self {
        let (key, value) = (key.clone(), value.to_vec());
        match expect {
            Expect::Absent => Self::Create(key, value),
            Expect::Version(version) => Self::Replace(key, value, version),
        }
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> OperationKind {
        match self {
            Self::Renew(..) => OperationKind::Renew,
            Self::Release(_) => OperationKind::Release,
            Self::HandOver(..) => OperationKind::HandOver,
            Self::Acquire(_) => OperationKind::Acquire,
            Self::ForceRelease(..) => OperationKind::ForceRelease,
            Self::Create(..) => OperationKind::Create,
            Self::Replace(..) => OperationKind::Replace,
            Self::Delete(..) => OperationKind::Delete,
        }
    }

    /// The lock's name or the record's key.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Renew(lease, _) | Self::Release(lease) | Self::HandOver(lease, _) => {
                lease.name.as_str()
            }
            Self::Acquire(request) => request.name.as_str(),
            Self::ForceRelease(name, _) => name.as_str(),
            Self::Create(key, _) | Self::Replace(key, ..) | Self::Delete(key, _) => key.as_str(),
        }
    }

    /// The lock's name; `None` for an operation on a record.
    #[must_use]
    pub const fn lock(&self) -> Option<&LockName> {
        match self {
            Self::Renew(lease, _) | Self::Release(lease) | Self::HandOver(lease, _) => {
                Some(&lease.name)
            }
            Self::Acquire(request) => Some(&request.name),
            Self::ForceRelease(name, _) => Some(name),
            Self::Create(..) | Self::Replace(..) | Self::Delete(..) => None,
        }
    }

    /// The lease that the operation extends or ends.
    #[must_use]
    pub const fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Renew(lease, _) | Self::Release(lease) | Self::HandOver(lease, _) => Some(lease),
            _ => None,
        }
    }

    /// The request of the owner that the lock is granted to.
    #[must_use]
    pub const fn request(&self) -> Option<&AcquireRequest> {
        match self {
            Self::Acquire(request) | Self::HandOver(_, request) => Some(request),
            _ => None,
        }
    }

    /// The TTL of the lease that the operation grants or extends.
    #[must_use]
    pub const fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Renew(_, renewal) => Some(renewal.ttl.duration()),
            Self::Acquire(request) | Self::HandOver(_, request) => Some(request.ttl.duration()),
            _ => None,
        }
    }

    /// The bytes of the values that the operation adds to a request, without its key. An estimate.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        match self {
            Self::Acquire(request) | Self::HandOver(_, request) => {
                96 + request.meta.as_ref().map_or(0, |meta| meta.as_str().len())
            }
            Self::Create(_, value) | Self::Replace(_, value, _) => 64 + value.len(),
            _ => 64,
        }
    }

    /// Whether the operation is sent even if its caller went away before the sending. That is so
    /// for a release only. A hand-over without its caller would grant the lock to an owner that
    /// never learns of it, and the undo of that grant could free a lock that the owner has acquired
    /// since then by a request of its own. The engine lets each of its hand-overs come to its end.
    #[must_use]
    pub const fn outlives_caller(&self) -> bool {
        matches!(self, Self::Release(_))
    }

    /// The release that takes `answer` back, if the answer granted a lock.
    #[must_use]
    pub fn undo(&self, answer: &Answer) -> Option<Self> {
        let ((Self::Acquire(request), Answer::Acquired(Attempt::Acquired(grant)))
        | (Self::HandOver(_, request), Answer::HandedOver(HandOver::Done(grant)))) = (self, answer)
        else {
            return None;
        };
        let (name, token) = (request.name.clone(), Some(grant.token));
        Some(Self::Release(Lease::new(name, request.owner, token)))
    }
}

impl Answer {
    /// The result of an acquire.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] for the answer to another kind of operation.
    pub fn acquired(self) -> Result<Attempt<Grant>> {
        match self {
            Self::Acquired(attempt) => Ok(attempt),
            Self::BusyNotified(holder) => Ok(Attempt::Busy(holder)),
            other => Err(other.unexpected()),
        }
    }

    /// The result of a renewal.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] for the answer to another kind of operation.
    pub fn renewed(self) -> Result<Renewed> {
        match self {
            Self::Renewed(result) => Ok(result),
            other => Err(other.unexpected()),
        }
    }

    /// The result of a release.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] for the answer to another kind of operation.
    pub fn released(self) -> Result<ReleaseOutcome> {
        match self {
            Self::Released(result) => Ok(result),
            other => Err(other.unexpected()),
        }
    }

    /// The result of a hand-over.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] for the answer to another kind of operation.
    pub fn handed_over(self) -> Result<HandOver> {
        match self {
            Self::HandedOver(result) => Ok(result),
            other => Err(other.unexpected()),
        }
    }

    /// The result of a forced release.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] for the answer to another kind of operation.
    pub fn forced(self) -> Result<Forced> {
        match self {
            Self::Forced(result) => Ok(result),
            other => Err(other.unexpected()),
        }
    }

    /// The result of a write of a record.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] for the answer to another kind of operation.
    pub fn written(self) -> Result<Written> {
        match self {
            Self::Written(result) => Ok(result),
            other => Err(other.unexpected()),
        }
    }

    /// The result of the deletion of a record.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] for the answer to another kind of operation.
    pub fn deleted(self) -> Result<Deleted> {
        match self {
            Self::Deleted(result) => Ok(result),
            other => Err(other.unexpected()),
        }
    }

    fn unexpected(&self) -> Error {
        Error::new(
            ErrorKind::Internal,
            format!("an answer of the wrong kind came back: {self:?}"),
        )
    }
}
