//! Turns the scripts' replies into the answers of single operations.
//!
//! A reply that no script of this library gives is an unknown outcome. Another product than Redis
//! or Valkey may have run the script in its own way.

use distlock_backend_kit::operation::{Answer, Operation};
use distlock_core::{
    AcquireRequest, Attempt, Deleted, Epoch, Error, ErrorKind, FencingToken, Forced, Grant,
    HandOver, Lease, LossFeed, LossReason, Moment, ReleaseOutcome, Renewed, Result, Version,
    Written,
};
use redis::Value;

use crate::{
    error::BACKEND,
    format::value,
    operations::{Histories, request::KeyedOperation},
};

/// The origin of a reply: the number of the server's epoch, and the store's epoch.
pub(crate) struct ReplyOrigin {
    pub(crate) history: u32,
    pub(crate) epoch: Epoch,
    /// The moment at which a majority of the sentinels last confirmed the server as primary; `None`
    /// without sentinels.
    pub(crate) confirmed_at: Option<Moment>,
}

/// A reply to one operation. Tokens and versions are texts of 16 digits; everything else is a small
/// number.
enum ScriptReply<'a> {
    Number(u64),
    Code(i64),
    Held(&'a [u8], i64),
}

impl<'a> ScriptReply<'a> {
    fn parse(op: &KeyedOperation, reply: &'a Value) -> Result<Self> {
        match reply {
            Value::BulkString(digits) => match value::read_number(digits) {
                Some(number) => Ok(Self::Number(number)),
                None => Err(corrupt(
                    op,
                    "the store holds no number where a token or a version should be",
                )),
            },
            Value::Int(code) => Ok(Self::Code(*code)),
            Value::Array(held) => match &**held {
                [Value::BulkString(value), Value::Int(left)] => Ok(Self::Held(value, *left)),
                _ => Err(unknown_reply()),
            },
            _ => Err(unknown_reply()),
        }
    }
}

/// Reads a script's reply to one operation.
///
/// # Errors
/// For a lock or record that this library did not write, and for a counter that has reached its
/// maximum.
pub(crate) fn answer(
    op: &KeyedOperation,
    reply: &Value,
    origin: &ReplyOrigin,
    histories: &Histories,
) -> Result<Answer> {
    let reply = ScriptReply::parse(op, reply)?;
    let grant = |number: u64, request: &AcquireRequest| -> Result<Grant> {
        let token = token(op, number)?;
        let mut grant = Grant::new(token, origin.epoch.clone(), request.ttl.duration());
        grant.counts_from = origin.confirmed_at;
        Ok(grant)
    };
    let not_held_reason = |code: i64, lease: &Lease| {
        let reason = match code {
            0 => LossReason::Removed,
            -2 => LossReason::Expired,
            _ => LossReason::TakenOver,
        };
        histories.reason(op.target.bucket, lease, reason)
    };
    Ok(match (&op.operation, reply) {
        (Operation::Acquire(request), ScriptReply::Number(number)) => {
            Answer::Acquired(Attempt::Acquired(grant(number, request)?))
        }
        (Operation::Acquire(request), ScriptReply::Held(value, left)) => {
            let holder = value::holder(&request.name, value, left)?;
            Answer::Acquired(Attempt::Busy(Some(holder)))
        }
        (Operation::Renew(_, renewal), ScriptReply::Number(number)) => {
            Answer::Renewed(Renewed::Extended {
                valid_for: renewal.ttl.duration(),
                epoch: origin.epoch.clone(),
                token: token(op, number)?,
                loss: LossFeed::silent(),
            })
        }
        (Operation::Renew(lease, _), ScriptReply::Code(code)) => {
            Answer::Renewed(Renewed::NotHeld(not_held_reason(code, lease)))
        }
        (Operation::Release(_), ScriptReply::Code(-2..=0)) => {
            Answer::Released(ReleaseOutcome::NotHeld)
        }
        (Operation::Release(_), ScriptReply::Code(code)) => {
            Answer::Released(ReleaseOutcome::Released {
                others_waiting: match code {
                    2 => Some(false),
                    3 => Some(true),
                    _ => None,
                },
            })
        }
        (Operation::HandOver(_, request), ScriptReply::Number(number)) => {
            Answer::HandedOver(HandOver::Done(grant(number, request)?))
        }
        (Operation::HandOver(lease, _), ScriptReply::Code(code @ -2..=0)) => {
            Answer::HandedOver(HandOver::NotHeld(not_held_reason(code, lease)))
        }
        (Operation::ForceRelease(..), ScriptReply::Code(0)) => Answer::Forced(Forced::NotHeld),
        (Operation::ForceRelease(..), ScriptReply::Code(1)) => Answer::Forced(Forced::Released),
        (Operation::ForceRelease(..), ScriptReply::Number(number)) => {
            Answer::Forced(Forced::OtherToken(token(op, number)?))
        }
        (Operation::Create(..) | Operation::Replace(..), ScriptReply::Number(number)) => {
            Answer::Written(Written::Stored(Version::new(number)))
        }
        (Operation::Create(..) | Operation::Replace(..), ScriptReply::Code(0)) => {
            Answer::Written(Written::Conflict)
        }
        (Operation::Delete(..), ScriptReply::Code(0)) => Answer::Deleted(Deleted::Conflict),
        (Operation::Delete(..), ScriptReply::Code(1)) => Answer::Deleted(Deleted::Done),
        (_, ScriptReply::Code(-1)) => {
            return Err(corrupt(
                op,
                "the store holds something under this key that this library did not write",
            ));
        }
        (
            Operation::Acquire(_) | Operation::Create(..) | Operation::Replace(..),
            ScriptReply::Code(-2),
        )
        | (Operation::HandOver(..), ScriptReply::Code(-3)) => return Err(counter_at_end(op)),
        _ => return Err(unknown_reply()),
    })
}

fn token(op: &KeyedOperation, number: u64) -> Result<FencingToken> {
    FencingToken::new(number)
        .map_err(|_| corrupt(op, "the store holds a number that is too large for a token"))
}

fn corrupt(op: &KeyedOperation, problem: &str) -> Error {
    let error = Error::new(ErrorKind::Corrupt, format!("{problem}: {}", op.target.key)).on(BACKEND);
    match op.operation.lock() {
        Some(name) => error.about(name),
        None => error,
    }
}

fn counter_at_end(op: &KeyedOperation) -> Error {
    let bucket = op
        .target
        .key
        .split_inclusive("}:")
        .next()
        .unwrap_or_default();
    Error::new(
        ErrorKind::LimitExceeded,
        format!(
            "the counter {bucket}counter is at the highest token, which only somebody else can \
             have written: delete this key"
        ),
    )
    .on(BACKEND)
}

/// Returns the error for a reply of no known form. Another product than Redis or Valkey may have
/// run the script in its own way.
fn unknown_reply() -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "the reply to a script has an unknown form: distlock needs Redis or Valkey itself, not a \
         product that imitates it",
    )
    .on(BACKEND)
}
