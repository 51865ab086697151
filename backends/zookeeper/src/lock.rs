//! The lock operations.
//!
//! This file maps each operation of [`DistLock`] to steps on the queue. Invariant: each grant and
//! each renewal depends on a proof that the session is alive. A refused `try_acquire` must not
//! leave its new node in the queue, because other contenders would wait for that node.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, Error, ErrorKind, ExpiryClock,
    Fairness, FencingScope, FencingToken, Forced, Grant, HandOver, Health, Lease, LeaseKind,
    LockInfo, LockName, LossReason, Moment, Reach, ReleaseOutcome, Renewal, Renewed, Result,
    TicketStep, Wakeup,
};

use crate::{
    doctor,
    nodes::NodeStatus,
    queue::{
        delete::{Deletion, delete_node},
        enter::{KnownAhead, QueueEntry, enter_queue},
        grant::{grant_if_first, grant_or_extend},
        inspect,
        list::list_ahead,
        undo::undo_unknown_creation,
    },
    session::Session,
    store::StoreHandle,
    wait::QueuedContender,
};

/// The locks under one root.
#[derive(Debug)]
pub(crate) struct Locks {
    handle: StoreHandle,
    capabilities: Capabilities,
}

impl Locks {
    pub(crate) fn new(handle: StoreHandle, session: &Session) -> Self {
        Self {
            handle,
            capabilities: capabilities(session),
        }
    }
}

/// Returns the capabilities of this backend, with the times that the ensemble granted to a session.
fn capabilities(session: &Session) -> Capabilities {
    let mut capabilities = Capabilities::new("zookeeper");
    capabilities.fencing = FencingScope::Global;
    capabilities.fairness = Fairness::Fifo;
    capabilities.store_queue = true;
    capabilities.wakeup = Wakeup::Push;
    capabilities.lease = LeaseKind::Session;
    capabilities.max_lease = Some(session.longest_lease());
    // The node of a crashed holder remains until its session expires.
    capabilities.session_timeout = Some(session.timeout());
    // A caller without a TTL gets the longest possible lease, without a warning.
    capabilities.default_ttl = capabilities.default_ttl.min(session.longest_lease());
    capabilities.survives_restart = true;
    capabilities.expiry_clock = ExpiryClock::Server;
    capabilities.reach = Reach::Network;
    capabilities.tickets = false;
    capabilities.hand_over = false;
    capabilities
}

#[async_trait]
impl DistLock for Locks {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        self.handle.context()?;
        Ok(Arc::new(Self {
            handle: self.handle.another_handle(),
            capabilities: self.capabilities.clone(),
        }))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let asked_at = self.handle.context()?.clock.now();
        let (session, until) = self.handle.session_and_deadline().await?;
        if let Some(node) = session.nodes.find_by_owner(request.owner) {
            match node.status() {
                NodeStatus::Held => {
                    return grant_or_extend(&session, &node, asked_at, request.ttl, until)
                        .await
                        .map(Attempt::Acquired);
                }
                // The owner released the lock and acquires again, so its old node must be deleted
                // first.
                NodeStatus::Leaving => {
                    delete_node(&session, &node, until).await?;
                }
                NodeStatus::Waiting => {
                    let ahead = list_ahead(&session, &node, until).await?;
                    return grant_if_first(&session, &node, &ahead, asked_at, request.ttl, until)
                        .await;
                }
                NodeStatus::Gone(_) => {}
            }
        }
        let (entry, known) = enter_queue(&session, request, until).await?;
        let (node, ttl) = (&entry.node, request.ttl);
        let ahead = match known {
            KnownAhead::OwnNodes(ours) => match ours.iter().find(|node| !node.is_leaving_or_gone())
            {
                Some(holder) => {
                    let holder = holder.holder.clone();
                    leave_queue(&entry, until).await;
                    return Ok(Attempt::Busy(Some(holder)));
                }
                None => Vec::new(),
            },
            KnownAhead::Children(ahead) => ahead,
            KnownAhead::Unknown => list_ahead(&session, node, until).await?,
        };
        let attempt = grant_if_first(&session, node, &ahead, asked_at, ttl, until).await?;
        if let Attempt::Busy(_) = attempt {
            leave_queue(&entry, until).await;
        }
        Ok(attempt)
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        let supervisor = self.handle.supervisor()?;
        let open = self.handle.open_flag();
        let (session, until) = self.handle.session_and_deadline().await?;
        let queued = match session.nodes.find_by_owner(request.owner) {
            // An earlier attempt of this owner has a node, and its answer was lost.
            Some(node) if !node.is_leaving_or_gone() => {
                let entry = QueueEntry {
                    session: Arc::clone(&session),
                    node,
                };
                QueuedContender::resume(supervisor, open, request, entry)
            }
            _ => {
                let (entry, known) = enter_queue(&session, request, until).await?;
                QueuedContender::new(supervisor, open, request, entry, known)
            }
        };
        Ok(Box::new(queued))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let context = self.handle.context()?;
        if renewal.ticket != TicketStep::Keep {
            return Err(no_tickets());
        }
        refuse_ticket(lease)?;
        // The token of a lock is the transaction that created its node, which nothing can raise.
        renewal.check_floor(self.capabilities())?;
        let asked_at = context.clock.now();
        if let Some(reason) = context.ended_leases.loss_reason(lease.owner) {
            return Ok(Renewed::NotHeld(reason));
        }
        let (session, until) = self.handle.session_and_deadline().await?;
        let Some(node) = session.nodes.find_by_owner(lease.owner) else {
            let reason = context.ended_leases.loss_reason(lease.owner);
            return Ok(Renewed::NotHeld(reason.unwrap_or(LossReason::SessionLost)));
        };
        if lease.token.is_some_and(|token| token != node.token) {
            return Ok(Renewed::NotHeld(LossReason::TakenOver));
        }
        if node.status() == NodeStatus::Held {
            match grant_or_extend(&session, &node, asked_at, renewal.ttl, until).await {
                Ok(grant) => {
                    return Ok(Renewed::Extended {
                        valid_for: grant.valid_for,
                        epoch: grant.epoch,
                        token: grant.token,
                        loss: grant.loss,
                    });
                }
                Err(error) if node.status() == NodeStatus::Held => return Err(error),
                Err(_) => {}
            }
        }
        Ok(Renewed::NotHeld(node.loss_reason()))
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let context = self.handle.context()?;
        refuse_ticket(lease)?;
        if context.ended_leases.loss_reason(lease.owner).is_some() {
            return Ok(ReleaseOutcome::NotHeld);
        }
        let (session, until) = self.handle.session_and_deadline().await?;
        let released = if let Some(node) = session.nodes.find_by_owner(lease.owner) {
            if lease.token.is_some_and(|token| token != node.token) {
                return Ok(ReleaseOutcome::NotHeld);
            }
            node.start_leaving();
            let deleted = delete_node(&session, &node, until).await? == Deletion::Done;
            if !deleted {
                // Another client has deleted the node. The node is forgotten now, and a later
                // question would get the answer of a lost session.
                let reason = node.loss_reason();
                context.ended_leases.remember(lease.owner, reason);
            }
            deleted
        } else if undo_unknown_creation(&session, lease.owner, until).await? {
            true
        } else {
            inspect::delete_node_of_owner(&session, lease, until).await?
        };
        Ok(if released {
            ReleaseOutcome::Released {
                others_waiting: None,
            }
        } else {
            ReleaseOutcome::NotHeld
        })
    }

    async fn hand_over(&self, _lease: &Lease, _next: &AcquireRequest) -> Result<HandOver> {
        self.handle.context()?;
        // The node cannot pass to another owner: the transaction that created it is the fencing
        // token, and each owner needs its own token. The next contender of this process is already
        // in the queue. That contender gets the lock as soon as this owner releases, without
        // waiting for the ensemble.
        Ok(HandOver::Unsupported)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let (session, until) = self.handle.session_and_deadline().await?;
        inspect::inspect(&session, name, until).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let (session, until) = self.handle.session_and_deadline().await?;
        inspect::list_held(&session, prefix, after, limit, until).await
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let (session, until) = self.handle.session_and_deadline().await?;
        inspect::force_release(&session, name, expected, until).await
    }

    async fn health(&self) -> Result<Health> {
        let (session, until) = self.handle.session_and_deadline().await?;
        doctor::check_health(&session, until).await
    }

    fn requests_sent(&self) -> Option<u64> {
        Some(self.handle.requests_sent())
    }

    async fn close(&self) {
        self.handle.close().await;
    }
}

/// Leaves the queue, and waits until the node is deleted, so that no other contender waits for the
/// node of a refused caller. If the deletion fails, a background task repeats it, and the caller
/// still gets the refusal.
async fn leave_queue(entry: &QueueEntry, until: Moment) {
    entry.node.start_leaving();
    if let Err(error) = delete_node(&entry.session, &entry.node, until).await {
        tracing::debug!(%error, path = entry.node.path(), "cannot leave the queue yet");
    }
}

/// Refuses the lease of a ticket.
fn refuse_ticket(lease: &Lease) -> Result<()> {
    match lease.nonce {
        Some(_) => Err(no_tickets()),
        None => Ok(()),
    }
}

fn no_tickets() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a lock that hangs on a session cannot become a ticket",
    )
}
