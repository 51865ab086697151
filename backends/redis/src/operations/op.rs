//! The operations that change something: what a batch is made of, and what comes of it.

use std::time::Duration;

use distlock_core::{
    AcquireRequest, Expect, FencingToken, Lease, LockName, RecordKey, Renewal, Version,
};
use redis::Value;

use crate::format::{
    names::{Names, Target},
    value,
};

/// What can share a script. Renewals are urgent: a late one is a lost lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Renew,
    /// Releases that say whether another process waits.
    ReleaseAndLook,
    HandOver,
    /// Acquisitions and releases: half as many scripts and trips as if each had their own.
    TakeAndFree,
    /// Acquisitions; the server tells when a lock that was found held changes.
    Contend,
    Force,
    Put,
    Delete,
}

/// One operation on one key.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) target: Target,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Renew(Lease, Renewal),
    Release(Lease),
    /// As `Release`, and says whether another process waits.
    ReleaseAndLook(Lease),
    HandOver(Lease, AcquireRequest),
    Acquire(AcquireRequest),
    /// As `Acquire`; the server tells when a lock that was found held changes.
    Contend(AcquireRequest),
    Force(LockName, FencingToken),
    Put(RecordKey, Vec<u8>, Expect),
    Delete(RecordKey, Version),
}

impl Op {
    pub(crate) fn new(names: &Names, what: What) -> Self {
        let target = match &what {
            What::Put(key, ..) | What::Delete(key, _) => names.record(key),
            What::Renew(lease, _)
            | What::Release(lease)
            | What::ReleaseAndLook(lease)
            | What::HandOver(lease, _) => names.lock(&lease.name),
            What::Acquire(request) | What::Contend(request) => names.lock(&request.name),
            What::Force(name, _) => names.lock(name),
        };
        Self { target, what }
    }

    pub(crate) const fn kind(&self) -> Kind {
        match self.what {
            What::Renew(..) => Kind::Renew,
            What::Release(_) | What::Acquire(_) => Kind::TakeAndFree,
            What::ReleaseAndLook(_) => Kind::ReleaseAndLook,
            What::HandOver(..) => Kind::HandOver,
            What::Contend(_) => Kind::Contend,
            What::Force(..) => Kind::Force,
            What::Put(..) => Kind::Put,
            What::Delete(..) => Kind::Delete,
        }
    }

    /// The lease that it begins or prolongs.
    pub(crate) const fn lease(&self) -> Option<Duration> {
        match &self.what {
            What::Renew(_, renewal) => Some(renewal.ttl.duration()),
            What::HandOver(_, request) | What::Acquire(request) | What::Contend(request) => {
                Some(request.ttl.duration())
            }
            What::Release(_)
            | What::ReleaseAndLook(_)
            | What::Force(..)
            | What::Put(..)
            | What::Delete(..) => None,
        }
    }

    /// As shown in errors.
    pub(crate) const fn operation(&self) -> &'static str {
        match self.what {
            What::Renew(..) => "renew",
            What::Release(_) | What::ReleaseAndLook(_) => "release",
            What::HandOver(..) => "hand_over",
            What::Acquire(_) | What::Contend(_) => "acquire",
            What::Force(..) => "force_release",
            What::Put(..) => "put",
            What::Delete(..) => "delete",
        }
    }

    pub(crate) const fn is_release(&self) -> bool {
        matches!(self.what, What::Release(_) | What::ReleaseAndLook(_))
    }

    pub(crate) const fn lock(&self) -> Option<&LockName> {
        match &self.what {
            What::Renew(lease, _)
            | What::Release(lease)
            | What::ReleaseAndLook(lease)
            | What::HandOver(lease, _) => Some(&lease.name),
            What::Acquire(request) | What::Contend(request) => Some(&request.name),
            What::Force(name, _) => Some(name),
            What::Put(..) | What::Delete(..) => None,
        }
    }

    /// The token in a reply that grants it a lock.
    pub(crate) fn granted(&self, reply: &Value) -> Option<u64> {
        match (&self.what, reply) {
            (
                What::Acquire(_) | What::Contend(_) | What::HandOver(..),
                Value::BulkString(token),
            ) => value::read_number(token),
            _ => None,
        }
    }

    /// About how many bytes it adds to a request.
    pub(crate) fn bytes(&self) -> usize {
        let more = match &self.what {
            What::Acquire(request) | What::Contend(request) | What::HandOver(_, request) => {
                96 + request.meta.as_ref().map_or(0, |meta| meta.as_str().len())
            }
            What::Put(key, value, _) => 64 + key.as_str().len() + value.len(),
            _ => 64,
        };
        self.target.key.len() + more
    }
}
