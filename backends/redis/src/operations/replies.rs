//! A script's answer, taken apart.

use redis::Value;

use crate::operations::op::{Kind, Op};

/// A script's answer, taken apart.
pub(crate) struct Replies {
    /// To releases where they share a script with acquisitions.
    freed: Option<Part>,
    rest: Part,
}

struct Part {
    /// One for each operation; otherwise the first is for all.
    each: bool,
    replies: Vec<Value>,
    at: usize,
}

impl Replies {
    /// Takes the answer to these operations apart.
    pub(crate) fn new(kind: Kind, ops: &[Box<Op>], reply: Value) -> Self {
        if answers_alone(kind) && ops.len() == 1 {
            return Self {
                freed: None,
                rest: Part::same(reply),
            };
        }
        match reply {
            Value::Array(mut both) if is_mixed(kind, ops) => {
                let freed = both.pop().map(Part::new);
                let rest = Part::new(both.pop().unwrap_or(Value::Nil));
                Self { freed, rest }
            }
            reply => Self {
                freed: None,
                rest: Part::new(reply),
            },
        }
    }

    /// The reply to the next operation, which is this.
    pub(crate) fn next(&mut self, op: &Op) -> &Value {
        match &mut self.freed {
            Some(freed) if op.is_release() => freed.next(),
            _ => self.rest.next(),
        }
    }
}

impl Part {
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

/// Whether these are acquisitions and releases.
pub(crate) fn is_mixed(kind: Kind, ops: &[Box<Op>]) -> bool {
    let releases = || ops.iter().map(|op| op.is_release());
    kind == Kind::TakeAndFree && releases().any(|it| it) && !releases().all(|it| it)
}

/// Whether there is a script of its own for one operation, which does not wrap its reply.
const fn answers_alone(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::TakeAndFree | Kind::Contend | Kind::HandOver | Kind::ReleaseAndLook
    )
}
