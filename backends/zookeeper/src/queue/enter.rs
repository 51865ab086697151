//! The queue's steps: line up, look who is ahead, leave.
//!
//! Creation and listing are sent together. The servers process one session's requests in order, so the listing shows the
//! new node and everybody before it, and an uncontended lock costs one round trip.
//!
//! A creation whose answer was lost is looked for by its attempt id before another one is made; one that nobody waits for
//! any more is looked for and deleted in the background, for as long as the session lives.

use std::sync::Arc;

use distlock_core::{AcquireRequest, Error, ErrorKind, FencingToken, LossReason, Moment, Result};
use uuid::Uuid;
use zookeeper_client as zk;

use super::{delete::delete_at_length, undo::Entering};
use crate::{
    error::{Access, closed, meaning, session_ended},
    names::contender,
    nodes::{
        Attempt, Node, Status, node_data,
        sequence::{Sequence, ahead_of},
        token,
    },
    session::{Sent, Session, tree::history},
};

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
    let data = node_data::write(request);
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
    let holder = node_data::of(request, token);
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
    session.context().ended_leases.unbury(request.owner);
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
