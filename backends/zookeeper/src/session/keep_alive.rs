//! How a session is proven to live: who sends which request when, and when nobody answers.
//!
//! [`proof`](crate::session::proof) says what the answers prove. This module never waits for a proof with a
//! lock of its own held, and one caller that stops half-way keeps no other from check_began.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use distlock_core::{LossReason, Moment, Result};
use zookeeper_client as zk;

use super::state::{RequestStart, Session};
use crate::{
    error::{Access, not_trusted, session_ended, translate},
    nodes::Node,
    sync::lock,
};

/// How long somebody else's proof is waited for. Renewals wait too, and must not depend on anybody.
const OTHERS_CHECK: Duration = Duration::from_millis(100);

/// Of a node whose data does not matter.
const ANY_VERSION: i32 = -1;

/// How many nodes one request checks: an answer stays far below what the servers send.
const CHECKED_AT_ONCE: usize = 500;

/// The part of its timeout after which a session is given up that nobody answers for. A lease ends
/// at 60 % at the latest: the session is trusted for two thirds, and a lease has a margin of a tenth.
/// Nothing that keeps the session alive is sent beyond that.
const SILENCE_PERCENT: u32 = 55;

/// Whose turn it is to send a proof, and since when.
struct CheckTurn<'a>(&'a Session, Moment);

impl Drop for CheckTurn<'_> {
    fn drop(&mut self) {
        let Self(session, began) = self;
        // Somebody else may have begun anew since.
        lock(&session.check_began).take_if(|check_began| check_began == began);
        session.check_over.notify_waiters();
    }
}
impl Session {
    /// Makes the reads that follow on this client as new as what a quorum has committed. Nobody
    /// waits for it: a server answers in order. It is a write without effect, because a leader that
    /// was deposed goes on answering `sync`; and it is committed also where these credentials may
    /// not read the root.
    pub(crate) fn barrier_write(&self, client: &zk::Client) {
        self.context.requests.add(1);
        drop(check(client, &[self.layout().root.clone()]));
    }

    /// That request was answered. `committed` = it was a write.
    pub(crate) fn note_answer(&self, sent: RequestStart, committed: bool) {
        let now = self.clock().now();
        let mut proof = lock(&self.liveness);
        // With the mutex held, because a reconnect is made known before it begins a new chain.
        let link = *self.connection.borrow();
        if link.verified && link.generation == sent.generation {
            proof.answered(sent.at, now, committed);
        }
    }

    /// Makes sure that the session can be trusted for a while: for as long as `wanted`, or the
    /// least that a grant is worth giving for. Answers with the end of it. A proof that was sent at
    /// `since` or later is good enough, unless it says less than that; then a new chain is waited
    /// for, which takes a tick of the servers.
    pub(crate) async fn trusted_for(
        &self,
        wanted: Duration,
        mut since: Moment,
        until: Moment,
    ) -> Result<Moment> {
        let wanted = wanted.min(lock(&self.liveness).least_trust());
        loop {
            self.confirm_since(since, until).await?;
            let now = self.clock().now();
            let (trusted_until, pause) = {
                let proof = lock(&self.liveness);
                (proof.trusted_until(), proof.next_write_in(now, wanted))
            };
            if trusted_until >= now + wanted {
                return Ok(trusted_until);
            }
            if now + pause > until {
                return Err(not_trusted());
            }
            tracing::debug!(?pause, "waiting for a proof that the session lives");
            tokio::select! {
                biased;
                _ = self.wait_for_end() => return Err(session_ended()),
                () = self.clock().sleep(pause) => {}
            }
            since = self.clock().now();
        }
    }

    /// Makes sure that a write of this session was committed that was sent at `since` or later. It
    /// checks that the nodes of the locks are there that the session holds, so it serves all of
    /// them.
    pub(crate) async fn confirm_since(&self, since: Moment, until: Moment) -> Result<()> {
        let _turn = loop {
            let mut over = pin!(self.check_over.notified());
            over.as_mut().enable();
            if lock(&self.liveness).committed() >= since {
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
        let held = self.nodes.held();
        let sent = self.request_start();
        let paths: Vec<_> = held.iter().map(|node| node.path()).collect();
        let root = [self.layout().root.clone()];
        let paths = if paths.is_empty() { &root[..] } else { &paths };
        // All are on their way before the first is waited for.
        let checks: Vec<_> = paths
            .chunks(CHECKED_AT_ONCE)
            .map(|paths| check(&client, paths))
            .collect();
        for (first, check) in (0..).step_by(CHECKED_AT_ONCE).zip(checks) {
            let failed = match self.answer(Access::Read, until, check).await? {
                Ok(failed) => failed,
                Err(error) => return Err(translate(error, Access::Read)),
            };
            let Some((at, error)) = failed else {
                continue;
            };
            if !passed_the_session_check(&error) {
                return Err(translate(error, Access::Read));
            }
            // Only the first failure is told; the rest is checked next time.
            if error == zk::Error::NoNode
                && let Some(node) = held.get(first + at)
            {
                self.note_removed(node);
            }
        }
        self.note_answer(sent, true);
        Ok(())
    }

    /// Somebody else removed a node of ours. `true` = it was not known yet.
    pub(crate) fn note_removed(&self, node: &Arc<Node>) -> bool {
        let news = node.mark_gone(LossReason::Removed);
        if news {
            tracing::warn!(path = node.path(), "our node was removed by somebody else");
            self.context
                .ended_leases
                .record(node.owner, LossReason::Removed);
            self.nodes.remove(node);
        }
        news
    }

    /// The right to send a proof, or how long to wait for somebody else's. Whoever is at it may be on a runtime that is
    /// blocked, or may not be polled any more, so one of those who wait begins anew after a while.
    fn begin_check(&self) -> Result<CheckTurn<'_>, Duration> {
        let mut check_began = lock(&self.check_began);
        let now = self.clock().now();
        if let Some(began) = *check_began
            && now < began + OTHERS_CHECK
        {
            return Err((began + OTHERS_CHECK).since(now));
        }
        *check_began = Some(now);
        Ok(CheckTurn(self, now))
    }
}

/// Lets a request pass the leader in each period, and gives the session up when none is
/// answered any more.
pub(crate) async fn keep_alive(session: Arc<Session>) {
    let period = lock(&session.liveness).period();
    let silence = session.timeout * SILENCE_PERCENT / 100;
    while session.ended().is_none() {
        let heard = lock(&session.liveness).heard();
        tokio::select! {
            biased;
            _ = session.wait_for_end() => return,
            () = session.clock().sleep((heard + period).since(session.clock().now())) => {}
        }
        // A process that was stopped finds the answers it has missed within a moment.
        let limit = (heard + silence).max(session.clock().now() + session.timeout / 20);
        if lock(&session.liveness).heard() == heard && heartbeat(&session, limit).await.is_err() {
            let now = session.clock().now();
            if now >= limit && lock(&session.liveness).heard() == heard {
                give_up(&session);
                return;
            }
            // The connection was lost: there is another one, or there will be.
            tokio::select! {
                biased;
                _ = session.wait_for_end() => return,
                () = session.clock().sleep(Duration::from_millis(20)) => {}
            }
        }
    }
}

/// A request that passes the leader and costs it nothing.
async fn heartbeat(session: &Session, until: Moment) -> Result<()> {
    session.wait_connected(until).await?;
    let client = session.client()?;
    let sent = session.request_start();
    let answer = client.sync(&session.layout().root);
    match session.answer(Access::Read, until, answer).await? {
        Ok(()) => {
            session.note_answer(sent, false);
            Ok(())
        }
        Err(error) => Err(translate(error, Access::Read)),
    }
}

/// Nobody answers for it: it is over, and nothing is sent that would keep it alive at the
/// servers.
fn give_up(session: &Session) {
    tracing::warn!(
        session = format_args!("{:#x}", session.id),
        "nobody has answered this session for {SILENCE_PERCENT} % of its timeout, giving it up"
    );
    // First, because who waits for a watch of it must stop before its client does.
    session.end(LossReason::SessionLost);
    session.context.io_thread.abort(session.group);
}

/// Whether a check that failed was committed for a session that lived. The leader looks at the
/// session first, within each check: it commits what a session asks for that has just expired, as a
/// failure of that check.
fn passed_the_session_check(failure: &zk::Error) -> bool {
    matches!(failure, zk::Error::NoNode | zk::Error::NoAuth)
}

/// Sends a write without effect, which fails when one of these nodes is not there. Answers with the
/// first that is not.
fn check<'a>(
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
