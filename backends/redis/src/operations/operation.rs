//! An operation with the key that it changes, and which operations may share a script.

use distlock_backend_kit::operation::{Answer, Operation, OperationKind};
use redis::Value;

use crate::format::{
    keys::{KeyLayout, Target},
    value,
};

/// Operations of one kind can share a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BatchKind {
    /// Creating a record counts as replacing one, because one script does both.
    pub(crate) operation: OperationKind,
    /// See [`KeyedOperation::with_waiters`].
    pub(crate) with_waiters: bool,
}

/// One operation on one key.
#[derive(Debug)]
pub(crate) struct KeyedOperation {
    pub(crate) target: Target,
    pub(crate) operation: Operation,
    /// An acquire then makes the server track the key if the lock is held. A release then also
    /// reports whether another process waits.
    pub(crate) with_waiters: bool,
}

impl KeyedOperation {
    pub(crate) fn new(layout: &KeyLayout, operation: Operation) -> Self {
        let target = match &operation {
            Operation::Create(key, _) | Operation::Replace(key, ..) | Operation::Delete(key, _) => {
                layout.record(key)
            }
            Operation::Renew(lease, _)
            | Operation::Release(lease)
            | Operation::HandOver(lease, _) => layout.lock(&lease.name),
            Operation::Acquire(request) => layout.lock(&request.name),
            Operation::ForceRelease(name, _) => layout.lock(name),
        };
        Self {
            target,
            operation,
            with_waiters: false,
        }
    }

    pub(crate) const fn kind(&self) -> BatchKind {
        BatchKind {
            operation: match self.operation.kind() {
                OperationKind::Create => OperationKind::Replace,
                kind => kind,
            },
            with_waiters: self.with_waiters,
        }
    }

    pub(crate) const fn is_release(&self) -> bool {
        matches!(self.operation, Operation::Release(_))
    }

    /// Returns the token in a reply that grants a lock.
    pub(crate) fn granted(&self, reply: &Value) -> Option<u64> {
        match (&self.operation, reply) {
            (Operation::Acquire(_) | Operation::HandOver(..), Value::BulkString(token)) => {
                value::read_number(token)
            }
            _ => None,
        }
    }

    /// Returns an estimate of the bytes that the operation adds to a request.
    pub(crate) fn bytes(&self) -> usize {
        self.target.key.len() + self.operation.value_bytes()
    }

    /// The release that takes `answer` back, if the answer granted a lock.
    pub(crate) fn undo(&self, answer: &Answer) -> Option<Self> {
        Some(Self {
            target: self.target.clone(),
            operation: self.operation.undo(answer)?,
            with_waiters: false,
        })
    }
}
