//! Builds the request that runs a script for a batch of operations of one kind.
//!
//! The headers of the scripts say which keys and arguments they take.

use distlock_core::{AcquireRequest, Expect, OwnerId, TicketStep};
use redis::Cmd;

use crate::{
    format::{
        keys::{Bucket, KeyLayout},
        value,
    },
    operations::operation::{Action, BatchKind, Operation},
    scripts::{self, Script},
};

/// The request for `ops`. All of them are of this kind and in the order of their keys, so that
/// those of one bucket are neighbours.
pub(crate) fn request(
    layout: &KeyLayout,
    kind: BatchKind,
    ops: &[Box<Operation>],
) -> (Cmd, &'static Script) {
    let script = script(kind, ops);
    let bytes = 128 + ops.iter().map(|op| op.bytes()).sum::<usize>();
    let mut command = Cmd::with_capacity(5 + ops.len() * 6, bytes);
    command.arg("EVALSHA").arg(&script.sha);
    let mut request = RequestBuilder {
        command,
        layout,
        ops,
        buckets: Vec::new(),
    };
    match kind {
        BatchKind::Renew => request.renewals(),
        BatchKind::ReleaseAndCheckWaiters => request.releases(true),
        BatchKind::HandOver if ops.len() == 1 => request.hand_over(),
        BatchKind::HandOver => request.hand_overs(),
        BatchKind::AcquireAndRelease if ops.iter().all(|op| op.is_release()) => {
            request.releases(false);
        }
        BatchKind::AcquireAndRelease | BatchKind::Contend if ops.len() == 1 => {
            request.acquisition();
        }
        BatchKind::AcquireAndRelease | BatchKind::Contend => request.acquisitions_and_releases(),
        BatchKind::ForceRelease => request.forced(),
        BatchKind::Put => request.puts(),
        BatchKind::Delete => request.deletions(),
    }
    (request.command, script)
}

/// The request for one operation while its slot migrates, in place of [`request`]. It names only
/// the lock's key, which is always on exactly one server. What the operation would read from other
/// keys, such as whether somebody waits, is left out.
pub(crate) fn request_for_migrating_slot(
    layout: &KeyLayout,
    ops: &[Box<Operation>],
) -> Option<Cmd> {
    let [op] = ops else { return None };
    let script = match &op.action {
        Action::Acquire(_) | Action::Contend(_) => &scripts::ACQUIRE_MIGRATING,
        Action::ReleaseAndCheckWaiters(_) => &scripts::RELEASE_ONE,
        // The other operations name one key anyway, or cannot be done with one key.
        _ => return None,
    };
    let mut command = redis::cmd("EVAL");
    command.arg(script.source).arg(1).arg(&op.target.key);
    let mut request = RequestBuilder {
        command,
        layout,
        ops,
        buckets: Vec::new(),
    };
    match &op.action {
        Action::Acquire(wanted) | Action::Contend(wanted) => {
            request.owner(wanted.owner);
            request.terms(wanted);
            request.find_buckets();
            request.counters();
        }
        _ => request.starts(),
    }
    Some(request.command)
}

fn script(kind: BatchKind, ops: &[Box<Operation>]) -> &'static Script {
    let one = ops.len() == 1;
    match kind {
        BatchKind::Renew => &scripts::RENEW,
        BatchKind::HandOver if one => &scripts::HAND_OVER_ONE,
        BatchKind::HandOver => &scripts::HAND_OVER,
        BatchKind::AcquireAndRelease | BatchKind::ReleaseAndCheckWaiters
            if ops.iter().all(|op| op.is_release()) =>
        {
            if one {
                &scripts::RELEASE_ONE
            } else {
                &scripts::RELEASE
            }
        }
        BatchKind::AcquireAndRelease | BatchKind::Contend if one => &scripts::ACQUIRE_ONE,
        BatchKind::AcquireAndRelease | BatchKind::Contend | BatchKind::ReleaseAndCheckWaiters => {
            &scripts::ACQUIRE_AND_RELEASE
        }
        BatchKind::ForceRelease => &scripts::FORCE_RELEASE,
        BatchKind::Put => &scripts::PUT,
        BatchKind::Delete => &scripts::DELETE,
    }
}

struct RequestBuilder<'a> {
    command: Cmd,
    layout: &'a KeyLayout,
    ops: &'a [Box<Operation>],
    /// The buckets of the operations, each once.
    buckets: Vec<Bucket>,
}

impl RequestBuilder<'_> {
    fn renewals(&mut self) {
        self.keys(1);
        self.targets();
        let mut nonce = [0; value::OWNER_DIGITS];
        for op in self.ops {
            let Action::Renew(lease, renewal) = &op.action else {
                continue;
            };
            self.command
                .arg(value::start(lease).as_bytes())
                .arg(renewal.ttl.as_millis());
            let (step, nonce) = match renewal.ticket {
                TicketStep::Keep => ("K", ""),
                TicketStep::Issue(id) => ("I", &*id.as_simple().encode_lower(&mut nonce)),
                TicketStep::Redeem(id) => ("R", &*id.as_simple().encode_lower(&mut nonce)),
            };
            self.command.arg(step).arg(nonce);
        }
    }

    fn releases(&mut self, check_waiters: bool) {
        self.keys(if check_waiters { 2 } else { 1 });
        self.targets();
        if check_waiters {
            self.queues();
        }
        self.starts();
    }

    /// The starts of the values of the locks to be released.
    fn starts(&mut self) {
        for op in self.ops {
            if let Action::Release(lease) | Action::ReleaseAndCheckWaiters(lease) = &op.action {
                self.command.arg(value::start(lease).as_bytes());
            }
        }
    }

    fn acquisition(&mut self) {
        self.find_buckets();
        self.keys(2);
        self.targets();
        self.counters();
        for op in self.ops {
            if let Action::Acquire(request) | Action::Contend(request) = &op.action {
                self.owner(request.owner);
                self.terms(request);
            }
        }
    }

    /// The callers of one process mostly use the same TTL, holder and meta, which are then sent
    /// once.
    fn acquisitions_and_releases(&mut self) {
        let ops = self.ops;
        let wanted = ops.iter().filter(|op| !op.is_release());
        let count = wanted.clone().count();
        self.buckets = wanted.clone().map(|op| op.target.bucket).collect();
        self.buckets.dedup();
        self.command.arg(ops.len() + self.buckets.len());
        for op in wanted.clone() {
            self.command.arg(&op.target.key);
        }
        self.counters();
        for op in ops.iter().filter(|op| op.is_release()) {
            self.command.arg(&op.target.key);
        }
        let requests = || {
            wanted.clone().filter_map(|op| match &op.action {
                Action::Acquire(request) | Action::Contend(request) => Some(request),
                _ => None,
            })
        };
        let first = requests().next();
        let same = |request: &AcquireRequest| {
            first.is_some_and(|first| {
                (request.ttl, &request.holder, &request.meta)
                    == (first.ttl, &first.holder, &first.meta)
            })
        };
        let shared = requests().all(same);
        self.command.arg(self.buckets.len());
        match first.filter(|_| shared) {
            Some(request) => self.terms(request),
            None => {
                self.command.arg("").arg("");
            }
        }
        let mut owners = Vec::with_capacity(count * value::OWNER_DIGITS);
        let mut buffer = [0; value::OWNER_DIGITS];
        for request in requests() {
            owners.extend_from_slice(value::owner(request.owner, &mut buffer).as_bytes());
        }
        self.command.arg(owners);
        if !shared {
            requests().for_each(|request| self.terms(request));
        }
        self.starts();
    }

    fn hand_over(&mut self) {
        self.find_buckets();
        self.keys(2);
        self.targets();
        self.counters();
        for op in self.ops {
            if let Action::HandOver(lease, next) = &op.action {
                self.command.arg(value::start(lease).as_bytes());
                self.owner(next.owner);
                self.terms(next);
            }
        }
    }

    fn hand_overs(&mut self) {
        self.find_buckets();
        self.command.arg(self.ops.len() + self.buckets.len());
        self.targets();
        self.counters();
        self.command.arg(self.buckets.len());
        let mut at = BucketPositions::default();
        for op in self.ops {
            let Action::HandOver(lease, next) = &op.action else {
                continue;
            };
            self.command.arg(value::start(lease).as_bytes());
            self.owner(next.owner);
            self.terms(next);
            self.command.arg(at.of(op.target.bucket));
        }
    }

    fn forced(&mut self) {
        self.keys(1);
        self.targets();
        for op in self.ops {
            if let Action::ForceRelease(_, expected) = &op.action {
                self.command.arg(value::number(expected.get()));
            }
        }
    }

    fn puts(&mut self) {
        self.find_buckets();
        self.command.arg(self.ops.len() + 2 * self.buckets.len());
        self.targets();
        self.indexes();
        self.counters();
        self.command.arg(self.buckets.len());
        let mut at = BucketPositions::default();
        for op in self.ops {
            let Action::Put(key, bytes, expect) = &op.action else {
                continue;
            };
            self.command.arg(key.as_str());
            match expect {
                Expect::Absent => self.command.arg(""),
                Expect::Version(version) => self.command.arg(value::number(version.get())),
            };
            self.command
                .arg(bytes.as_slice())
                .arg(at.of(op.target.bucket));
        }
    }

    fn deletions(&mut self) {
        self.find_buckets();
        self.command.arg(self.ops.len() + self.buckets.len());
        self.targets();
        self.indexes();
        let mut at = BucketPositions::default();
        for op in self.ops {
            let Action::Delete(key, version) = &op.action else {
                continue;
            };
            self.command
                .arg(key.as_str())
                .arg(value::number(version.get()))
                .arg(at.of(op.target.bucket));
        }
    }

    /// The number of keys, with `each` keys for each operation.
    fn keys(&mut self, each: usize) {
        self.command.arg(self.ops.len() * each);
    }

    fn targets(&mut self) {
        for op in self.ops {
            self.command.arg(&op.target.key);
        }
    }

    fn queues(&mut self) {
        for op in self.ops {
            self.command.arg(self.layout.queue(&op.target).queue);
        }
    }

    fn counters(&mut self) {
        let mut key = Vec::new();
        for bucket in &self.buckets {
            self.layout.counter(*bucket, &mut key);
            self.command.arg(&key);
        }
    }

    fn indexes(&mut self) {
        let mut key = Vec::new();
        for bucket in &self.buckets {
            self.layout.index(*bucket, &mut key);
            self.command.arg(&key);
        }
    }

    fn find_buckets(&mut self) {
        self.buckets = self.ops.iter().map(|op| op.target.bucket).collect();
        self.buckets.dedup();
    }

    fn owner(&mut self, owner: OwnerId) {
        let mut buffer = [0; value::OWNER_DIGITS];
        self.command.arg(value::owner(owner, &mut buffer));
    }

    /// TTL, and holder and meta.
    fn terms(&mut self, request: &AcquireRequest) {
        self.command.arg(request.ttl.as_millis());
        self.command.arg(value::label(request).as_bytes());
    }
}

/// Numbers the buckets of sorted operations, from 1.
#[derive(Default)]
struct BucketPositions {
    last: Option<Bucket>,
    number: usize,
}

impl BucketPositions {
    fn of(&mut self, bucket: Bucket) -> usize {
        if self.last.replace(bucket) != Some(bucket) {
            self.number += 1;
        }
        self.number
    }
}
