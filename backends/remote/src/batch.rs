//! A batch of operations: its messages, and the results that its answers become.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::{
    batch::{Executor, Failure, Reply},
    operation::{Answer, Operation, OperationKind},
};
use distlock_core::{
    Attempt, FencingToken, Forced, Grant, HandOver, Lease, LockName, LossFeed, OwnerId, Renewed,
    Result, TicketStep,
};
use distlock_wire::v1::{self, answer, operation::Operation as Asked};

use crate::{
    error::{unreadable, wrong_kind},
    link::Link,
    session::Session,
};

/// Sends the batches of one handle.
#[derive(Debug)]
pub(crate) struct BatchExecutor(pub(crate) Arc<Link>);

/// Renewals have batches of their own, which are sent first. All other operations share batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BatchKind {
    Renewals,
    Others,
}

impl Executor for BatchExecutor {
    type Kind = BatchKind;
    // Operations are boxed, because queues move them many times.
    type Op = Box<Operation>;
    type Answer = Answer;

    fn kind(&self, op: &Box<Operation>) -> BatchKind {
        match op.kind() {
            OperationKind::Renew => BatchKind::Renewals,
            _ => BatchKind::Others,
        }
    }

    fn is_urgent(&self, kind: BatchKind) -> bool {
        kind == BatchKind::Renewals
    }

    fn key<'a>(&self, op: &'a Box<Operation>) -> &'a str {
        op.key()
    }

    fn bytes(&self, op: &Box<Operation>) -> usize {
        op.key().len() + op.value_bytes()
    }

    async fn run(
        &self,
        _: BatchKind,
        ops: &[Box<Operation>],
    ) -> Result<Vec<Reply<Answer>>, Failure> {
        let link = &self.0;
        let session = link.session().await.map_err(Failure::Whole)?;
        let asked = ops.iter().map(|op| message(op, link, &session));
        let sent = link.ask_all(&session, asked).await;
        let answers = sent.map_err(Failure::Whole)?;
        let answers = ops.iter().zip(answers);
        Ok(answers
            .map(|(op, answer)| Reply::Done(answer.and_then(|it| read(op, it, &session, link))))
            .collect())
    }

    fn undo(&self, op: &Box<Operation>, answer: &Answer) -> Option<Box<Operation>> {
        op.undo(answer).map(Box::new)
    }

    fn outlives_caller(&self, op: &Box<Operation>) -> bool {
        op.outlives_caller()
    }
}

fn message(op: &Operation, link: &Link, session: &Session) -> Asked {
    match op {
        Operation::Renew(lease, renewal) => {
            let mut message = v1::RenewLease::new(lease, renewal);
            // A server that keeps no locks in its memory needs no proof.
            if session.start > 0 {
                let proofs = link.proofs();
                message.proof = proofs.needed(&lease.name, lease.owner, session.start);
            }
            Asked::Renew(message)
        }
        Operation::Release(lease) => Asked::Release(v1::ReleaseLease {
            lease: Some(lease.into()),
        }),
        Operation::HandOver(lease, next) => Asked::HandOver(v1::HandOverLease::new(lease, next)),
        Operation::Acquire(request) => Asked::Acquire(request.into()),
        Operation::ForceRelease(name, token) => Asked::ForceRelease(force(name, *token)),
        Operation::Create(key, value) => Asked::Put(v1::WriteRecord::new(
            key,
            value.clone(),
            distlock_core::Expect::Absent,
        )),
        Operation::Replace(key, value, version) => Asked::Put(v1::WriteRecord::new(
            key,
            value.clone(),
            distlock_core::Expect::Version(*version),
        )),
        Operation::Delete(key, version) => Asked::Delete(v1::RemoveRecord {
            key: key.as_str().to_owned(),
            expect_version: version.get(),
        }),
    }
}

fn force(name: &LockName, token: FencingToken) -> v1::ForceReleaseLock {
    v1::ForceReleaseLock {
        name: name.as_str().to_owned(),
        token: token.get(),
    }
}

/// The result of an operation whose answer came over this session.
fn read(op: &Operation, answer: answer::Answer, session: &Session, link: &Link) -> Result<Answer> {
    match (op, answer) {
        (_, answer::Answer::Error(error)) => Err(error.into()),
        (Operation::Acquire(request), answer::Answer::Acquire(it)) => {
            let (attempt, _) = read_attempt(it, &request.name, request.owner, session, link)?;
            Ok(Answer::Acquired(attempt))
        }
        (Operation::Renew(lease, renewal), answer::Answer::Renew(mut it)) => {
            let (tells_loss, proof) = match &mut it.answer {
                Some(v1::renew_answer::Answer::Extended(extended)) => {
                    (extended.tells_loss, std::mem::take(&mut extended.proof))
                }
                _ => (false, Vec::new()),
            };
            let mut renewed = Renewed::try_from(it).map_err(unreadable)?;
            let held = (&lease.name, lease.owner);
            match &mut renewed {
                Renewed::Extended {
                    loss, valid_for, ..
                } => {
                    keep(proof, held, *valid_for, session, link);
                    if renewal.ticket == TicketStep::Redeem {
                        *loss = feed(tells_loss, session, held);
                    }
                }
                Renewed::NotHeld(_) => forget(lease, session, link),
            }
            Ok(Answer::Renewed(renewed))
        }
        (Operation::Release(lease), answer::Answer::Release(it)) => {
            forget(lease, session, link);
            Ok(Answer::Released(it.into()))
        }
        (Operation::HandOver(lease, next), answer::Answer::HandOver(mut it)) => {
            let (tells_loss, proof) = match &mut it.answer {
                Some(v1::hand_over_answer::Answer::Granted(grant)) => {
                    (grant.tells_loss, std::mem::take(&mut grant.proof))
                }
                _ => (false, Vec::new()),
            };
            let mut outcome = HandOver::try_from(it).map_err(unreadable)?;
            if let HandOver::Done(grant) = &mut outcome {
                forget(lease, session, link);
                let held = (&next.name, grant.owner_after(next));
                keep(proof, held, grant.valid_for, session, link);
                grant.loss = feed(tells_loss, session, held);
            }
            Ok(Answer::HandedOver(outcome))
        }
        (Operation::ForceRelease(..), answer::Answer::ForceRelease(it)) => {
            Ok(Answer::Forced(Forced::try_from(it).map_err(unreadable)?))
        }
        (Operation::Create(..) | Operation::Replace(..), answer::Answer::Put(it)) => {
            Ok(Answer::Written(it.into()))
        }
        (Operation::Delete(..), answer::Answer::Delete(it)) => Ok(Answer::Deleted(it.into())),
        _ => Err(wrong_kind()),
    }
}

/// The attempt of this answer, and whether no other waiter is ahead.
pub(crate) fn read_attempt(
    mut wire: v1::AcquireAnswer,
    name: &LockName,
    owner: OwnerId,
    session: &Session,
    link: &Link,
) -> Result<(Attempt<Grant>, bool)> {
    let (tells_loss, proof) = match &mut wire.answer {
        Some(v1::acquire_answer::Answer::Granted(grant)) => {
            (grant.tells_loss, std::mem::take(&mut grant.proof))
        }
        _ => (false, Vec::new()),
    };
    let (mut attempt, first) = wire.read(link.clock().wall()).map_err(unreadable)?;
    if let Attempt::Acquired(grant) = &mut attempt {
        let held = (name, grant.owner.unwrap_or(owner));
        keep(proof, held, grant.valid_for, session, link);
        grant.loss = feed(tells_loss, session, held);
    }
    Ok((attempt, first))
}

/// A lock and its owner.
type Held<'a> = (&'a LockName, OwnerId);

fn feed(tells_loss: bool, session: &Session, (name, owner): Held<'_>) -> LossFeed {
    if tells_loss {
        session.loss_feed(name, owner)
    } else {
        LossFeed::silent()
    }
}

fn keep(proof: Vec<u8>, held: Held<'_>, valid_for: Duration, session: &Session, link: &Link) {
    let proof = (session.start, proof);
    link.proofs().put(held, proof, valid_for, &**link.clock());
}

fn forget(lease: &Lease, session: &Session, link: &Link) {
    session.forget_loss(&lease.name, lease.owner);
    link.proofs().forget(&lease.name, lease.owner);
}
