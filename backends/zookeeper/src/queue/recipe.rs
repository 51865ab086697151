//! The queue's steps: line up, look who is ahead, leave.
//!
//! Creation and listing are sent together. The servers process one session's requests in order, so the listing shows the
//! new node and everybody before it, and an uncontended lock costs one round trip.
//!
//! A creation whose answer was lost is looked for by its attempt id before another one is made; one that nobody waits for
//! any more is looked for and deleted in the background, for as long as the session lives.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Error, ErrorKind, FencingToken, LossReason, Moment, OwnerId, Result,
};
use uuid::Uuid;
use zookeeper_client as zk;

use crate::{
    ensemble::connect::history,
    error::{Access, closed, meaning, session_ended},
    names::contender,
    nodes::{
        Attempt, Node, Status, holder,
        sequence::{Sequence, ahead_of},
    },
    session::{Sent, Session},
};

/// How long an attempt that timed out is left to whoever asks again before it is cleaned up.
const SECOND_CHANCE: Duration = Duration::from_secs(2);

/// A place in a queue. Dropping it while it waits deletes its node.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) session: Arc<Session>,
    pub(crate) node: Arc<Node>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.node.status() == Status::Waiting && self.node.leave() {
            delete_at_length(&self.session, Arc::clone(&self.node));
        }
    }
}

/// What is known of a place when it has been taken.
#[derive(Debug)]
pub(crate) enum Known {
    /// The answer was lost, or it was not asked: look.
    Nothing,
    /// These children are ahead, first come first.
    Ahead(Vec<String>),
    /// Nobody can be ahead but these nodes of ours.
    Ours(Vec<Arc<Node>>),
}

/// Lines up.
pub(crate) async fn enter(
    session: &Arc<Session>,
    request: &AcquireRequest,
    until: Moment,
) -> Result<(Place, Known)> {
    if session.nodes.is_closing() {
        return Err(closed());
    }
    let earlier = session.nodes.pick_up(request.owner);
    let mut look_first = earlier.is_some();
    let attempt = earlier.unwrap_or_else(|| Attempt {
        id: Uuid::new_v4(),
        parent: session.layout().container(&request.name),
    });
    let prefix = contender(attempt.id, session.id());
    let path = format!("{}/{prefix}", attempt.parent);
    let parent = Arc::clone(&attempt.parent);
    let data = holder::write(request);
    let options = zk::CreateMode::EphemeralSequential.with_acls(session.acls());
    let mut entering = Entering {
        session,
        owner: request.owner,
        attempt: look_first.then(|| attempt.clone()),
        given_up: true,
    };
    loop {
        if let Err(error) = session.connected(until).await {
            entering.given_up = false;
            return Err(error);
        }
        if look_first {
            look_first = false;
            if let Some((child, token)) = find_one(session, &parent, &prefix, until).await? {
                entering.attempt = None;
                let place = register(session, request, parent, child, token)?;
                return Ok((place, Known::Nothing));
            }
        }
        let client = session.client()?;
        let sent = session.sending();
        // From here on it may be on its way, also when this future is dropped.
        entering.attempt = Some(attempt.clone());
        let likely = session.runs.is_likely(&parent, sent.generation);
        let (created, listed) = session.send(|| {
            let created = client.create(&path, &data, &options);
            let listed = (!likely).then(|| client.list_children(&parent));
            (created, listed)
        });
        let created = match session.answer(Access::Write, until, created).await {
            Ok(created) => created,
            Err(error) => {
                entering.given_up = false;
                return Err(error);
            }
        };
        match created {
            Ok((stat, sequence)) => {
                let child = format!("{prefix}{sequence}");
                let place = settled(session, request, &stat, sent, Arc::clone(&parent), child)?;
                entering.attempt = None;
                if let Some(ours) = session.runs.follow_on(&place.node, sent.generation) {
                    return Ok((place, Known::Ours(ours)));
                }
                let Some(listed) = listed else {
                    return Ok((place, Known::Nothing));
                };
                let listed = session.answer(Access::Read, until, listed).await?;
                let ahead = listed.ok().and_then(|all| ahead_of(&place.node.child, all));
                return Ok((place, ahead.map_or(Known::Nothing, Known::Ahead)));
            }
            Err(zk::Error::NoNode) => {
                entering.attempt = None;
                make_container(session, &parent, until).await?;
            }
            Err(zk::Error::ConnectionLoss) => look_first = true,
            // What it may have created vanishes with the session.
            Err(zk::Error::SessionExpired | zk::Error::ClientClosed) => {
                entering.attempt = None;
                return Err(session_ended());
            }
            Err(error) => {
                let error = meaning(error, Access::Write);
                if error.did_not_happen() {
                    entering.attempt = None;
                } else {
                    entering.given_up = false;
                }
                return Err(error);
            }
        }
    }
}

/// Who is ahead of a node, first come first.
pub(crate) async fn ahead(
    session: &Arc<Session>,
    node: &Arc<Node>,
    until: Moment,
) -> Result<Vec<String>> {
    let children = children(session, &node.parent, until).await?;
    if let Some(ahead) = ahead_of(&node.child, children) {
        return Ok(ahead);
    }
    // The servers remove a session's nodes a moment before they tell it that it is over.
    session.prove(session.clock().now(), until).await?;
    session.removed(node);
    Err(out_of_line())
}

/// The children of a container; none when there is no such container.
pub(crate) async fn children(
    session: &Arc<Session>,
    parent: &str,
    until: Moment,
) -> Result<Vec<String>> {
    loop {
        session.connected(until).await?;
        let client = session.client()?;
        match session
            .answer(Access::Read, until, client.list_children(parent))
            .await?
        {
            Ok(children) => return Ok(children),
            Err(zk::Error::NoNode) => return Ok(Vec::new()),
            Err(zk::Error::ConnectionLoss) => {}
            Err(error) => return Err(meaning(error, Access::Read)),
        }
    }
}

/// What became of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// It was there and we deleted it.
    Done,
    /// It had vanished before.
    Vanished,
}

/// Deletes a node that was left, and goes on in the background when that takes too long or nobody waits any more.
pub(crate) async fn delete(
    session: &Arc<Session>,
    node: &Arc<Node>,
    until: Moment,
) -> Result<Deletion> {
    let mut unfinished = Unfinished {
        session,
        node: Some(node),
    };
    let deletion = try_delete(session, node, until).await;
    if deletion.is_ok() {
        unfinished.node = None;
    }
    deletion
}

/// Deletes a node in the background: again and again, until that is confirmed or the session has ended.
pub(crate) fn delete_at_length(session: &Arc<Session>, node: Arc<Node>) {
    let task_session = Arc::clone(session);
    session.spawn(async move {
        let session = task_session;
        let mut pause = Duration::from_millis(50);
        while session.ended().is_none() {
            let until = session.clock().now() + Duration::from_secs(60);
            match try_delete(&session, &node, until).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, path = node.path(), "cannot delete our node yet");
                    session.clock().sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    });
}

/// Finds and deletes what an attempt has left, if anything. `true` = there was something.
async fn undo(session: &Arc<Session>, attempt: &Attempt, until: Moment) -> Result<bool> {
    let prefix = contender(attempt.id, session.id());
    let mut found = false;
    loop {
        session.connected(until).await?;
        let client = session.client()?;
        // Behind everything that was sent before, and as new as what a quorum has committed.
        session.commit_ahead(&client);
        let listed = client.list_children(&attempt.parent);
        let children = match session.answer(Access::Read, until, listed).await? {
            Ok(children) => children,
            Err(zk::Error::NoNode) => return Ok(found),
            Err(zk::Error::ConnectionLoss) => continue,
            Err(error) => return Err(meaning(error, Access::Read)),
        };
        let Some(child) = children.iter().find(|child| child.starts_with(&prefix)) else {
            return Ok(found);
        };
        found = true;
        let path = format!("{}/{child}", attempt.parent);
        match session
            .answer(Access::Write, until, client.delete(&path, None))
            .await?
        {
            // Once more, to be sure that it was the only one.
            Ok(()) | Err(zk::Error::NoNode | zk::Error::ConnectionLoss) => {}
            Err(error) => return Err(meaning(error, Access::Write)),
        }
    }
}

/// Undoes an attempt of this owner whose outcome is unknown. `true` = it had got in.
pub(crate) async fn undo_lost(
    session: &Arc<Session>,
    owner: OwnerId,
    until: Moment,
) -> Result<bool> {
    let Some(attempt) = session.nodes.pick_up(owner) else {
        return Ok(false);
    };
    let mut entering = Entering {
        session,
        owner,
        attempt: Some(attempt.clone()),
        given_up: true,
    };
    let found = undo(session, &attempt, until).await?;
    entering.attempt = None;
    Ok(found)
}

/// Somebody removed our place from the queue.
pub(crate) fn out_of_line() -> Error {
    Error::new(
        ErrorKind::Lost,
        "our place in the queue was removed by somebody else",
    )
    .on("zookeeper")
}

async fn try_delete(session: &Arc<Session>, node: &Arc<Node>, until: Moment) -> Result<Deletion> {
    let path = node.path();
    let mut asked_before = false;
    let deletion = loop {
        // An ephemeral node ends with its session.
        if session.ended().is_some() {
            break Deletion::Vanished;
        }
        match session.connected(until).await {
            Ok(()) => {}
            Err(_) if session.ended().is_some() => break Deletion::Vanished,
            Err(error) => return Err(error),
        }
        let Ok(client) = session.client() else {
            break Deletion::Vanished;
        };
        let sent = session.sending();
        let deleted = session.send(|| client.delete(&path, None));
        match session.answer(Access::Write, until, deleted).await? {
            Ok(()) => {
                session.answered(sent, true);
                break Deletion::Done;
            }
            Err(zk::Error::NoNode) if asked_before => break Deletion::Done,
            Err(zk::Error::NoNode | zk::Error::SessionExpired | zk::Error::ClientClosed) => {
                break Deletion::Vanished;
            }
            Err(zk::Error::ConnectionLoss) => asked_before = true,
            Err(error) => return Err(meaning(error, Access::Write)),
        }
    };
    session.nodes.remove(node);
    Ok(deletion)
}

/// A node that was created just now.
fn settled(
    session: &Arc<Session>,
    request: &AcquireRequest,
    stat: &zk::Stat,
    sent: Sent,
    parent: Arc<str>,
    child: String,
) -> Result<Place> {
    let token = token(stat.czxid)?;
    if stat.ephemeral_owner != session.id() {
        tracing::warn!("the ensemble created our node for another session than ours");
        session.end(LossReason::SessionLost);
        return Err(session_ended());
    }
    session.answered(sent, true);
    register(session, request, parent, child, token)
}

fn register(
    session: &Arc<Session>,
    request: &AcquireRequest,
    parent: Arc<str>,
    child: String,
    token: FencingToken,
) -> Result<Place> {
    let holder = holder::of(request, token);
    let created = session.clock().now();
    let Some(sequence) = Sequence::of(&child) else {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "the server gave a sequential node no number",
        )
        .on("zookeeper"));
    };
    let node = Node::new(
        request.owner,
        parent,
        child,
        sequence,
        token,
        holder,
        created,
    );
    session.ensemble().unbury(request.owner);
    session.nodes.add(&node);
    if let Some(reason) = session.ended() {
        // It ended in between and did not see this one.
        node.gone(reason);
        session.nodes.remove(&node);
    }
    Ok(Place {
        session: Arc::clone(session),
        node,
    })
}

pub(crate) fn token(czxid: i64) -> Result<FencingToken> {
    let too_old =
        "the server does not tell the transaction of a creation: ZooKeeper 3.6 or later is needed";
    match u64::try_from(czxid) {
        Ok(czxid) => FencingToken::new(czxid),
        Err(_) => Err(Error::new(ErrorKind::Unsupported, too_old).on("zookeeper")),
    }
}

/// The node of an attempt whose creation was not answered, and its token.
async fn find_one(
    session: &Arc<Session>,
    parent: &Arc<str>,
    prefix: &str,
    until: Moment,
) -> Result<Option<(String, FencingToken)>> {
    loop {
        session.connected(until).await?;
        let client = session.client()?;
        session.commit_ahead(&client);
        let listed = client.list_children(parent);
        let children = match session.answer(Access::Read, until, listed).await? {
            Ok(children) => children,
            Err(zk::Error::NoNode) => return Ok(None),
            Err(zk::Error::ConnectionLoss) => continue,
            Err(error) => return Err(meaning(error, Access::Read)),
        };
        let Some(child) = children.into_iter().find(|child| child.starts_with(prefix)) else {
            return Ok(None);
        };
        let path = format!("{parent}/{child}");
        match session
            .answer(Access::Read, until, client.check_stat(&path))
            .await?
        {
            Ok(Some(stat)) => return Ok(Some((child, token(stat.czxid)?))),
            Ok(None) | Err(zk::Error::ConnectionLoss) => {}
            Err(error) => return Err(meaning(error, Access::Read)),
        }
    }
}

/// Creates the container of a name. The servers remove it some time after its last child.
async fn make_container(session: &Arc<Session>, parent: &str, until: Moment) -> Result<()> {
    let client = session.client()?;
    let options = zk::CreateMode::Container.with_acls(session.acls());
    let created = client.create(parent, &[], &options);
    match session.answer(Access::Write, until, created).await? {
        Ok(_) | Err(zk::Error::NodeExists | zk::Error::ConnectionLoss) => Ok(()),
        // Somebody removed the whole tree: a new history begins.
        Err(zk::Error::NoNode) => {
            let made = history(&client, session.layout(), session.acls());
            match session.answer(Access::Write, until, made).await? {
                Ok(epoch) => session.set_epoch(epoch),
                Err(zk::Error::ConnectionLoss) => {}
                Err(error) => return Err(meaning(error, Access::Write)),
            }
            Ok(())
        }
        Err(error) => Err(meaning(error, Access::Write)),
    }
}

/// An attempt on its way.
struct Entering<'a> {
    session: &'a Arc<Session>,
    owner: OwnerId,
    /// What may have been created.
    attempt: Option<Attempt>,
    /// Nobody will ask again; otherwise a second chance is given.
    given_up: bool,
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        if self.session.ended().is_some() {
            return;
        }
        let (session, owner) = (Arc::clone(self.session), self.owner);
        let delay = if self.given_up {
            Duration::ZERO
        } else {
            SECOND_CHANCE
        };
        session.nodes.lose_track(owner, attempt);
        let task_session = Arc::clone(&session);
        session.spawn(async move {
            let session = task_session;
            session.clock().sleep(delay).await;
            clean_up(&session, owner).await;
        });
    }
}

/// Undoes a lost attempt that nobody took up again.
async fn clean_up(session: &Arc<Session>, owner: OwnerId) {
    let Some(attempt) = session.nodes.pick_up(owner) else {
        return;
    };
    while session.ended().is_none() {
        let until = session.clock().now() + Duration::from_secs(60);
        match undo(session, &attempt, until).await {
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%error, "cannot clean up after a lost attempt yet");
                session.clock().sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

struct Unfinished<'a> {
    session: &'a Arc<Session>,
    node: Option<&'a Arc<Node>>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.node {
            delete_at_length(self.session, Arc::clone(node));
        }
    }
}
