//! Splits a script's reply into one reply for each operation of the batch.
//!
//! A reply that is too short yields nil, which no operation accepts as success.

use redis::Value;

use crate::operations::operation::{BatchKind, Operation};

/// The replies of one request, in the order of its operations.
pub(crate) struct ScriptReplies {
    /// The replies to releases, where releases and acquisitions share a script.
    freed: Option<ReplyPart>,
    rest: ReplyPart,
}

struct ReplyPart {
    /// Whether there is one reply for each operation. Otherwise the first one is for all.
    each: bool,
    replies: Vec<Value>,
    at: usize,
}

impl ScriptReplies {
    /// Splits the reply to these operations.
    pub(crate) fn new(kind: BatchKind, ops: &[Box<Operation>], reply: Value) -> Self {
        if answers_alone(kind) && ops.len() == 1 {
            return Self {
                freed: None,
                rest: ReplyPart::same(reply),
            };
        }
        match reply {
            Value::Array(mut both) if is_mixed(kind, ops) => {
                let freed = both.pop().map(ReplyPart::new);
                let rest = ReplyPart::new(both.pop().unwrap_or(Value::Nil));
                Self { freed, rest }
            }
            reply => Self {
                freed: None,
                rest: ReplyPart::new(reply),
            },
        }
    }

    /// The reply to `op`, which must be the next operation of the batch.
    pub(crate) fn next(&mut self, op: &Operation) -> &Value {
        match &mut self.freed {
            Some(freed) if op.is_release() => freed.next(),
            _ => self.rest.next(),
        }
    }
}

impl ReplyPart {
    fn new(reply: Value) -> Self {
        match reply {
            Value::Array(replies) => Self {
                each: true,
                replies,
                at: 0,
            },
            reply => Self::same(reply),
        }
    }

    fn same(reply: Value) -> Self {
        Self {
            each: false,
            replies: vec![reply],
            at: 0,
        }
    }

    fn next(&mut self) -> &Value {
        let at = self.at;
        self.at += usize::from(self.each);
        self.replies.get(at).unwrap_or(&Value::Nil)
    }
}

/// Whether the batch has both acquisitions and releases.
pub(crate) fn is_mixed(kind: BatchKind, ops: &[Box<Operation>]) -> bool {
    let releases = || ops.iter().map(|op| op.is_release());
    kind == BatchKind::AcquireAndRelease && releases().any(|it| it) && !releases().all(|it| it)
}

/// Whether a single operation of this kind has its own script, whose reply is not wrapped in a
/// list.
const fn answers_alone(kind: BatchKind) -> bool {
    matches!(
        kind,
        BatchKind::AcquireAndRelease
            | BatchKind::Contend
            | BatchKind::HandOver
            | BatchKind::ReleaseAndCheckWaiters
    )
}
