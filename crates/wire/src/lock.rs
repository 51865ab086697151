//! Requests and answers about locks.

use std::time::{Duration, SystemTime};

use distlock_core::{
    AcquireRequest, Attempt, Epoch, Error, FencingToken, Forced, Grant, HandOver, HolderLabel,
    Lease, LockName, LossFeed, LossReason, Meta, OwnerId, ReleaseOutcome, Renewal, Renewed, Result,
    TicketStep, micros,
};

use crate::{
    v1::{self, acquire_answer, force_release_answer, hand_over_answer, renew_answer, renew_lease},
    value::{invalid, missing, owner, owner_bytes, token, ttl, uuid},
};

impl From<&AcquireRequest> for v1::AcquireLock {
    fn from(request: &AcquireRequest) -> Self {
        Self {
            name: request.name.as_str().to_owned(),
            owner: owner_bytes(request.owner),
            ttl_us: micros(request.ttl.duration()),
            holder: request.holder.as_str().to_owned(),
            meta: request.meta.as_ref().map(|meta| meta.as_str().to_owned()),
            in_order: request.in_order,
        }
    }
}

impl TryFrom<v1::AcquireLock> for AcquireRequest {
    type Error = Error;

    fn try_from(wire: v1::AcquireLock) -> Result<Self> {
        let name = LockName::new(wire.name)?;
        let holder = HolderLabel::new(wire.holder)?;
        let mut request = Self::new(name, owner(&wire.owner)?, ttl(wire.ttl_us)?, holder);
        request.meta = wire.meta.map(Meta::new).transpose()?;
        request.in_order = wire.in_order;
        Ok(request)
    }
}

impl From<&Lease> for v1::Lease {
    fn from(lease: &Lease) -> Self {
        Self {
            name: lease.name.as_str().to_owned(),
            owner: owner_bytes(lease.owner),
            token: lease.token.map(FencingToken::get),
            nonce: lease.nonce.map(|nonce| nonce.as_bytes().to_vec()),
        }
    }
}

impl TryFrom<v1::Lease> for Lease {
    type Error = Error;

    fn try_from(wire: v1::Lease) -> Result<Self> {
        let name = LockName::new(wire.name)?;
        let mut lease = Self::new(name, owner(&wire.owner)?, token(wire.token)?);
        lease.nonce = wire.nonce.map(|it| uuid("the nonce", &it)).transpose()?;
        Ok(lease)
    }
}

impl v1::RenewLease {
    /// The message of this renewal.
    #[must_use]
    pub fn new(lease: &Lease, renewal: &Renewal) -> Self {
        Self {
            lease: Some(lease.into()),
            ttl_us: micros(renewal.ttl.duration()),
            token_floor: renewal.token_floor.map(FencingToken::get),
            proof: Vec::new(),
            ticket: match renewal.ticket {
                TicketStep::Keep => None,
                TicketStep::Issue(nonce) => {
                    Some(renew_lease::Ticket::IssueNonce(nonce.as_bytes().to_vec()))
                }
                TicketStep::Redeem => Some(renew_lease::Ticket::Redeem(true)),
            },
        }
    }

    /// The renewal of this message.
    ///
    /// # Errors
    /// [`InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) and
    /// [`InvalidName`](distlock_core::ErrorKind::InvalidName).
    pub fn read(self) -> Result<(Lease, Renewal)> {
        let lease = Lease::try_from(self.lease.ok_or_else(|| missing("lease"))?)?;
        let mut renewal = Renewal::plain(ttl(self.ttl_us)?);
        renewal.token_floor = token(self.token_floor)?;
        renewal.ticket = match self.ticket {
            None | Some(renew_lease::Ticket::Redeem(false)) => TicketStep::Keep,
            Some(renew_lease::Ticket::IssueNonce(nonce)) => {
                TicketStep::Issue(uuid("the nonce", &nonce)?)
            }
            // Without its nonce, every holder of the lock could redeem the ticket.
            Some(renew_lease::Ticket::Redeem(true)) if lease.nonce.is_none() => {
                return Err(invalid("a ticket is redeemed without its nonce"));
            }
            Some(renew_lease::Ticket::Redeem(true)) => TicketStep::Redeem,
        };
        Ok((lease, renewal))
    }
}

impl v1::WaiterStep {
    /// The message of an attempt of this waiter; with another owner than that of its request, or
    /// without.
    #[must_use]
    pub fn attempt(waiter: u64, owner: Option<OwnerId>) -> Self {
        Self {
            waiter,
            step: v1::waiter_step::Step::Attempt.into(),
            owner: owner.map(owner_bytes),
        }
    }

    /// The owner of this attempt, if it is not that of the request.
    ///
    /// # Errors
    /// [`InvalidArgument`](distlock_core::ErrorKind::InvalidArgument).
    pub fn read_owner(&self) -> Result<Option<OwnerId>> {
        self.owner.as_deref().map(owner).transpose()
    }
}

impl v1::HandOverLease {
    /// The message of this hand-over.
    #[must_use]
    pub fn new(lease: &Lease, next: &AcquireRequest) -> Self {
        Self {
            lease: Some(lease.into()),
            next: Some(next.into()),
        }
    }

    /// The hand-over of this message.
    ///
    /// # Errors
    /// [`InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) and
    /// [`InvalidName`](distlock_core::ErrorKind::InvalidName).
    pub fn read(self) -> Result<(Lease, AcquireRequest)> {
        let lease = Lease::try_from(self.lease.ok_or_else(|| missing("lease"))?)?;
        let next = AcquireRequest::try_from(self.next.ok_or_else(|| missing("next request"))?)?;
        if lease.name != next.name {
            return Err(invalid("a lock is handed over under another name"));
        }
        Ok((lease, next))
    }
}

impl From<&Grant> for v1::Grant {
    /// The message does not have [`Grant::counts_from`]: the server shortens `valid_for` instead.
    /// The server also adds its proof.
    fn from(grant: &Grant) -> Self {
        Self {
            token: grant.token.get(),
            epoch: grant.epoch.as_str().to_owned(),
            valid_for_us: micros(grant.valid_for),
            tells_loss: !grant.loss.is_silent(),
            others_waiting: grant.others_waiting,
            owner: grant.owner.map(owner_bytes),
            proof: Vec::new(),
        }
    }
}

impl TryFrom<v1::Grant> for Grant {
    type Error = Error;

    /// The grant has a silent feed of losses: the client adds its own.
    fn try_from(wire: v1::Grant) -> Result<Self> {
        let token = FencingToken::new(wire.token)?;
        let valid_for = Duration::from_micros(wire.valid_for_us);
        let mut grant = Self::new(token, Epoch::new(wire.epoch), valid_for);
        grant.others_waiting = wire.others_waiting;
        grant.owner = wire.owner.map(|it| owner(&it)).transpose()?;
        Ok(grant)
    }
}

impl v1::AcquireAnswer {
    /// The message of an attempt. `first`: no other waiter is ahead of the waiter that made the
    /// attempt. `wall` is the wall clock, from which the age of a hold is computed.
    #[must_use]
    pub fn new(attempt: &Attempt<Grant>, first: bool, wall: SystemTime) -> Self {
        Self {
            answer: Some(match attempt {
                Attempt::Acquired(grant) => acquire_answer::Answer::Granted(grant.into()),
                Attempt::Busy(holder) => acquire_answer::Answer::Busy(v1::Busy {
                    holder: holder.as_ref().map(|it| v1::Holder::new(it, wall)),
                    first,
                }),
            }),
        }
    }

    /// The attempt of this message, and whether no other waiter is ahead.
    ///
    /// # Errors
    /// [`InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) for a message that breaks a
    /// rule.
    pub fn read(self, wall: SystemTime) -> Result<(Attempt<Grant>, bool)> {
        match self.answer.ok_or_else(|| missing("answer"))? {
            acquire_answer::Answer::Granted(grant) => {
                Ok((Attempt::Acquired(grant.try_into()?), true))
            }
            acquire_answer::Answer::Busy(busy) => {
                let holder = busy.holder.map(|it| it.read(wall)).transpose()?;
                Ok((Attempt::Busy(holder), busy.first))
            }
        }
    }
}

impl From<&Renewed> for v1::RenewAnswer {
    fn from(renewed: &Renewed) -> Self {
        Self {
            answer: Some(match renewed {
                Renewed::Extended {
                    valid_for,
                    epoch,
                    token,
                    loss,
                } => renew_answer::Answer::Extended(v1::Extended {
                    token: token.get(),
                    epoch: epoch.as_str().to_owned(),
                    valid_for_us: micros(*valid_for),
                    tells_loss: !loss.is_silent(),
                    proof: Vec::new(),
                }),
                Renewed::NotHeld(reason) => {
                    renew_answer::Answer::NotHeld(v1::LossReason::from(*reason).into())
                }
            }),
        }
    }
}

impl TryFrom<v1::RenewAnswer> for Renewed {
    type Error = Error;

    /// The answer has a silent feed of losses: the client adds its own.
    fn try_from(wire: v1::RenewAnswer) -> Result<Self> {
        match wire.answer.ok_or_else(|| missing("answer"))? {
            renew_answer::Answer::Extended(it) => Ok(Self::Extended {
                valid_for: Duration::from_micros(it.valid_for_us),
                epoch: Epoch::new(it.epoch),
                token: FencingToken::new(it.token)?,
                loss: LossFeed::silent(),
            }),
            renew_answer::Answer::NotHeld(reason) => Ok(Self::NotHeld(loss_reason(reason)?)),
        }
    }
}

impl From<ReleaseOutcome> for v1::ReleaseAnswer {
    fn from(outcome: ReleaseOutcome) -> Self {
        match outcome {
            ReleaseOutcome::Released { others_waiting } => Self {
                released: true,
                others_waiting,
            },
            ReleaseOutcome::NotHeld => Self::default(),
        }
    }
}

impl From<v1::ReleaseAnswer> for ReleaseOutcome {
    fn from(wire: v1::ReleaseAnswer) -> Self {
        let others_waiting = wire.others_waiting;
        if wire.released {
            Self::Released { others_waiting }
        } else {
            Self::NotHeld
        }
    }
}

impl From<&HandOver> for v1::HandOverAnswer {
    fn from(outcome: &HandOver) -> Self {
        Self {
            answer: Some(match outcome {
                HandOver::Done(grant) => hand_over_answer::Answer::Granted(grant.into()),
                HandOver::NotHeld(reason) => {
                    hand_over_answer::Answer::NotHeld(v1::LossReason::from(*reason).into())
                }
                HandOver::Unsupported => hand_over_answer::Answer::Unsupported(true),
            }),
        }
    }
}

impl TryFrom<v1::HandOverAnswer> for HandOver {
    type Error = Error;

    fn try_from(wire: v1::HandOverAnswer) -> Result<Self> {
        Ok(match wire.answer.ok_or_else(|| missing("answer"))? {
            hand_over_answer::Answer::Granted(grant) => Self::Done(grant.try_into()?),
            hand_over_answer::Answer::NotHeld(reason) => Self::NotHeld(loss_reason(reason)?),
            hand_over_answer::Answer::Unsupported(_) => Self::Unsupported,
        })
    }
}

impl From<Forced> for v1::ForceReleaseAnswer {
    fn from(outcome: Forced) -> Self {
        Self {
            answer: Some(match outcome {
                Forced::Released => force_release_answer::Answer::Released(true),
                Forced::NotHeld => force_release_answer::Answer::NotHeld(true),
                Forced::OtherToken(token) => force_release_answer::Answer::OtherToken(token.get()),
            }),
        }
    }
}

impl TryFrom<v1::ForceReleaseAnswer> for Forced {
    type Error = Error;

    fn try_from(wire: v1::ForceReleaseAnswer) -> Result<Self> {
        Ok(match wire.answer.ok_or_else(|| missing("answer"))? {
            force_release_answer::Answer::Released(_) => Self::Released,
            force_release_answer::Answer::NotHeld(_) => Self::NotHeld,
            force_release_answer::Answer::OtherToken(token) => {
                Self::OtherToken(FencingToken::new(token)?)
            }
        })
    }
}

impl v1::LeaseLost {
    /// The message of a lost lease.
    #[must_use]
    pub fn new(lease: &Lease, reason: LossReason) -> Self {
        Self {
            name: lease.name.as_str().to_owned(),
            owner: owner_bytes(lease.owner),
            reason: v1::LossReason::from(reason).into(),
        }
    }

    /// The lease, without its token, and the reason.
    ///
    /// # Errors
    /// [`InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) for a message that breaks a
    /// rule.
    pub fn read(self) -> Result<(Lease, LossReason)> {
        let name = LockName::new(self.name)?;
        let lease = Lease::new(name, owner(&self.owner)?, None);
        Ok((lease, loss_reason(self.reason)?))
    }
}

impl From<LossReason> for v1::LossReason {
    fn from(reason: LossReason) -> Self {
        match reason {
            LossReason::Expired => Self::Expired,
            LossReason::ForceReleased => Self::ForceReleased,
            LossReason::HistoryChanged => Self::HistoryChanged,
            LossReason::Moved => Self::Moved,
            LossReason::Removed => Self::Removed,
            LossReason::SessionLost => Self::SessionLost,
            LossReason::TakenOver => Self::TakenOver,
            LossReason::Unreachable => Self::Unreachable,
            // A reason that this version of the protocol does not have.
            _ => Self::Unspecified,
        }
    }
}

fn loss_reason(number: i32) -> Result<LossReason> {
    let known = v1::LossReason::try_from(number);
    let known = known.map_err(|_| invalid(format!("{number} is no reason of a loss")))?;
    Ok(match known {
        v1::LossReason::Expired => LossReason::Expired,
        v1::LossReason::ForceReleased => LossReason::ForceReleased,
        v1::LossReason::HistoryChanged => LossReason::HistoryChanged,
        // The lock is gone, for a reason that this version does not know.
        v1::LossReason::Unspecified | v1::LossReason::Removed => LossReason::Removed,
        v1::LossReason::Moved => LossReason::Moved,
        v1::LossReason::SessionLost => LossReason::SessionLost,
        v1::LossReason::TakenOver => LossReason::TakenOver,
        v1::LossReason::Unreachable => LossReason::Unreachable,
    })
}
