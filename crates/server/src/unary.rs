//! The unary acquire, which waits at the server.
//!
//! Invariant: a lock that was granted to a call that has ended is released. The caller of such a
//! call does not know of the grant, so nobody else would release it. A newer call of the same owner
//! waits for that.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Contender, Error, ErrorKind, Grant, HolderInfo, Lease, Moment, Result,
    at_most,
};
use distlock_wire::v1;
use futures_util::FutureExt as _;
use tokio::{runtime::Handle, sync::oneshot};

use crate::{calls::CallTurn, operations::missing, session::SessionContext};

/// Waits for the lock of this call, which was received at this moment, at most until the end of the
/// access.
pub(crate) async fn acquire(
    context: &Arc<SessionContext>,
    call: v1::AcquireCall,
    received: Moment,
    access: Option<Moment>,
) -> Result<v1::AcquireAnswer> {
    let operations = &context.operations;
    let request = call.request.ok_or_else(|| missing("request"))?;
    let request = operations.request(request)?;
    let until = received + Duration::from_micros(call.wait_us);
    let (answer, answered) = oneshot::channel();
    let turn = context.calls.enter(&request.name, request.owner);
    // A task of its own: the future of the call is dropped when the caller goes away, and an
    // operation in flight must not be dropped.
    let task = Wait {
        context: Arc::clone(context),
        request: request.clone(),
        until: access.map_or(until, |end| until.min(end)),
        received,
    };
    let mut task = Box::pin(task.run(turn, answer));
    // A store in memory answers at once.
    if (&mut task).now_or_never().is_none() {
        context.tasks.spawn(task);
    }
    let answer = answered.await.map_err(|_| {
        let why = "the server stopped during the call";
        Error::new(ErrorKind::OutcomeUnknown, why)
    })?;
    let attempt = answer.claim()?;
    Ok(operations.acquire_answer(&attempt, &request, true))
}

/// What a call led to. Unless the caller claims it, a granted lock is released: nobody else knows
/// of it.
struct Answer {
    outcome: Result<Attempt<Grant>>,
    undo: Undo,
}

impl Answer {
    fn claim(mut self) -> Result<Attempt<Grant>> {
        self.undo.lease = None;
        self.outcome
    }
}

struct Undo {
    context: Arc<SessionContext>,
    /// What may have been granted.
    lease: Option<Lease>,
    /// A newer call of the owner waits for the end of the release.
    turn: Option<CallTurn>,
}

impl Drop for Undo {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else {
            return;
        };
        let (context, turn) = (Arc::clone(&self.context), self.turn.take());
        // Without a runtime the server is gone, and the lease ends by itself.
        if let Ok(runtime) = Handle::try_current() {
            let tasks = context.tasks.clone();
            tasks.spawn_on(give_back(context, lease, turn), &runtime);
        }
    }
}

async fn give_back(context: Arc<SessionContext>, lease: Lease, turn: Option<CallTurn>) {
    if let Err(error) = context.operations.give_back(&lease).await {
        tracing::warn!(
            %error, lock = ?lease.name,
            "the lock of a call that has ended was not released: it is free when its lease ends"
        );
    }
    drop(turn);
}

struct Wait {
    context: Arc<SessionContext>,
    request: AcquireRequest,
    until: Moment,
    received: Moment,
}

impl Wait {
    async fn run(self, mut turn: CallTurn, mut answer: oneshot::Sender<Answer>) {
        turn.wait().await;
        let outcome = self.attempts(&turn, &mut answer).await;
        let owner = match &outcome {
            Ok(Attempt::Acquired(grant)) => Some(grant.owner_after(&self.request)),
            // The caller may ask again with the same owner. If it has gone, nobody does.
            Err(error) if !error.did_not_happen() => Some(self.request.owner),
            _ => None,
        };
        let undo = Undo {
            context: self.context,
            lease: owner.map(|owner| Lease::new(self.request.name, owner, None)),
            turn: Some(turn),
        };
        // A caller that has gone drops the answer, here or unread.
        let _ = answer.send(Answer { outcome, undo });
    }

    async fn attempts(
        &self,
        turn: &CallTurn,
        answer: &mut oneshot::Sender<Answer>,
    ) -> Result<Attempt<Grant>> {
        if turn.superseded().is_cancelled() {
            return Err(superseded());
        }
        // The call may have been read late, when its caller has the lock by a newer call already.
        // The attempt would find that lock, and the undo would release it.
        if answer.is_closed() {
            return Ok(Attempt::Busy(None));
        }
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
        let outcome = self.contend(&mut *contender, busy, turn, answer).await;
        if let Err(error) = contender.leave().await {
            tracing::debug!(%error, lock = ?self.request.name, "a waiter did not leave");
        }
        outcome
    }

    async fn contend(
        &self,
        contender: &mut dyn Contender,
        mut busy: Option<HolderInfo>,
        turn: &CallTurn,
        answer: &mut oneshot::Sender<Answer>,
    ) -> Result<Attempt<Grant>> {
        let clock = Arc::clone(self.context.operations.clock());
        loop {
            if answer.is_closed() {
                return Ok(Attempt::Busy(busy));
            }
            if turn.superseded().is_cancelled() {
                return Err(superseded());
            }
            if contender.is_first() {
                let sent = clock.now();
                match contender.attempt().await? {
                    Attempt::Acquired(grant) => return Ok(self.granted(grant, sent)),
                    Attempt::Busy(holder) => busy = holder,
                }
            }
            let left = self.until.since(clock.now());
            if left.is_zero() {
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
                () = turn.superseded().cancelled() => {}
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

/// The error of a call whose client has asked again. Nothing was granted.
fn superseded() -> Error {
    let why = "a newer call of the same owner has come";
    Error::new(ErrorKind::Unavailable, why)
}
