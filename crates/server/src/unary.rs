//! The unary acquire, which waits at the server.
//!
//! Invariant: a lock that was granted to a call that has ended is released. The caller of such a
//! call does not know of the grant, so nobody else would release it.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Contender, Error, ErrorKind, Grant, HolderInfo, Lease, Moment, Result,
    at_most,
};
use distlock_wire::v1;
use tokio::sync::oneshot;

use crate::{operations::missing, session::SessionContext};

/// Waits for the lock of this call, which was received at this moment.
pub(crate) async fn acquire(
    context: &Arc<SessionContext>,
    call: v1::AcquireCall,
    received: Moment,
) -> Result<v1::AcquireAnswer> {
    let operations = &context.operations;
    let request = call.request.ok_or_else(|| missing("request"))?;
    let request = operations.request(request)?;
    let wait = Duration::from_micros(call.wait_us);
    let (answer, answered) = oneshot::channel();
    // A task of its own: the future of the call is dropped when the caller goes away, and an
    // operation in flight must not be dropped.
    let task = Wait {
        context: Arc::clone(context),
        request: request.clone(),
        until: received + wait,
        received,
    };
    context.tasks.spawn(task.run(answer));
    let attempt = answered.await.unwrap_or_else(|_| {
        let why = "the server stopped during the call";
        Err(Error::new(ErrorKind::OutcomeUnknown, why))
    })?;
    Ok(operations.acquire_answer(&attempt, &request, true))
}

struct Wait {
    context: Arc<SessionContext>,
    request: AcquireRequest,
    until: Moment,
    received: Moment,
}

impl Wait {
    async fn run(self, mut answer: oneshot::Sender<Result<Attempt<Grant>>>) {
        let outcome = self.attempts(&mut answer).await;
        let owner = match &outcome {
            Ok(Attempt::Acquired(grant)) => Some(grant.owner_after(&self.request)),
            // The caller may ask again with the same owner. If it has gone, nobody does.
            Err(error) if !error.did_not_happen() => Some(self.request.owner),
            _ => None,
        };
        if answer.send(outcome).is_err()
            && let Some(owner) = owner
        {
            let lease = Lease::new(self.request.name.clone(), owner, None);
            if let Err(error) = self.context.operations.give_back(&lease).await {
                tracing::warn!(
                    %error, lock = ?self.request.name,
                    "the lock of a call that has ended was not released: it is free when its \
                     lease ends"
                );
            }
        }
    }

    async fn attempts(
        &self,
        answer: &mut oneshot::Sender<Result<Attempt<Grant>>>,
    ) -> Result<Attempt<Grant>> {
        let operations = &self.context.operations;
        let clock = Arc::clone(operations.clock());
        let sent = clock.now();
        let attempt = operations.attempt(&self.request).await?;
        let busy = match attempt {
            Attempt::Acquired(grant) => return Ok(self.granted(grant, sent)),
            Attempt::Busy(holder) => holder,
        };
        if self.until.since(clock.now()).is_zero() || answer.is_closed() {
            return Ok(Attempt::Busy(busy));
        }
        let _place = self.context.waiters.take(&self.request.name)?;
        let mut contender = operations.contend(&self.request).await?;
        let outcome = self.contend(&mut *contender, busy, answer).await;
        if let Err(error) = contender.leave().await {
            tracing::debug!(%error, lock = ?self.request.name, "a waiter did not leave");
        }
        outcome
    }

    async fn contend(
        &self,
        contender: &mut dyn Contender,
        mut busy: Option<HolderInfo>,
        answer: &mut oneshot::Sender<Result<Attempt<Grant>>>,
    ) -> Result<Attempt<Grant>> {
        let clock = Arc::clone(self.context.operations.clock());
        loop {
            if contender.is_first() {
                let sent = clock.now();
                match contender.attempt().await? {
                    Attempt::Acquired(grant) => return Ok(self.granted(grant, sent)),
                    Attempt::Busy(holder) => busy = holder,
                }
            }
            let left = self.until.since(clock.now());
            if left.is_zero() || answer.is_closed() {
                return Ok(Attempt::Busy(busy));
            }
            if self.context.stop.is_cancelled() {
                let why = "the server stops: ask again, another server or later";
                return Err(Error::new(ErrorKind::Unavailable, why));
            }
            // The lease of a holder that has died ends without a notification.
            let expiry = busy.as_ref().and_then(|it| it.expires_in);
            let expiry = expiry.map_or(left, |it| it + Duration::from_millis(1));
            let pause = left.min(expiry);
            tokio::select! {
                _ = at_most(&*clock, pause, contender.wait(pause)) => {}
                () = answer.closed() => {}
                () = self.context.stop.cancelled() => {}
            }
        }
    }

    /// Makes the duration of a grant count from the sending of the call, which was before its
    /// receipt. The attempt that got the lock was sent later, by the time of the wait.
    fn granted(&self, mut grant: Grant, sent: Moment) -> Attempt<Grant> {
        let from = grant.counts_from.take().map_or(sent, |from| from.min(sent));
        let end = from + grant.valid_for;
        grant.valid_for = end.since(self.received);
        Attempt::Acquired(grant)
    }
}
