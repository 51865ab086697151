//! Builds the request that runs a script for a batch of operations of one kind.
//!
//! The headers of the scripts describe the keys and arguments.

use distlock_core::{AcquireRequest, Expect, TicketStep};
use redis::Cmd;

use crate::{
    format::{
        keys::{KeyLayout, Target},
        value,
    },
    operations::operation::{Action, BatchKind, Operation},
    scripts::{self, Script},
};

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
    match kind {
        BatchKind::Renew => (&scripts::RENEW, &[]),
        BatchKind::Release => (&scripts::RELEASE, &[]),
        BatchKind::ReleaseAndCheckWaiters => (&scripts::RELEASE, &[Queue]),
        BatchKind::HandOver => (&scripts::HAND_OVER, &[Counter]),
        BatchKind::Acquire | BatchKind::Contend => (&scripts::ACQUIRE, &[Counter]),
        BatchKind::ForceRelease => (&scripts::FORCE_RELEASE, &[]),
        BatchKind::Put => (&scripts::PUT, &[Index, Counter]),
        BatchKind::Delete => (&scripts::DELETE, &[Index]),
    }
}

/// Returns the request for `ops`, which are all of this kind.
pub(crate) fn request(
    layout: &KeyLayout,
    kind: BatchKind,
    ops: &[Box<Operation>],
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
        write_arguments(&mut command, &op.action);
    }
    (command, script)
}

/// Returns the request that replaces [`request`] for one operation while its slot migrates. This
/// request names only the lock's key, because that key is always on exactly one server. The script
/// reads no other keys, so the answer does not say, for example, whether another process waits.
pub(crate) fn request_for_migrating_slot(layout: &KeyLayout, op: &Operation) -> Option<Cmd> {
    let script = match &op.action {
        Action::Acquire(_) | Action::Contend(_) => &scripts::ACQUIRE_MIGRATING,
        Action::ReleaseAndCheckWaiters(_) => &scripts::RELEASE,
        // Each other operation names only one key, or cannot be done with one key.
        _ => return None,
    };
    let mut command = redis::cmd("EVAL");
    command.arg(script.source).arg(1).arg(&op.target.key);
    write_arguments(&mut command, &op.action);
    if let Action::Acquire(_) | Action::Contend(_) = &op.action {
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
fn write_arguments(command: &mut Cmd, action: &Action) {
    match action {
        Action::Renew(lease, renewal) => {
            let mut nonce = [0; value::OWNER_DIGITS];
            let (step, nonce) = match renewal.ticket {
                TicketStep::Keep => ("K", ""),
                TicketStep::Issue(id) => ("I", &*id.as_simple().encode_lower(&mut nonce)),
                TicketStep::Redeem(id) => ("R", &*id.as_simple().encode_lower(&mut nonce)),
            };
            command.arg(value::start(lease).as_bytes());
            command.arg(renewal.ttl.as_millis()).arg(step).arg(nonce);
        }
        Action::Release(lease) | Action::ReleaseAndCheckWaiters(lease) => {
            command.arg(value::start(lease).as_bytes());
        }
        Action::HandOver(lease, next) => {
            command.arg(value::start(lease).as_bytes());
            write_claim(command, next);
        }
        Action::Acquire(request) | Action::Contend(request) => write_claim(command, request),
        Action::ForceRelease(_, expected) => {
            command.arg(value::number(expected.get()));
        }
        Action::Put(key, bytes, expect) => {
            command.arg(key.as_str());
            match expect {
                Expect::Absent => command.arg(""),
                Expect::Version(version) => command.arg(value::number(version.get())),
            };
            command.arg(bytes.as_slice());
        }
        Action::Delete(key, version) => {
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
