//! The operations that change something: what a batch is made of, and what comes of it.

use std::time::Duration;

use distlock_core::{
    AcquireRequest, Attempt, Deleted, Epoch, Error, ErrorKind, Expect, FencingToken, Forced, Grant,
    HandOver, HolderInfo, Lease, LockName, LossFeed, LossReason, Moment, RecordKey, ReleaseOutcome,
    Renewal, Renewed, Result, Version, Written,
};
use redis::Value;

use crate::{
    error::BACKEND,
    format::{
        names::{Names, Target},
        value,
    },
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
