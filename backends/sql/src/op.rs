//! The operations that change something: what a batch is made of.

use distlock_core::{
    AcquireRequest, Attempt, Deleted, FencingToken, Forced, Grant, HandOver, Lease, LockName,
    RecordKey, ReleaseOutcome, Renewal, Renewed, Version, Written,
};

/// What can share a statement. Renewals are urgent: a late one is a lost lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Renew,
    Release,
    HandOver,
    Acquire,
    Force,
    Create,
    Replace,
    Delete,
}

impl Kind {
    /// As counted and as shown in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Renew => "renew",
            Self::Release => "release",
            Self::HandOver => "hand_over",
            Self::Acquire => "acquire",
            Self::Force => "force_release",
            Self::Create => "create_record",
            Self::Replace => "replace_record",
            Self::Delete => "delete_record",
        }
    }
}

#[derive(Debug)]
pub(crate) enum Op {
    Renew(Lease, Renewal),
    Release(Lease),
    HandOver(Lease, AcquireRequest),
    Acquire(AcquireRequest),
    Force(LockName, FencingToken),
    Create(RecordKey, Vec<u8>),
    Replace(RecordKey, Vec<u8>, Version),
    Delete(RecordKey, Version),
}

impl Op {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Renew(..) => Kind::Renew,
            Self::Release(_) => Kind::Release,
            Self::HandOver(..) => Kind::HandOver,
            Self::Acquire(_) => Kind::Acquire,
            Self::Force(..) => Kind::Force,
            Self::Create(..) => Kind::Create,
            Self::Replace(..) => Kind::Replace,
            Self::Delete(..) => Kind::Delete,
        }
    }

    /// The lock's name or the record's key.
    pub(crate) fn key(&self) -> &str {
        match self.lock() {
            Some(name) => name.as_str(),
            None => match self {
                Self::Create(key, _) | Self::Replace(key, ..) | Self::Delete(key, _) => {
                    key.as_str()
                }
                _ => "",
            },
        }
    }

    pub(crate) fn lock(&self) -> Option<&LockName> {
        match self {
            Self::Renew(lease, _) | Self::Release(lease) | Self::HandOver(lease, _) => {
                Some(&lease.name)
            }
            Self::Acquire(request) => Some(&request.name),
            Self::Force(name, _) => Some(name),
            Self::Create(..) | Self::Replace(..) | Self::Delete(..) => None,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key().len()
            + match self {
                Self::Acquire(request) | Self::HandOver(_, request) => {
                    64 + request.meta.as_ref().map_or(0, |meta| meta.as_str().len())
                }
                Self::Create(_, value) | Self::Replace(_, value, _) => 32 + value.len(),
                _ => 64,
            }
    }

    /// Whether it may be sent again when it is not known whether it was carried out: whoever holds a lock already is told so,
    /// and a lock that was freed by the first stays free. See [`Answer::is_doubtful`].
    pub(crate) fn may_be_repeated(&self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Renew(..) | Self::Release(_))
    }

    /// What takes `answer` back.
    pub(crate) fn undo(&self, answer: &Answer) -> Option<Self> {
        let release = |request: &AcquireRequest, grant: &Grant| {
            let token = Some(grant.token);
            Self::Release(Lease::new(request.name.clone(), request.owner, token))
        };
        match (self, answer) {
            (Self::Acquire(request), Answer::Acquired(Attempt::Acquired(grant)))
            | (Self::HandOver(_, request), Answer::HandedOver(HandOver::Done(grant))) => {
                Some(release(request, grant))
            }
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Answer {
    Renewed(Renewed),
    Released(ReleaseOutcome),
    HandedOver(HandOver),
    Acquired(Attempt<Grant>),
    Forced(Forced),
    Written(Written),
    Deleted(Deleted),
}

impl Answer {
    /// Whether, to an operation that was sent twice, it may mean that the first was carried out.
    pub(crate) fn is_doubtful(&self) -> bool {
        matches!(self, Self::Released(ReleaseOutcome::NotHeld))
    }

    /// Whether the lock is free now because of it.
    pub(crate) fn freed(&self) -> bool {
        matches!(
            self,
            Self::Released(ReleaseOutcome::Released { .. }) | Self::Forced(Forced::Released)
        )
    }
}
