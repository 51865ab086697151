//! The operations that change a lock or a record, and the kinds that may share a script.

use std::time::Duration;

use distlock_core::{
    AcquireRequest, Expect, FencingToken, Lease, LockName, RecordKey, Renewal, Version,
};
use redis::Value;

use crate::format::{
    keys::{KeyLayout, Target},
    value,
};

/// The kinds of operations. Operations of one kind can share a script. Renewals are urgent, because
/// a late renewal loses its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum BatchKind {
    Renew,
    Release,
    /// Releases that also report whether another process waits.
    ReleaseAndCheckWaiters,
    HandOver,
    Acquire,
    /// Acquires by contenders. The server tracks those locks that are held.
    Contend,
    ForceRelease,
    Put,
    Delete,
}

/// One operation on one key.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) target: Target,
    pub(crate) action: Action,
}

#[derive(Debug)]
pub(crate) enum Action {
    Renew(Lease, Renewal),
    Release(Lease),
    /// Like `Release`, and reports whether another process waits.
    ReleaseAndCheckWaiters(Lease),
    HandOver(Lease, AcquireRequest),
    Acquire(AcquireRequest),
    /// Like `Acquire`, and the server tracks the lock if it is held.
    Contend(AcquireRequest),
    ForceRelease(LockName, FencingToken),
    Put(RecordKey, Vec<u8>, Expect),
    Delete(RecordKey, Version),
}

impl Operation {
    pub(crate) fn new(layout: &KeyLayout, action: Action) -> Self {
        let target = match &action {
            Action::Put(key, ..) | Action::Delete(key, _) => layout.record(key),
            Action::Renew(lease, _)
            | Action::Release(lease)
            | Action::ReleaseAndCheckWaiters(lease)
            | Action::HandOver(lease, _) => layout.lock(&lease.name),
            Action::Acquire(request) | Action::Contend(request) => layout.lock(&request.name),
            Action::ForceRelease(name, _) => layout.lock(name),
        };
        Self { target, action }
    }

    pub(crate) const fn kind(&self) -> BatchKind {
        match self.action {
            Action::Renew(..) => BatchKind::Renew,
            Action::Release(_) => BatchKind::Release,
            Action::ReleaseAndCheckWaiters(_) => BatchKind::ReleaseAndCheckWaiters,
            Action::HandOver(..) => BatchKind::HandOver,
            Action::Acquire(_) => BatchKind::Acquire,
            Action::Contend(_) => BatchKind::Contend,
            Action::ForceRelease(..) => BatchKind::ForceRelease,
            Action::Put(..) => BatchKind::Put,
            Action::Delete(..) => BatchKind::Delete,
        }
    }

    /// Returns the TTL of the lease that the operation grants or extends.
    pub(crate) const fn ttl(&self) -> Option<Duration> {
        match &self.action {
            Action::Renew(_, renewal) => Some(renewal.ttl.duration()),
            Action::HandOver(_, request) | Action::Acquire(request) | Action::Contend(request) => {
                Some(request.ttl.duration())
            }
            Action::Release(_)
            | Action::ReleaseAndCheckWaiters(_)
            | Action::ForceRelease(..)
            | Action::Put(..)
            | Action::Delete(..) => None,
        }
    }

    /// Returns the operation's name in errors.
    pub(crate) const fn operation(&self) -> &'static str {
        match self.action {
            Action::Renew(..) => "renew",
            Action::Release(_) | Action::ReleaseAndCheckWaiters(_) => "release",
            Action::HandOver(..) => "hand_over",
            Action::Acquire(_) | Action::Contend(_) => "acquire",
            Action::ForceRelease(..) => "force_release",
            Action::Put(..) => "put",
            Action::Delete(..) => "delete",
        }
    }

    pub(crate) const fn is_release(&self) -> bool {
        matches!(
            self.action,
            Action::Release(_) | Action::ReleaseAndCheckWaiters(_)
        )
    }

    pub(crate) const fn lock(&self) -> Option<&LockName> {
        match &self.action {
            Action::Renew(lease, _)
            | Action::Release(lease)
            | Action::ReleaseAndCheckWaiters(lease)
            | Action::HandOver(lease, _) => Some(&lease.name),
            Action::Acquire(request) | Action::Contend(request) => Some(&request.name),
            Action::ForceRelease(name, _) => Some(name),
            Action::Put(..) | Action::Delete(..) => None,
        }
    }

    /// Returns the token in a reply that grants a lock.
    pub(crate) fn granted(&self, reply: &Value) -> Option<u64> {
        match (&self.action, reply) {
            (
                Action::Acquire(_) | Action::Contend(_) | Action::HandOver(..),
                Value::BulkString(token),
            ) => value::read_number(token),
            _ => None,
        }
    }

    /// Returns an estimate of the bytes that the operation adds to a request.
    pub(crate) fn bytes(&self) -> usize {
        let more = match &self.action {
            Action::Acquire(request) | Action::Contend(request) | Action::HandOver(_, request) => {
                96 + request.meta.as_ref().map_or(0, |meta| meta.as_str().len())
            }
            Action::Put(key, value, _) => 64 + key.as_str().len() + value.len(),
            _ => 64,
        };
        self.target.key.len() + more
    }
}
