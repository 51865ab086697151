//! A contender that waits in the queue.
//!
//! A contender waits only for the contender just ahead, if these credentials may read the node of
//! that contender. So a release wakes one waiter, whatever the number of waiters.
//!
//! Invariant: a contender gets the lock only when every contender ahead is gone, or is a node of
//! this session that is leaving or gone. A contender keeps its entry only while its caller polls
//! it: a contender that stood still enters the queue again, behind all others.

use std::{pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::{OpenFlag, queue_entry::ENTRY_LEASE};
use distlock_core::{
    AcquireRequest, Attempt, Clock, Contender, Error, ErrorKind, Grant, HolderInfo, LossReason,
    Moment, OwnerId, Result, at_most,
};
use tokio::{sync::watch, task::AbortHandle};
use zookeeper_client as zk;

use crate::{
    error::{Access, entry_lost_error, translate},
    nodes::{Node, NodeStatus},
    queue::{
        delete::delete_node,
        enter::{KnownAhead, QueueEntry, enter_queue},
        grant::grant_or_extend,
        list::{list_ahead, try_read_holder},
    },
    session::Session,
    store::Supervisor,
};

/// The time between two moments at which a waiting contender keeps its entry. Nothing is sent to
/// the ensemble for that.
const KEEP_ENTRY: Duration = ENTRY_LEASE.checked_div(3).unwrap();

/// One waiting contender.
pub(crate) struct QueuedContender {
    supervisor: Arc<Supervisor>,
    open: OpenFlag,
    request: AcquireRequest,
    /// The entry in the queue; `None` = no entry was made yet, or the entry was given up.
    entry: Option<QueueEntry>,
    /// The contenders ahead at the last listing. A later contender enters behind this one, so no
    /// contender is added ahead.
    ahead: Vec<ContenderAhead>,
    /// Whether `ahead` was just listed. Then the next attempt does not list the queue again.
    fresh: bool,
    /// The source of the next wake-up, set by the last attempt that found a contender in the way.
    wake: Option<WakeSource>,
}

/// A contender ahead in the queue.
struct ContenderAhead {
    /// The name of the contender's node.
    child: String,
    /// The contender's node, if it belongs to this session.
    ours: Option<Arc<Node>>,
}

impl ContenderAhead {
    /// Returns whether the node belongs to this session and is leaving or gone.
    fn is_leaving_or_gone(&self) -> bool {
        self.ours
            .as_ref()
            .is_some_and(|node| node.is_leaving_or_gone())
    }
}

/// The source of the wake-up when the contender just ahead leaves.
enum WakeSource {
    /// The status of a node of this session. Watching the status needs no request.
    Ours(watch::Receiver<NodeStatus>),
    /// The flag that a task sets to `true` when a watch at the ensemble fires.
    Theirs(watch::Receiver<bool>, AbortHandle),
}

impl QueuedContender {
    /// Creates a contender with a new entry. The contenders ahead of the entry may be known.
    pub(crate) fn new(
        supervisor: &Arc<Supervisor>,
        open: &OpenFlag,
        request: &AcquireRequest,
        entry: QueueEntry,
        known: KnownAhead,
    ) -> Self {
        let mut queued = Self::resume(supervisor, open, request, entry);
        queued.set_ahead(known);
        queued
    }

    /// Creates a contender with an entry that an earlier attempt made. The contender lists the
    /// contenders ahead itself.
    pub(crate) fn resume(
        supervisor: &Arc<Supervisor>,
        open: &OpenFlag,
        request: &AcquireRequest,
        entry: QueueEntry,
    ) -> Self {
        Self {
            supervisor: Arc::clone(supervisor),
            open: open.clone(),
            request: request.clone(),
            entry: Some(entry),
            ahead: Vec::new(),
            fresh: false,
            wake: None,
        }
    }

    /// Replaces the list of contenders ahead by `known`. An unknown list changes nothing.
    fn set_ahead(&mut self, known: KnownAhead) {
        let Some(entry) = &self.entry else { return };
        self.ahead = match known {
            KnownAhead::Unknown => return,
            KnownAhead::Children(children) => {
                let ours = entry
                    .session
                    .nodes
                    .find_own_nodes(&entry.node.parent, &children);
                children
                    .into_iter()
                    .zip(ours)
                    .map(|(child, ours)| ContenderAhead { child, ours })
                    .collect()
            }
            KnownAhead::OwnNodes(nodes) => nodes
                .into_iter()
                .map(|node| ContenderAhead {
                    child: node.child.clone(),
                    ours: Some(node),
                })
                .collect(),
        };
        self.fresh = true;
    }

    /// Makes sure that there is an entry in the present session. If the session of the entry has
    /// ended, the servers removed the entry's node, so the contender enters the queue again.
    async fn ensure_entry(&mut self, until: Moment) -> Result<(Arc<Session>, Arc<Node>)> {
        if let Some(entry) = &self.entry {
            match (entry.session.end_reason(), entry.node.status()) {
                (None, NodeStatus::Waiting | NodeStatus::Held) => {
                    return Ok((Arc::clone(&entry.session), Arc::clone(&entry.node)));
                }
                (None, NodeStatus::Gone(LossReason::Removed)) => {
                    self.entry = None;
                    return Err(entry_lost_error(LossReason::Removed));
                }
                // The session or the lease has ended, or the caller returned a grant that came too
                // late. The contender enters the queue again.
                _ => self.entry = None,
            }
        }
        // The list belongs to the old entry and says nothing about the new entry.
        self.ahead.clear();
        self.fresh = false;
        self.wake = None;
        let session = self.supervisor.wait_for_session(until).await?;
        let (entry, known) = enter_queue(&session, &self.request, until).await?;
        let node = Arc::clone(&entry.node);
        self.entry = Some(entry);
        self.set_ahead(known);
        Ok((session, node))
    }

    /// Returns whether every contender ahead belongs to this session and is leaving or gone.
    fn is_our_turn(&self) -> bool {
        self.ahead.iter().all(ContenderAhead::is_leaving_or_gone)
    }

    /// Sets the wake-up on the last contender ahead that is neither leaving nor gone. The
    /// contenders after that one need no wake-up, because nobody has to await the deletion of their
    /// nodes. `false` = that contender is gone since the listing, or there is none.
    async fn watch_ahead(
        &mut self,
        session: &Arc<Session>,
        parent: &str,
        until: Moment,
    ) -> Result<bool> {
        let Some(just_ahead) = self.ahead.iter().rfind(|ahead| !ahead.is_leaving_or_gone()) else {
            return Ok(false);
        };
        if let Some(node) = &just_ahead.ours {
            self.wake = Some(WakeSource::Ours(node.watch_status()));
            return Ok(true);
        }
        let Some(watcher) = watch_child(session, parent, &just_ahead.child, until).await? else {
            return Ok(false);
        };
        let (fired, wake) = watch::channel(false);
        let watched = Arc::clone(session);
        // The task runs on the backend's own runtime. The end of the session is checked first,
        // because polling a watch after its client is gone panics.
        let watcher_task = self.supervisor.context.runtime.spawn(async move {
            tokio::select! {
                biased;
                _ = watched.wait_for_end() => {}
                _ = watcher.changed() => {}
            }
            fired.send_replace(true);
        });
        self.wake = Some(WakeSource::Theirs(wake, watcher_task.abort_handle()));
        Ok(true)
    }

    /// Makes one attempt with an entry in the present session.
    async fn ask(
        &mut self,
        session: &Arc<Session>,
        node: &Arc<Node>,
        asked_at: Moment,
        until: Moment,
    ) -> Result<Attempt<Grant>> {
        let ttl = self.request.ttl;
        loop {
            // An older listing may be used again, because no contender can have entered ahead since
            // then. An empty list that is not fresh says nothing, because the queue was never
            // listed.
            let known = self.fresh || !self.ahead.is_empty();
            if node.status() == NodeStatus::Held || (known && self.is_our_turn()) {
                return grant_or_extend(session, node, asked_at, ttl, until)
                    .await
                    .map(Attempt::Acquired);
            }
            if !std::mem::take(&mut self.fresh) {
                let ahead = list_ahead(session, node, until).await?;
                self.set_ahead(KnownAhead::Children(ahead));
                continue;
            }
            if self.watch_ahead(session, &node.parent, until).await? {
                let holder = self.find_holder(session, &node.parent, until).await;
                return Ok(Attempt::Busy(holder));
            }
        }
    }

    /// Returns the holder of the first contender ahead that is neither leaving nor gone, for the
    /// answer to a refused attempt.
    async fn find_holder(
        &self,
        session: &Session,
        parent: &str,
        until: Moment,
    ) -> Option<HolderInfo> {
        let first = self
            .ahead
            .iter()
            .find(|ahead| !ahead.is_leaving_or_gone())?;
        match &first.ours {
            Some(node) => Some(node.holder.clone()),
            None => try_read_holder(session, parent, &first.child, until).await,
        }
    }
}

/// Does a part of a contender's work, and keeps its queue entry as long as the caller polls this
/// future.
async fn keep_entry<T>(clock: &dyn Clock, node: &Node, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        node.keep_entry(clock.now());
        if let Some(output) = at_most(clock, KEEP_ENTRY, &mut work).await {
            return output;
        }
    }
}

/// Sets a watch that fires when a child is removed; `None` when the child is already gone. The
/// watch may fire earlier: if these credentials may not read the child, the watch is on the
/// container.
async fn watch_child(
    session: &Session,
    parent: &str,
    child: &str,
    until: Moment,
) -> Result<Option<zk::OneshotWatcher>> {
    session.wait_connected(until).await?;
    let client = session.client()?;
    let path = format!("{parent}/{child}");
    let asked = client.get_and_watch_data(&path);
    match session.await_answer(Access::Read, until, asked).await? {
        Ok((_, _, watcher)) => return Ok(Some(watcher)),
        Err(zk::Error::NoNode) => return Ok(None),
        Err(zk::Error::NoAuth) => {}
        Err(error) => return Err(translate(error, Access::Read)),
    }
    // Another client made the node with other credentials, in a container that these credentials
    // may read. So the watch is set on the container. Such a watch wakes every contender behind
    // such a node at each change of the queue. A watch on the node's existence would not help:
    // servers with the fix for CVE-2024-23944 do not send its event to clients that may not read
    // the node.
    let asked = client.list_and_watch_children(parent);
    match session.await_answer(Access::Read, until, asked).await? {
        Ok((children, watcher)) => {
            let is_there = children.iter().any(|other| other == child);
            Ok(is_there.then_some(watcher))
        }
        Err(zk::Error::NoNode) => Ok(None),
        Err(error) => Err(translate(error, Access::Read)),
    }
}

#[async_trait]
impl Contender for QueuedContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.open.check("zookeeper")?;
        let asked_at = self.supervisor.context.clock.now();
        let until = self.supervisor.context.operation_deadline();
        let (session, node) = self.ensure_entry(until).await?;
        let supervisor = Arc::clone(&self.supervisor);
        let clock = &*supervisor.context.clock;
        keep_entry(clock, &node, self.ask(&session, &node, asked_at, until)).await
    }

    async fn attempt_as(&mut self, _: OwnerId) -> Result<Attempt<Grant>> {
        self.open.check("zookeeper")?;
        let problem = "the node that waits in the queue also holds the lock, so it has one owner";
        Err(Error::new(ErrorKind::Unsupported, problem).on("zookeeper"))
    }

    fn is_first(&self) -> bool {
        true
    }

    async fn wait(&mut self, at_most: Duration) {
        let Some(entry) = &self.entry else { return };
        let (session, node) = (Arc::clone(&entry.session), Arc::clone(&entry.node));
        let mut own = node.watch_status();
        let ahead_goes = async {
            match &mut self.wake {
                Some(WakeSource::Ours(status)) => {
                    let is_leaving_or_gone = |status: &NodeStatus| {
                        matches!(status, NodeStatus::Leaving | NodeStatus::Gone(_))
                    };
                    let _ = status.wait_for(is_leaving_or_gone).await;
                }
                Some(WakeSource::Theirs(fired, _)) => {
                    let _ = fired.wait_for(|fired| *fired).await;
                }
                None => {}
            }
        };
        let clock = &*self.supervisor.context.clock;
        let change = async {
            tokio::select! {
                biased;
                () = ahead_goes => {}
                _ = own.wait_for(|status| *status != NodeStatus::Waiting) => {}
                _ = session.wait_for_end() => {}
                () = clock.sleep(at_most) => {}
            }
        };
        keep_entry(clock, &node, change).await;
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        let Some(entry) = self.entry.take() else {
            return Ok(());
        };
        if entry.node.status() == NodeStatus::Held || !entry.node.start_leaving() {
            return Ok(());
        }
        let until = self.supervisor.context.operation_deadline();
        // A failed deletion goes on in the background, as long as the session lives.
        delete_node(&entry.session, &entry.node, until).await?;
        Ok(())
    }
}

impl Drop for WakeSource {
    fn drop(&mut self) {
        if let Self::Theirs(_, watcher_task) = self {
            watcher_task.abort();
        }
    }
}
