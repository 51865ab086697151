//! Enters a queue: creates the node of a contender.
//!
//! Creation and listing are sent together. The servers process the requests of one session in
//! order, so the listing shows the new node and every node before it, and an uncontended lock costs
//! one round trip.
//!
//! Invariant: one attempt has at most one node. A creation whose answer was lost is looked for by
//! its attempt id before another one is sent. If its caller has gone, it is looked for and deleted
//! in the background, for as long as the session lives.

use std::sync::Arc;

use distlock_core::{AcquireRequest, Error, ErrorKind, FencingToken, LossReason, Moment, Result};
use uuid::Uuid;
use zookeeper_client as zk;

use super::{delete::delete_in_background, undo::PendingEntry};
use crate::{
    error::{Access, closed, session_ended, translate},
    names::contender,
    nodes::{
        Node, NodeStatus, UnknownCreation, node_data,
        sequence::{Sequence, ahead_of},
        token,
    },
    session::{RequestStart, Session, tree::read_epoch},
};

/// A contender's entry in a queue. Dropping it while it waits deletes its node.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    pub(crate) session: Arc<Session>,
    pub(crate) node: Arc<Node>,
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        if self.node.status() == NodeStatus::Waiting && self.node.start_leaving() {
            delete_in_background(&self.session, Arc::clone(&self.node));
        }
    }
}

/// The knowledge about contenders ahead of a new entry.
#[derive(Debug)]
pub(crate) enum KnownAhead {
    /// None: the listing was not sent or not answered, so list them.
    Unknown,
    /// These children are ahead, in order of arrival.
    Children(Vec<String>),
    /// Only these nodes of this session can be ahead.
    OwnNodes(Vec<Arc<Node>>),
}

/// Enters the queue of a request's lock.
pub(crate) async fn enter(
    session: &Arc<Session>,
    request: &AcquireRequest,
    until: Moment,
) -> Result<(QueueEntry, KnownAhead)> {
    if session.nodes.is_closing() {
        return Err(closed());
    }
    let earlier = session.nodes.take_unknown(request.owner);
    let mut look_first = earlier.is_some();
    let creation = earlier.unwrap_or_else(|| UnknownCreation {
        id: Uuid::new_v4(),
        parent: session.layout().container(&request.name),
    });
    let prefix = contender(creation.id, session.id());
    let path = format!("{}/{prefix}", creation.parent);
    let parent = Arc::clone(&creation.parent);
    let data = node_data::encode(request);
    let options = zk::CreateMode::EphemeralSequential.with_acls(session.acls());
    let mut pending = PendingEntry {
        session,
        owner: request.owner,
        creation: look_first.then(|| creation.clone()),
        given_up: true,
    };
    loop {
        if let Err(error) = session.wait_connected(until).await {
            pending.given_up = false;
            return Err(error);
        }
        if std::mem::take(&mut look_first)
            && let Some((child, token)) = find_created(session, &parent, &prefix, until).await?
        {
            pending.creation = None;
            let entry = register(session, request, parent, child, token)?;
            return Ok((entry, KnownAhead::Unknown));
        }
        let client = session.client()?;
        let sent = session.request_start();
        // From here on the creation may be in flight, also when this future is dropped.
        pending.creation = Some(creation.clone());
        let likely = session
            .known_queues
            .can_skip_listing(&parent, sent.connection_number);
        let (created, listed) = session.send(|| {
            let created = client.create(&path, &data, &options);
            let listed = (!likely).then(|| client.list_children(&parent));
            (created, listed)
        });
        let created = match session.answer(Access::Write, until, created).await {
            Ok(created) => created,
            Err(error) => {
                pending.given_up = false;
                return Err(error);
            }
        };
        match created {
            Ok((stat, sequence)) => {
                let child = format!("{prefix}{sequence}");
                let entry =
                    check_and_register(session, request, &stat, sent, Arc::clone(&parent), child)?;
                pending.creation = None;
                let number = sent.connection_number;
                let known = known_ahead(session, &entry, number, listed, until).await?;
                return Ok((entry, known));
            }
            Err(zk::Error::NoNode) => {
                pending.creation = None;
                create_container(session, &parent, until).await?;
            }
            Err(zk::Error::ConnectionLoss) => look_first = true,
            // A node that it created vanishes with the session.
            Err(zk::Error::SessionExpired | zk::Error::ClientClosed) => {
                pending.creation = None;
                return Err(session_ended());
            }
            Err(error) => {
                let error = translate(error, Access::Write);
                if error.did_not_happen() {
                    pending.creation = None;
                } else {
                    pending.given_up = false;
                }
                return Err(error);
            }
        }
    }
}

/// The contenders ahead of a new entry, as far as the known queue or the listing shows them.
///
/// The listing was sent together with the creation, on the connection of that number.
async fn known_ahead(
    session: &Arc<Session>,
    entry: &QueueEntry,
    connection_number: u64,
    listing: Option<impl Future<Output = Result<Vec<String>, zk::Error>>>,
    until: Moment,
) -> Result<KnownAhead> {
    let known = session
        .known_queues
        .add_created(&entry.node, connection_number);
    if let Some(own) = known {
        return Ok(KnownAhead::OwnNodes(own));
    }
    let Some(listing) = listing else {
        return Ok(KnownAhead::Unknown);
    };
    let listed = session.answer(Access::Read, until, listing).await?;
    let ahead = listed.ok().and_then(|all| ahead_of(&entry.node.child, all));
    Ok(ahead.map_or(KnownAhead::Unknown, KnownAhead::Children))
}

/// Checks that a new node belongs to this session, and registers it.
fn check_and_register(
    session: &Arc<Session>,
    request: &AcquireRequest,
    stat: &zk::Stat,
    sent: RequestStart,
    parent: Arc<str>,
    child: String,
) -> Result<QueueEntry> {
    let token = token(stat.czxid)?;
    if stat.ephemeral_owner != session.id() {
        tracing::warn!("the ensemble created our node for another session than ours");
        session.end(LossReason::SessionLost);
        return Err(session_ended());
    }
    session.note_answer(sent, true);
    register(session, request, parent, child, token)
}

fn register(
    session: &Arc<Session>,
    request: &AcquireRequest,
    parent: Arc<str>,
    child: String,
    token: FencingToken,
) -> Result<QueueEntry> {
    let holder = node_data::holder_info(request, token);
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
    session.context().ended_leases.forget(request.owner);
    session.nodes.add(&node);
    if let Some(reason) = session.ended() {
        // The session ended between the answer and `add`, so its end did not see this node.
        node.mark_gone(reason);
        session.nodes.remove(&node);
    }
    Ok(QueueEntry {
        session: Arc::clone(session),
        node,
    })
}

/// Finds the node of an attempt whose creation was not answered, and its token.
async fn find_created(
    session: &Arc<Session>,
    parent: &Arc<str>,
    prefix: &str,
    until: Moment,
) -> Result<Option<(String, FencingToken)>> {
    loop {
        session.wait_connected(until).await?;
        let client = session.client()?;
        session.barrier_write(&client);
        let listed = client.list_children(parent);
        let children = match session.answer(Access::Read, until, listed).await? {
            Ok(children) => children,
            Err(zk::Error::NoNode) => return Ok(None),
            Err(zk::Error::ConnectionLoss) => continue,
            Err(error) => return Err(translate(error, Access::Read)),
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
            Err(error) => return Err(translate(error, Access::Read)),
        }
    }
}

/// Creates the container of a name. The servers remove it some time after its last child has gone.
async fn create_container(session: &Arc<Session>, parent: &str, until: Moment) -> Result<()> {
    let client = session.client()?;
    let options = zk::CreateMode::Container.with_acls(session.acls());
    let created = client.create(parent, &[], &options);
    match session.answer(Access::Write, until, created).await? {
        Ok(_) | Err(zk::Error::NodeExists | zk::Error::ConnectionLoss) => Ok(()),
        // The whole tree was removed, so a new history begins.
        Err(zk::Error::NoNode) => {
            let made = read_epoch(&client, session.layout(), session.acls());
            match session.answer(Access::Write, until, made).await? {
                Ok(epoch) => session.set_epoch(epoch),
                Err(zk::Error::ConnectionLoss) => {}
                Err(error) => return Err(translate(error, Access::Write)),
            }
            Ok(())
        }
        Err(error) => Err(translate(error, Access::Write)),
    }
}
