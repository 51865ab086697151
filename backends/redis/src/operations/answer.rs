//! What comes of operations.

use distlock_core::{
    AcquireRequest, Attempt, Deleted, Epoch, Error, ErrorKind, FencingToken, Forced, Grant,
    HandOver, HolderInfo, Lease, LossFeed, LossReason, Moment, ReleaseOutcome, Renewed, Result,
    Version, Written,
};
use redis::Value;

use crate::{error::BACKEND, format::value};

use crate::operations::op::{Op, What};

#[derive(Debug)]
pub(crate) enum Answer {
    Renewed(Renewed),
    Released(ReleaseOutcome),
    HandedOver(HandOver),
    Acquired(Attempt<Grant>),
    /// A contender found it held, and the server will not tell when that changes.
    BusyUntold(Option<HolderInfo>),
    Forced(Forced),
    Written(Written),
    Deleted(Deleted),
}

impl Answer {
    /// The answer of a server that was not told to remember what it was asked.
    pub(crate) fn untold(self, op: &Op) -> Self {
        match (&op.what, self) {
            (What::Contend(_), Self::Acquired(Attempt::Busy(holder))) => Self::BusyUntold(holder),
            (_, answer) => answer,
        }
    }

    /// An answer to another kind of question than was asked.
    pub(crate) fn unexpected(&self) -> Error {
        Error::new(
            ErrorKind::Internal,
            format!("an answer of the wrong kind came back: {self:?}"),
        )
        .on(BACKEND)
    }
}

impl Op {
    /// What takes `answer` back.
    pub(crate) fn undo(&self, answer: &Answer) -> Option<Self> {
        let ((
            What::Acquire(request) | What::Contend(request),
            Answer::Acquired(Attempt::Acquired(grant)),
        )
        | (What::HandOver(_, request), Answer::HandedOver(HandOver::Done(grant)))) =
            (&self.what, answer)
        else {
            return None;
        };
        let lease = Lease::new(request.name.clone(), request.owner, Some(grant.token));
        Some(Self {
            target: self.target.clone(),
            what: What::Release(lease),
        })
    }
}

/// What is known of the server that a reply came from.
pub(crate) struct Heard<'a> {
    /// The store's history.
    pub(crate) epoch: &'a Epoch,
    /// When the server was last known to be the primary, where another can take its place.
    pub(crate) vouched: Option<Moment>,
    /// Turns what became of a lock into the reason its holder is told.
    pub(crate) reason: &'a dyn Fn(&Lease, LossReason) -> LossReason,
}

/// A reply to one operation: tokens and versions come as texts of 16 digits, everything else as a small number.
enum Reply<'a> {
    Number(u64),
    Code(i64),
    Held(&'a [u8], i64),
}

/// Reads a script's reply to one operation.
///
/// # Errors
/// For a lock or record that is not as this library writes it, and for a counter that is used up.
pub(crate) fn answer(op: &Op, reply: &Value, heard: &Heard<'_>) -> Result<Answer> {
    let reply = match reply {
        Value::BulkString(digits) => {
            Reply::Number(value::read_number(digits).ok_or_else(|| {
                corrupt(op, "the store holds something else where a token should be")
            })?)
        }
        Value::Int(code) => Reply::Code(*code),
        Value::Array(held) => match &**held {
            [Value::BulkString(value), Value::Int(left)] => Reply::Held(value, *left),
            _ => return Err(no_answer()),
        },
        _ => return Err(no_answer()),
    };
    let grant = |number: u64, request: &AcquireRequest| -> Result<Grant> {
        let token = token(op, number)?;
        let mut grant = Grant::new(token, heard.epoch.clone(), request.ttl.duration());
        grant.counts_from = heard.vouched;
        Ok(grant)
    };
    let gone = |code: i64, lease: &Lease| {
        let reason = match code {
            0 => LossReason::Removed,
            -2 => LossReason::Expired,
            _ => LossReason::TakenOver,
        };
        (heard.reason)(lease, reason)
    };
    Ok(match (&op.what, reply) {
        (What::Acquire(request) | What::Contend(request), Reply::Number(number)) => {
            Answer::Acquired(Attempt::Acquired(grant(number, request)?))
        }
        (What::Acquire(request) | What::Contend(request), Reply::Held(value, left)) => {
            let holder = value::holder(&request.name, value, left)?;
            Answer::Acquired(Attempt::Busy(Some(holder)))
        }
        (What::Renew(_, renewal), Reply::Number(number)) => Answer::Renewed(Renewed::Extended {
            valid_for: renewal.ttl.duration(),
            epoch: heard.epoch.clone(),
            token: token(op, number)?,
            loss: LossFeed::silent(),
        }),
        (What::Renew(lease, _), Reply::Code(code)) => {
            Answer::Renewed(Renewed::NotHeld(gone(code, lease)))
        }
        (What::Release(_) | What::ReleaseAndLook(_), Reply::Code(0)) => {
            Answer::Released(ReleaseOutcome::NotHeld)
        }
        (What::Release(_) | What::ReleaseAndLook(_), Reply::Code(code)) => {
            Answer::Released(ReleaseOutcome::Released {
                others_waiting: match code {
                    2 => Some(false),
                    3 => Some(true),
                    _ => None,
                },
            })
        }
        (What::HandOver(_, request), Reply::Number(number)) => {
            Answer::HandedOver(HandOver::Done(grant(number, request)?))
        }
        (What::HandOver(lease, _), Reply::Code(code @ -2..=0)) => {
            Answer::HandedOver(HandOver::NotHeld(gone(code, lease)))
        }
        (What::Force(..), Reply::Code(0)) => Answer::Forced(Forced::NotHeld),
        (What::Force(..), Reply::Code(1)) => Answer::Forced(Forced::Released),
        (What::Force(..), Reply::Number(number)) => {
            Answer::Forced(Forced::OtherToken(token(op, number)?))
        }
        (What::Put(..), Reply::Number(number)) => {
            Answer::Written(Written::Stored(Version::new(number)))
        }
        (What::Put(..), Reply::Code(0)) => Answer::Written(Written::Conflict),
        (What::Delete(..), Reply::Code(0)) => Answer::Deleted(Deleted::Conflict),
        (What::Delete(..), Reply::Code(1)) => Answer::Deleted(Deleted::Done),
        (_, Reply::Code(-1)) => {
            return Err(corrupt(
                op,
                "the store holds something under this key that this library did not write",
            ));
        }
        (What::Acquire(_) | What::Contend(_) | What::Put(..), Reply::Code(-2))
        | (What::HandOver(..), Reply::Code(-3)) => return Err(used_up(op)),
        _ => return Err(no_answer()),
    })
}

fn token(op: &Op, number: u64) -> Result<FencingToken> {
    FencingToken::new(number)
        .map_err(|_| corrupt(op, "the store holds a number that can be no token"))
}

fn corrupt(op: &Op, what: &str) -> Error {
    let error = Error::new(ErrorKind::Corrupt, format!("{what}: {}", op.target.key)).on(BACKEND);
    match op.lock() {
        Some(name) => error.about(name),
        None => error,
    }
}

fn used_up(op: &Op) -> Error {
    let bucket = op
        .target
        .key
        .split_inclusive("}:")
        .next()
        .unwrap_or_default();
    Error::new(
        ErrorKind::LimitExceeded,
        format!("the counter of tokens is used up: somebody has set {bucket}c, delete it"),
    )
    .on(BACKEND)
}

/// Another server than Redis or Valkey may have carried it out as it likes.
fn no_answer() -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "the server answered a script with something that the script never says: is it Redis or Valkey itself?",
    )
    .on(BACKEND)
}
