//! Keeps a session alive: sends the requests of a proof, and ends the session when the servers
//! answer no request any more.
//!
//! `session/liveness.rs` explains which answered requests are a proof. This module must never hold
//! a mutex while it waits for an answer. Otherwise a caller whose future is no longer polled would
//! block every other caller that needs a proof.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use distlock_core::{LossReason, Moment, Result};
use zookeeper_client as zk;

use super::state::{RequestStart, Session};
use crate::{
    error::{Access, not_trusted_error, session_ended_error, translate},
    nodes::Node,
};

/// The time for which a caller waits for a check that another caller began. Then it begins its own.
const OTHER_CHECK_TIMEOUT: Duration = Duration::from_millis(100);

/// A check with this version accepts any version of the node's data.
const ANY_VERSION: i32 = -1;

/// The limit of nodes that one request checks. The limit keeps a request far below the size limit
/// of the servers.
const CHECKED_AT_ONCE: usize = 500;

/// The part of its timeout after which a session without answers is given up. After that nothing is
/// sent that keeps the session alive. The last lease ends at 60 % of the timeout: a session is
/// trusted for two thirds of its timeout, and a lease has a margin of a tenth. So the part is a
/// little below 60 %.
const SILENCE_PERCENT: u32 = 55;

/// The right to send a check, with the moment at which the check began.
struct CheckTurn<'a>(&'a Session, Moment);

impl Drop for CheckTurn<'_> {
    fn drop(&mut self) {
        let Self(session, began) = self;
        // Another caller may have begun a newer check since. That check must keep its right.
        session
            .check_began
            .lock()
            .take_if(|check_began| check_began == began);
        session.check_over.notify_waiters();
    }
}

impl Session {
    /// Sends a write without effect, and does not wait for its answer. A server answers the
    /// requests of one session in order. So each later read on this client is as new as the state
    /// that a quorum had committed when the write was sent.
    ///
    /// The request is a write because a deposed leader still answers `sync`. The write passes a
    /// quorum even if these credentials may not read the root.
    pub(crate) fn send_barrier_write(&self, client: &zk::Client) {
        self.context.requests.add(1);
        drop(send_check(client, &[self.layout().root.clone()]));
    }

    /// Records that a request was answered. `committed` = the request was a write.
    pub(crate) fn note_answer(&self, sent: RequestStart, committed: bool) {
        let now = self.clock().now();
        let mut liveness = self.liveness.lock();
        // The state is read while the mutex is held. A reconnect changes the connection state
        // before it clears the chain, so an answer of the old connection cannot enter the new
        // chain.
        let connection = *self.connection.borrow();
        if connection.verified && connection.number == sent.connection_number {
            liveness.note_answer(sent.at, now, committed);
        }
    }

    /// Makes sure that the session can be trusted for `wanted`, or for the least time that is worth
    /// a grant if that is shorter. Returns the moment until which the session can be trusted.
    ///
    /// A proof that was sent at `since` or later is enough if it lasts for that time. Otherwise the
    /// caller waits for a new chain of requests, which takes one tick of the servers.
    pub(crate) async fn ensure_trusted_for(
        &self,
        wanted: Duration,
        mut since: Moment,
        until: Moment,
    ) -> Result<Moment> {
        let wanted = wanted.min(self.liveness.lock().least_trust());
        // One write may not be enough: after a standstill it only begins a chain. The next round
        // then waits until a write completes the chain.
        loop {
            self.ensure_committed_since(since, until).await?;
            let now = self.clock().now();
            let (trusted_until, pause) = {
                let liveness = self.liveness.lock();
                (
                    liveness.trusted_until(),
                    liveness.pause_before_write(now, wanted),
                )
            };
            if trusted_until >= now + wanted {
                return Ok(trusted_until);
            }
            if now + pause > until {
                return Err(not_trusted_error());
            }
            tracing::debug!(?pause, "waiting for a proof that the session lives");
            tokio::select! {
                biased;
                _ = self.wait_for_end() => return Err(session_ended_error()),
                () = self.clock().sleep(pause) => {}
            }
            since = self.clock().now();
        }
    }

    /// Makes sure that a write of this session, sent at `since` or later, was committed. If there
    /// is none, sends one. That write checks that the nodes of all held locks exist, so one write
    /// serves all of these locks.
    pub(crate) async fn ensure_committed_since(&self, since: Moment, until: Moment) -> Result<()> {
        let _turn = loop {
            let mut over = pin!(self.check_over.notified());
            // The registration comes before the look at the proof. Otherwise a check that ends
            // between the two would wake nobody, and this caller would wait for the time-out.
            over.as_mut().enable();
            if self.liveness.lock().newest_committed() >= since {
                return Ok(());
            }
            let wait = match self.begin_check() {
                Ok(turn) => break turn,
                Err(wait) => wait,
            };
            tokio::select! {
                biased;
                () = over => {}
                () = self.clock().sleep(wait) => {}
            }
        };
        self.wait_connected(until).await?;
        let client = self.client()?;
        let held = self.nodes.held_nodes();
        // The time is read before anything is sent, so the proof never counts from a later moment.
        let sent = self.request_start();
        let paths: Vec<_> = held.iter().map(|node| node.path()).collect();
        let root = [self.layout().root.clone()];
        let paths = if paths.is_empty() { &root[..] } else { &paths };
        // All requests are sent before the first answer is awaited.
        let checks: Vec<_> = paths
            .chunks(CHECKED_AT_ONCE)
            .map(|paths| send_check(&client, paths))
            .collect();
        for (first, check) in (0..).step_by(CHECKED_AT_ONCE).zip(checks) {
            let failed = match self.await_answer(Access::Read, until, check).await? {
                Ok(failed) => failed,
                Err(error) => return Err(translate(error, Access::Read)),
            };
            let Some((at, error)) = failed else {
                continue;
            };
            // A check that fails is a committed transaction too, and proves as much.
            if !passed_the_session_check(&error) {
                return Err(translate(error, Access::Read));
            }
            // The answer names only the first absent node; the next check finds the others.
            if error == zk::Error::NoNode
                && let Some(node) = held.get(first + at)
            {
                self.note_removed(node);
            }
        }
        self.note_answer(sent, true);
        Ok(())
    }

    /// Marks a node of this session as removed by another client, unless its owner gave the node up
    /// or it was lost before.
    pub(crate) fn note_removed(&self, node: &Arc<Node>) {
        if node.mark_gone(LossReason::Removed) {
            tracing::warn!(path = node.path(), "our node was removed by somebody else");
            self.context
                .ended_leases
                .remember(node.owner, LossReason::Removed);
            self.nodes.remove(node);
        }
    }

    /// Begins a check, or returns the time to wait for another caller's check. That caller's
    /// runtime may be blocked, or its future may not be polled any more. So after that time one of
    /// the waiting callers begins its own check.
    fn begin_check(&self) -> Result<CheckTurn<'_>, Duration> {
        let mut check_began = self.check_began.lock();
        let now = self.clock().now();
        if let Some(began) = *check_began
            && now < began + OTHER_CHECK_TIMEOUT
        {
            return Err((began + OTHER_CHECK_TIMEOUT).since(now));
        }
        *check_began = Some(now);
        Ok(CheckTurn(self, now))
    }
}

/// Sends a request that passes the leader in each period. Gives the session up when no request is
/// answered any more.
pub(crate) async fn keep_alive(session: Arc<Session>) {
    let period = session.liveness.lock().period();
    let silence = session.timeout * SILENCE_PERCENT / 100;
    while session.end_reason().is_none() {
        let last_answered = session.liveness.lock().newest_answered();
        // Any answered request moves the next heartbeat, so a busy session sends none.
        tokio::select! {
            biased;
            _ = session.wait_for_end() => return,
            () = session.clock().sleep((last_answered + period).since(session.clock().now())) => {}
        }
        // After a standstill of the process the limit may be in the past. So at least a twentieth
        // of the timeout remains for reading the answers that arrived during the standstill.
        let limit = (last_answered + silence).max(session.clock().now() + session.timeout / 20);
        if session.liveness.lock().newest_answered() == last_answered
            && send_heartbeat(&session, limit).await.is_err()
        {
            let now = session.clock().now();
            // The proof is read again: another request may have been answered while the heartbeat
            // waited.
            if now >= limit && session.liveness.lock().newest_answered() == last_answered {
                give_up_session(&session);
                return;
            }
            // The connection was lost, and the client opens another one. The pause keeps this loop
            // from spinning.
            tokio::select! {
                biased;
                _ = session.wait_for_end() => return,
                () = session.clock().sleep(Duration::from_millis(20)) => {}
            }
        }
    }
}

/// Sends a request that passes the leader and causes no disk write.
async fn send_heartbeat(session: &Session, until: Moment) -> Result<()> {
    session.wait_connected(until).await?;
    let client = session.client()?;
    let sent = session.request_start();
    // A `sync` can be A or W1 of a chain, never W2: a leader without a quorum still answers it
    // (ZOOKEEPER-1675).
    let answer = client.sync(&session.layout().root);
    match session.await_answer(Access::Read, until, answer).await? {
        Ok(()) => {
            session.note_answer(sent, false);
            Ok(())
        }
        Err(error) => Err(translate(error, Access::Read)),
    }
}

/// Ends a session that gets no answers. After this nothing is sent that would keep the session
/// alive at the servers.
fn give_up_session(session: &Session) {
    tracing::warn!(
        session = format_args!("{:#x}", session.id),
        "no server has answered this session for {SILENCE_PERCENT} % of its timeout: it is given up"
    );
    // The session ends before its tasks are aborted. A task that waits for a watch must stop before
    // the client's tasks are gone, because the client panics in such a task.
    session.end(LossReason::SessionLost);
    session.context.io_thread.abort_group(session.group);
}

/// Returns whether a failed check shows that the leader still knew the session.
///
/// For each check, the leader looks up the session before it looks up the nodes. If the session has
/// just expired, the leader commits the request as a failure of another kind, which proves nothing.
fn passed_the_session_check(failure: &zk::Error) -> bool {
    matches!(failure, zk::Error::NoNode | zk::Error::NoAuth)
}

/// Sends a write without effect that fails when one of these nodes is absent. The answer is the
/// index of the first absent node.
fn send_check<'a>(
    client: &'a zk::Client,
    paths: &[String],
) -> impl Future<Output = Result<Option<(usize, zk::Error)>, zk::Error>> + use<'a> {
    let mut write = client.new_multi_writer();
    let added = paths
        .iter()
        .try_for_each(|path| write.add_check_version(path, ANY_VERSION));
    let committed = added.map(|()| write.commit());
    async move {
        match committed?.await {
            Ok(_) => Ok(None),
            Err(zk::MultiWriteError::OperationFailed { index, source }) => {
                Ok(Some((index, source)))
            }
            Err(zk::MultiWriteError::RequestFailed { source }) => Err(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_for_an_expired_session_proves_nothing() {
        use zk::Error as E;
        let table = [
            (E::NoNode, true),
            (E::NoAuth, true),
            (E::SessionExpired, false),
            (E::SessionMoved, false),
            (E::RuntimeInconsistent, false),
            (E::UnexpectedErrorCode(-125), false),
        ];
        for (failure, proves) in table {
            assert_eq!(passed_the_session_check(&failure), proves, "{failure}");
        }
    }
}
