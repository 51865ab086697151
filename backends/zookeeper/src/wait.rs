//! A contender that waits in the queue.
//!
//! Of all other contenders, only the one just ahead wakes it, as long as these credentials may read
//! the node ahead. So a release wakes one waiter, however many wait.
//!
//! Invariant: it acquires only after every contender ahead has gone or has let go in this session.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::OpenFlag;
use distlock_core::{
    AcquireRequest, Attempt, Contender, Grant, HolderInfo, LossReason, Moment, Result,
};
use tokio::{sync::watch, task::AbortHandle};
use zookeeper_client as zk;

use crate::{
    error::{Access, entry_removed, translate},
    nodes::{Node, NodeStatus},
    queue::{
        delete::delete,
        enter::{KnownAhead, QueueEntry, enter},
        grant::grant,
        holder::try_read_holder,
        list,
    },
    session::Session,
    store::Supervisor,
};

/// One waiting contender.
pub(crate) struct QueuedContender {
    supervisor: Arc<Supervisor>,
    open: OpenFlag,
    request: AcquireRequest,
    entry: Option<QueueEntry>,
    /// The contenders ahead at the last listing. No contender can enter before this one, so this
    /// list only shrinks.
    ahead: Vec<ContenderAhead>,
    /// Whether `ahead` was just listed and has not been used yet.
    fresh: bool,
    wake: Option<WakeSource>,
}

struct ContenderAhead {
    child: String,
    /// The node, when it belongs to this session.
    ours: Option<Arc<Node>>,
}

impl ContenderAhead {
    /// Whether the node belongs to this session and its owner has let go.
    fn has_let_go(&self) -> bool {
        self.ours.as_ref().is_some_and(|node| node.has_let_go())
    }
}

/// The source of the wake-up when the contender just ahead goes.
enum WakeSource {
    /// A node of this session: no request is needed.
    Ours(watch::Receiver<NodeStatus>),
    /// A watch at the ensemble, and the task that waits for it.
    Theirs(watch::Receiver<bool>, AbortHandle),
}

impl QueuedContender {
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

    /// Resumes an entry that exists already.
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

    fn set_ahead(&mut self, known: KnownAhead) {
        let Some(entry) = &self.entry else { return };
        self.ahead = match known {
            KnownAhead::Unknown => return,
            KnownAhead::Children(children) => {
                let ours = entry
                    .session
                    .nodes
                    .own_children(&entry.node.parent, &children);
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

    /// Makes sure that there is an entry in the present session. An entry of an older session is
    /// worth nothing.
    async fn ensure_entry(&mut self, until: Moment) -> Result<(Arc<Session>, Arc<Node>)> {
        if let Some(entry) = &self.entry {
            match (entry.session.ended(), entry.node.status()) {
                (None, NodeStatus::Waiting | NodeStatus::Held) => {
                    return Ok((Arc::clone(&entry.session), Arc::clone(&entry.node)));
                }
                (None, NodeStatus::Gone(LossReason::Removed)) => {
                    self.entry = None;
                    return Err(entry_removed());
                }
                // The session has ended, or a grant that came too late was given back: enter again.
                _ => self.entry = None,
            }
        }
        // The contenders ahead of the old entry say nothing about the new entry.
        self.ahead.clear();
        self.fresh = false;
        self.wake = None;
        let session = self.supervisor.session(until).await?;
        let (entry, known) = enter(&session, &self.request, until).await?;
        let node = Arc::clone(&entry.node);
        self.entry = Some(entry);
        self.set_ahead(known);
        Ok((session, node))
    }

    /// Whether every contender ahead belongs to this session and has let go.
    fn is_our_turn(&self) -> bool {
        self.ahead.iter().all(ContenderAhead::has_let_go)
    }

    /// Sets the wake-up on the last contender ahead that has not let go. A contender that has let
    /// go may still have its node for a while, and no event of it is awaited. `false` = that
    /// contender has gone in the meantime, or there is none.
    async fn watch_ahead(
        &mut self,
        session: &Arc<Session>,
        parent: &str,
        until: Moment,
    ) -> Result<bool> {
        let Some(just_ahead) = self.ahead.iter().rfind(|ahead| !ahead.has_let_go()) else {
            return Ok(false);
        };
        if let Some(node) = &just_ahead.ours {
            self.wake = Some(WakeSource::Ours(node.watch_status()));
            return Ok(true);
        }
        let Some(watcher) = watch_child(session, parent, &just_ahead.child, until).await? else {
            return Ok(false);
        };
        let (told, wake) = watch::channel(false);
        let watched = Arc::clone(session);
        // The task runs on the backend's own thread. The end of the session comes first, because a
        // watch must not be polled once its client is gone: it panics then.
        let watcher_task = self.supervisor.context.runtime.spawn(async move {
            tokio::select! {
                biased;
                _ = watched.wait_for_end() => {}
                _ = watcher.changed() => {}
            }
            told.send_replace(true);
        });
        self.wake = Some(WakeSource::Theirs(wake, watcher_task.abort_handle()));
        Ok(true)
    }

    async fn holder(&self, session: &Session, parent: &str, until: Moment) -> Option<HolderInfo> {
        let first = self.ahead.iter().find(|ahead| !ahead.has_let_go())?;
        match &first.ours {
            Some(node) => Some(node.holder.clone()),
            None => try_read_holder(session, parent, &first.child, until).await,
        }
    }
}

/// Sets a watch that fires when a child goes; `None` when the child has gone already. The watch may
/// fire earlier: where these credentials may not read the child, it is a watch on the container.
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
    match session.answer(Access::Read, until, asked).await? {
        Ok((_, _, watcher)) => return Ok(Some(watcher)),
        Err(zk::Error::NoNode) => return Ok(None),
        Err(zk::Error::NoAuth) => {}
        Err(error) => return Err(translate(error, Access::Read)),
    }
    // The node was made with other credentials, in a container that everybody may read, so watch
    // the container. That wakes every contender behind such a node with each change of the queue;
    // do not mix credentials in one queue. A watch on the node's existence would not help: servers
    // with the fix for CVE-2024-23944 keep its event from clients that may not read the node.
    let asked = client.list_and_watch_children(parent);
    match session.answer(Access::Read, until, asked).await? {
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
        let asked = self.supervisor.context.clock.now();
        let until = self.supervisor.context.limit();
        let (session, node) = self.ensure_entry(until).await?;
        let ttl = self.request.ttl;
        loop {
            // A listing that found a contender in the way may be used again: contenders ahead can
            // only have let go since.
            let known = self.fresh || !self.ahead.is_empty();
            if node.status() == NodeStatus::Held || (known && self.is_our_turn()) {
                return grant(&session, &node, asked, ttl, until)
                    .await
                    .map(Attempt::Acquired);
            }
            if !std::mem::take(&mut self.fresh) {
                let ahead = list::list_ahead(&session, &node, until).await?;
                self.set_ahead(KnownAhead::Children(ahead));
                continue;
            }
            if self.watch_ahead(&session, &node.parent, until).await? {
                let holder = self.holder(&session, &node.parent, until).await;
                return Ok(Attempt::Busy(holder));
            }
        }
    }

    fn is_first(&self) -> bool {
        true
    }

    async fn wait(&mut self, at_most: Duration) {
        let Some(entry) = &self.entry else { return };
        let mut own = entry.node.watch_status();
        let session = Arc::clone(&entry.session);
        let ahead_goes = async {
            match &mut self.wake {
                Some(WakeSource::Ours(status)) => {
                    let out = |status: &NodeStatus| {
                        matches!(status, NodeStatus::Leaving | NodeStatus::Gone(_))
                    };
                    let _ = status.wait_for(out).await;
                }
                Some(WakeSource::Theirs(told, _)) => {
                    let _ = told.wait_for(|told| *told).await;
                }
                None => {}
            }
        };
        tokio::select! {
            biased;
            () = ahead_goes => {}
            _ = own.wait_for(|status| *status != NodeStatus::Waiting) => {}
            _ = session.wait_for_end() => {}
            () = self.supervisor.context.clock.sleep(at_most) => {}
        }
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        let Some(entry) = self.entry.take() else {
            return Ok(());
        };
        if entry.node.status() == NodeStatus::Held || !entry.node.start_leaving() {
            return Ok(());
        }
        let until = self.supervisor.context.limit();
        // A failed deletion goes on in the background, for as long as the session lives.
        delete(&entry.session, &entry.node, until).await?;
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
