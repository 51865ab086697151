//! An operation with the key that it changes, and the request that runs a script for a batch of
//! operations of one kind.
//!
//! The headers of the scripts describe the keys and arguments.

use distlock_backend_kit::operation::{Answer, Operation, OperationKind};
use distlock_core::{AcquireRequest, TicketStep};
use redis::{Cmd, Value};

use crate::{
    format::{
        keys::{KeyLayout, Target},
        value,
    },
    scripts::{self, Script},
};

/// Operations of one kind can share a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BatchKind {
    /// Creating a record counts as replacing one, because one script does both.
    pub(crate) operation: OperationKind,
    /// See [`KeyedOperation::with_waiters`].
    pub(crate) with_waiters: bool,
    /// Whether the operations are renewals that raise tokens, and so need the counters too. All
    /// other renewals name no counter.
    pub(crate) raises_tokens: bool,
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
            raises_tokens: match &self.operation {
                Operation::Renew(_, renewal) => renewal.token_floor.is_some(),
                _ => false,
            },
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

/// Another key that an operation needs, beside the key of its lock or record.
#[derive(Clone, Copy)]
enum FurtherKey {
    Counter,
    Index,
    Queue,
}

/// Returns the script for a kind, and the further keys that it takes for each operation.
fn script(kind: BatchKind) -> (&'static Script, &'static [FurtherKey]) {
    use FurtherKey::{Counter, Index, Queue};
    match kind.operation {
        OperationKind::Renew if kind.raises_tokens => (&scripts::RENEW, &[Counter]),
        OperationKind::Renew => (&scripts::RENEW, &[]),
        OperationKind::Release if kind.with_waiters => (&scripts::RELEASE, &[Queue]),
        OperationKind::Release => (&scripts::RELEASE, &[]),
        OperationKind::HandOver => (&scripts::HAND_OVER, &[Counter]),
        OperationKind::Acquire => (&scripts::ACQUIRE, &[Counter]),
        OperationKind::ForceRelease => (&scripts::FORCE_RELEASE, &[]),
        OperationKind::Create | OperationKind::Replace => (&scripts::PUT, &[Index, Counter]),
        OperationKind::Delete => (&scripts::DELETE, &[Index]),
    }
}

/// Returns the request for `ops`, which are all of this kind.
pub(crate) fn request(
    layout: &KeyLayout,
    kind: BatchKind,
    ops: &[Box<KeyedOperation>],
) -> (Cmd, &'static Script) {
    let (script, further) = script(kind);
    let bytes = 128 + ops.iter().map(|op| op.bytes()).sum::<usize>();
    let mut command = Cmd::with_capacity(3 + ops.len() * 6, bytes);
    command.arg("EVALSHA").arg(&script.sha);
    command.arg(ops.len() * (1 + further.len()));
    for op in ops {
        command.arg(&op.target.key);
    }
    let mut key = Vec::new();
    for further in further {
        for op in ops {
            write_key(layout, *further, &op.target, &mut key);
            command.arg(&key);
        }
    }
    for op in ops {
        write_arguments(&mut command, &op.operation);
    }
    (command, script)
}

/// Returns the request that replaces [`request`] for one operation while its slot migrates. This
/// request names only the lock's key, because that key is always on exactly one server. The script
/// reads no other keys, so the answer does not say, for example, whether another process waits.
pub(crate) fn request_for_migrating_slot(layout: &KeyLayout, op: &KeyedOperation) -> Option<Cmd> {
    let script = match &op.operation {
        Operation::Acquire(_) => &scripts::ACQUIRE_MIGRATING,
        Operation::Release(_) if op.with_waiters => &scripts::RELEASE,
        // Each other operation names only one key, or cannot be done with one key: a renewal that
        // raises a token waits until the lock and the counter are on one server.
        _ => return None,
    };
    let mut command = redis::cmd("EVAL");
    command.arg(script.source).arg(1).arg(&op.target.key);
    write_arguments(&mut command, &op.operation);
    if let Operation::Acquire(_) = &op.operation {
        let mut counter = Vec::new();
        layout.counter(op.target.bucket, &mut counter);
        command.arg(counter);
    }
    Some(command)
}

fn write_key(layout: &KeyLayout, further: FurtherKey, target: &Target, key: &mut Vec<u8>) {
    match further {
        FurtherKey::Counter => layout.counter(target.bucket, key),
        FurtherKey::Index => layout.index(target.bucket, key),
        FurtherKey::Queue => *key = layout.queue(target).queue.into_bytes(),
    }
}

/// Appends the arguments of one operation.
fn write_arguments(command: &mut Cmd, operation: &Operation) {
    match operation {
        Operation::Renew(lease, renewal) => {
            let mut nonce = [0; value::OWNER_DIGITS];
            let ticket = match renewal.ticket {
                TicketStep::Keep => "",
                TicketStep::Issue(id) => &*id.as_simple().encode_lower(&mut nonce),
                TicketStep::Redeem => "-",
            };
            command.arg(value::lease(lease).as_bytes());
            command.arg(renewal.ttl.as_millis()).arg(ticket);
            if let Some(floor) = renewal.token_floor {
                command.arg(value::number(floor.get()));
            }
        }
        Operation::Release(lease) => {
            command.arg(value::lease(lease).as_bytes());
        }
        Operation::HandOver(lease, next) => {
            command.arg(value::lease(lease).as_bytes());
            write_claim(command, next);
        }
        Operation::Acquire(request) => write_claim(command, request),
        Operation::ForceRelease(_, expected) => {
            command.arg(value::number(expected.get()));
        }
        Operation::Create(key, bytes) => {
            command.arg(key.as_str()).arg("").arg(bytes.as_slice());
        }
        Operation::Replace(key, bytes, version) => {
            let version = value::number(version.get());
            command.arg(key.as_str()).arg(version).arg(bytes.as_slice());
        }
        Operation::Delete(key, version) => {
            command.arg(key.as_str()).arg(value::number(version.get()));
        }
    }
}

/// Appends the owner, the TTL, and the holder with the meta.
fn write_claim(command: &mut Cmd, request: &AcquireRequest) {
    let mut owner = [0; value::OWNER_DIGITS];
    command.arg(value::owner(request.owner, &mut owner));
    command.arg(request.ttl.as_millis());
    command.arg(value::label(request).as_bytes());
}
