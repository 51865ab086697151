//! Waiting in the queue: woken when the one just ahead lets go, and by nobody else where its node may be read.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Contender, Grant, HolderInfo, LossReason, Moment, OpenFlag, Result,
};
use tokio::{sync::watch, task::AbortHandle};
use zookeeper_client as zk;

use crate::{
    error::{Access, meaning, out_of_line},
    nodes::{Node, Status},
    queue::{
        delete::delete,
        enter::{Known, Place, enter},
        grant::grant,
        holder::holder_at,
        list,
    },
    session::Session,
    store::Supervisor,
};

/// One caller's place.
pub(crate) struct Queued {
    supervisor: Arc<Supervisor>,
    open: OpenFlag,
    request: AcquireRequest,
    place: Option<Place>,
    /// Who was ahead when we looked last. Nobody can get in before us, so this only shrinks.
    ahead: Vec<Ahead>,
    /// Whether `ahead` is worth looking at without asking again.
    fresh: bool,
    wake: Option<Wake>,
}

struct Ahead {
    child: String,
    /// When it is one of this session.
    ours: Option<Arc<Node>>,
}

impl Ahead {
    /// It is of this session and has let go.
    fn is_out(&self) -> bool {
        self.ours.as_ref().is_some_and(|node| node.is_out())
    }
}

/// What tells that the one just ahead has gone.
enum Wake {
    /// It is of this session: no need to ask the ensemble.
    Ours(watch::Receiver<Status>),
    /// The ensemble tells.
    Theirs(watch::Receiver<bool>, AbortHandle),
}

impl Queued {
    pub(crate) fn new(
        supervisor: &Arc<Supervisor>,
        open: &OpenFlag,
        request: &AcquireRequest,
        place: Place,
        known: Known,
    ) -> Self {
        let mut queued = Self::again(supervisor, open, request, place);
        queued.learn(known);
        queued
    }

    /// A place that was there already.
    pub(crate) fn again(
        supervisor: &Arc<Supervisor>,
        open: &OpenFlag,
        request: &AcquireRequest,
        place: Place,
    ) -> Self {
        Self {
            supervisor: Arc::clone(supervisor),
            open: open.clone(),
            request: request.clone(),
            place: Some(place),
            ahead: Vec::new(),
            fresh: false,
            wake: None,
        }
    }

    fn learn(&mut self, known: Known) {
        let Some(place) = &self.place else { return };
        self.ahead = match known {
            Known::Nothing => return,
            Known::Ahead(children) => {
                let ours = place.session.nodes.at(&place.node.parent, &children);
                children
                    .into_iter()
                    .zip(ours)
                    .map(|(child, ours)| Ahead { child, ours })
                    .collect()
            }
            Known::Ours(nodes) => nodes
                .into_iter()
                .map(|node| Ahead {
                    child: node.child.clone(),
                    ours: Some(node),
                })
                .collect(),
        };
        self.fresh = true;
    }

    /// Lines up in the present session; a place in an older one is worth nothing.
    async fn line_up(&mut self, until: Moment) -> Result<(Arc<Session>, Arc<Node>)> {
        if let Some(place) = &self.place {
            match (place.session.ended(), place.node.status()) {
                (None, Status::Waiting | Status::Held) => {
                    return Ok((Arc::clone(&place.session), Arc::clone(&place.node)));
                }
                (None, Status::Gone(LossReason::Removed)) => {
                    self.place = None;
                    return Err(out_of_line());
                }
                // The session has ended, or a grant that came too late was given back.
                _ => self.place = None,
            }
        }
        // Who was ahead of the old place tells nothing about the new one.
        self.ahead.clear();
        self.fresh = false;
        self.wake = None;
        let session = self.supervisor.session(until).await?;
        let (place, known) = enter(&session, &self.request, until).await?;
        let node = Arc::clone(&place.node);
        self.place = Some(place);
        self.learn(known);
        Ok((session, node))
    }

    /// Whether everybody ahead is of this session and has let go.
    fn is_our_turn(&self) -> bool {
        self.ahead.iter().all(Ahead::is_out)
    }

    /// Arms the wake-up, for the last one ahead that has not let go: one that has may still be there for a while, and nothing
    /// more is to be heard of it. `false` when that one has gone in the meantime, or there is none.
    async fn arm(&mut self, session: &Arc<Session>, parent: &str, until: Moment) -> Result<bool> {
        let Some(just_ahead) = self.ahead.iter().rfind(|ahead| !ahead.is_out()) else {
            return Ok(false);
        };
        if let Some(node) = &just_ahead.ours {
            self.wake = Some(Wake::Ours(node.follow()));
            return Ok(true);
        }
        let Some(watcher) = watch_for(session, parent, &just_ahead.child, until).await? else {
            return Ok(false);
        };
        let (told, wake) = watch::channel(false);
        let watched = Arc::clone(session);
        // On the backend's own thread, and the end of the session first: a watch must not be looked
        // at when its client is gone.
        let pump = self.supervisor.context.runtime.spawn(async move {
            tokio::select! {
                biased;
                _ = watched.wait_for_end() => {}
                _ = watcher.changed() => {}
            }
            told.send_replace(true);
        });
        self.wake = Some(Wake::Theirs(wake, pump.abort_handle()));
        Ok(true)
    }

    async fn holder(&self, session: &Session, parent: &str, until: Moment) -> Option<HolderInfo> {
        let first = self.ahead.iter().find(|ahead| !ahead.is_out())?;
        match &first.ours {
            Some(node) => Some(node.holder.clone()),
            None => holder_at(session, parent, &first.child, until).await,
        }
    }
}

/// What fires when a child goes, at the latest; `None` when it has gone already.
async fn watch_for(
    session: &Session,
    parent: &str,
    child: &str,
    until: Moment,
) -> Result<Option<zk::OneshotWatcher>> {
    session.connected(until).await?;
    let client = session.client()?;
    let path = format!("{parent}/{child}");
    let asked = client.get_and_watch_data(&path);
    match session.answer(Access::Read, until, asked).await? {
        Ok((_, _, watcher)) => return Ok(Some(watcher)),
        Err(zk::Error::NoNode) => return Ok(None),
        Err(zk::Error::NoAuth) => {}
        Err(error) => return Err(meaning(error, Access::Read)),
    }
    // It was made with other credentials, in a container that everybody may read: the container tells. That wakes all who
    // wait behind such a node with every change of the queue, which nobody should mix credentials for. Whether the node
    // exists may be asked, but a watch set by that is worth nothing: servers with the mend for CVE-2024-23944 keep its event
    // from those who may not read the node.
    let asked = client.list_and_watch_children(parent);
    match session.answer(Access::Read, until, asked).await? {
        Ok((children, watcher)) => {
            let is_there = children.iter().any(|other| other == child);
            Ok(is_there.then_some(watcher))
        }
        Err(zk::Error::NoNode) => Ok(None),
        Err(error) => Err(meaning(error, Access::Read)),
    }
}

#[async_trait]
impl Contender for Queued {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.open.check("zookeeper")?;
        let asked = self.supervisor.context.clock.now();
        let until = self.supervisor.context.limit();
        let (session, node) = self.line_up(until).await?;
        let ttl = self.request.ttl;
        loop {
            // A look that found somebody in the way may be used again: they can only have let go since.
            let known = self.fresh || !self.ahead.is_empty();
            if node.status() == Status::Held || (known && self.is_our_turn()) {
                return grant(&session, &node, asked, ttl, until)
                    .await
                    .map(Attempt::Acquired);
            }
            if !std::mem::take(&mut self.fresh) {
                let ahead = list::ahead(&session, &node, until).await?;
                self.learn(Known::Ahead(ahead));
                continue;
            }
            if self.arm(&session, &node.parent, until).await? {
                let holder = self.holder(&session, &node.parent, until).await;
                return Ok(Attempt::Busy(holder));
            }
        }
    }

    fn is_first(&self) -> bool {
        true
    }

    async fn wait(&mut self, at_most: Duration) {
        let Some(place) = &self.place else { return };
        let mut own = place.node.follow();
        let session = Arc::clone(&place.session);
        let ahead_goes = async {
            match &mut self.wake {
                Some(Wake::Ours(status)) => {
                    let out = |status: &Status| matches!(status, Status::Leaving | Status::Gone(_));
                    let _ = status.wait_for(out).await;
                }
                Some(Wake::Theirs(told, _)) => {
                    let _ = told.wait_for(|told| *told).await;
                }
                None => {}
            }
        };
        tokio::select! {
            biased;
            () = ahead_goes => {}
            _ = own.wait_for(|status| *status != Status::Waiting) => {}
            _ = session.wait_for_end() => {}
            () = self.supervisor.context.clock.sleep(at_most) => {}
        }
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        let Some(place) = self.place.take() else {
            return Ok(());
        };
        if place.node.status() == Status::Held || !place.node.leave() {
            return Ok(());
        }
        let until = self.supervisor.context.limit();
        // When it fails it goes on in the background, for as long as the session lives.
        delete(&place.session, &place.node, until).await?;
        Ok(())
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        if let Self::Theirs(_, pump) = self {
            pump.abort();
        }
    }
}
