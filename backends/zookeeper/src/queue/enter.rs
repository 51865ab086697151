//! Enters a queue: creates the node of a contender.
//!
//! The creation of the node and the listing of the queue are sent together. The servers process the
//! requests of one session in order, so the listing shows the new node and every node before it,
//! and an uncontended lock costs one round trip.
//!
//! Invariant: one attempt has at most one node. When the answer to a creation was lost, the attempt
//! looks for a node with its id before it sends another creation. If the caller's future was
//! dropped, or is kept and not polled, a task in the background looks for that node and deletes it,
//! as long as the session lives.

use std::sync::Arc;

use distlock_core::{AcquireRequest, Error, ErrorKind, FencingToken, LossReason, Moment, Result};
use uuid::Uuid;
use zookeeper_client as zk;

use super::{delete::delete_in_background, undo::PendingEntry};
use crate::{
    error::{Access, closed_error, session_ended_error, translate},
    names::contender_prefix,
    nodes::{
        Node, NodeStatus, UnknownCreation, node_data,
        sequence::{Sequence, contenders_ahead_of},
        token_from_czxid,
    },
    session::{RequestStart, Session, tree::read_or_create_epoch},
};

/// A contender's entry in a queue. Dropping the entry deletes its node if the node still waits.
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

/// The contenders ahead of a new entry, if they are known when the entry is made.
#[derive(Debug)]
pub(crate) enum KnownAhead {
    /// Not known, because the queue was not listed. The caller has to list the queue.
    Unknown,
    /// These children are ahead, in order of arrival.
    Children(Vec<String>),
    /// Only these nodes of this session can be ahead.
    OwnNodes(Vec<Arc<Node>>),
}

/// Enters the queue of a request's lock: creates a node, or finds the node of an earlier attempt of
/// the same owner.
pub(crate) async fn enter_queue(
    session: &Arc<Session>,
    request: &AcquireRequest,
    until: Moment,
) -> Result<(QueueEntry, KnownAhead)> {
    if session.nodes.is_closing() {
        return Err(closed_error());
    }
    let earlier = session.nodes.take_unknown(request.owner);
    let mut look_first = earlier.is_some();
    let attempt = EntryAttempt::new(session, request, earlier);
    let mut pending = PendingEntry::new(session, request.owner);
    if look_first {
        pending.note_creation(&attempt.creation, until);
    }
    loop {
        if let Err(error) = session.wait_connected(until).await {
            pending.given_up = false;
            return Err(error);
        }
        if std::mem::take(&mut look_first)
            && let Some((child, token)) = attempt.find_created(until).await?
        {
            pending.settle()?;
            let entry = attempt.register(child, token)?;
            return Ok((entry, KnownAhead::Unknown));
        }
        match attempt.create(&mut pending, until).await? {
            CreateOutcome::Entered(entry, known) => return Ok((entry, known)),
            CreateOutcome::NoContainer => {
                create_container(session, &attempt.creation.parent, until).await?;
            }
            CreateOutcome::ConnectionLost => look_first = true,
        }
    }
}

/// One attempt to enter a queue.
struct EntryAttempt<'a> {
    session: &'a Arc<Session>,
    request: &'a AcquireRequest,
    creation: UnknownCreation,
    /// The start of the node's name; the server appends a number.
    prefix: String,
}

/// The result of a creation that was sent.
enum CreateOutcome {
    Entered(QueueEntry, KnownAhead),
    /// The queue's container does not exist, so no node was created.
    NoContainer,
    /// The connection was lost before the answer came, so the node may exist.
    ConnectionLost,
}

impl<'a> EntryAttempt<'a> {
    /// Creates a new attempt, or resumes an `earlier` attempt whose outcome is unknown.
    fn new(
        session: &'a Arc<Session>,
        request: &'a AcquireRequest,
        earlier: Option<UnknownCreation>,
    ) -> Self {
        let creation = earlier.unwrap_or_else(|| UnknownCreation {
            id: Uuid::new_v4(),
            parent: session.layout().container_path(&request.name),
        });
        Self {
            session,
            request,
            prefix: contender_prefix(creation.id, session.id()),
            creation,
        }
    }

    /// Sends the creation, together with a listing if one is probably needed, and awaits the
    /// answers.
    async fn create(&self, pending: &mut PendingEntry<'_>, until: Moment) -> Result<CreateOutcome> {
        let session = self.session;
        let parent = &self.creation.parent;
        let path = format!("{parent}/{}", self.prefix);
        let data = node_data::encode(self.request);
        let options = zk::CreateMode::EphemeralSequential.with_acls(session.acls());
        let client = session.client()?;
        let sent = session.request_start();
        // From here on the creation may be in flight, even if this future is dropped, or kept and
        // not polled.
        pending.note_creation(&self.creation, until);
        let skip_listing = session
            .known_queues
            .probably_needs_no_listing(parent, sent.connection_number);
        // Both requests are sent before an answer is awaited.
        let created = client.create(&path, &data, &options);
        let listed = (!skip_listing).then(|| client.list_children(parent));
        let created = match session.await_answer(Access::Write, until, created).await {
            Ok(created) => created,
            Err(error) => {
                pending.given_up = false;
                return Err(error);
            }
        };
        match created {
            Ok((stat, sequence)) => {
                let child = format!("{}{sequence}", self.prefix);
                pending.settle()?;
                let entry = self.check_and_register(&stat, sent, child)?;
                let number = sent.connection_number;
                let known = known_ahead(session, &entry, number, listed, until).await?;
                Ok(CreateOutcome::Entered(entry, known))
            }
            Err(zk::Error::NoNode) => {
                pending.settle()?;
                Ok(CreateOutcome::NoContainer)
            }
            Err(zk::Error::ConnectionLoss) => Ok(CreateOutcome::ConnectionLost),
            // If the creation made a node, the servers remove that node with the session.
            Err(zk::Error::SessionExpired | zk::Error::ClientClosed) => {
                pending.settle()?;
                Err(session_ended_error())
            }
            Err(error) => {
                let error = translate(error, Access::Write);
                if error.did_not_happen() {
                    pending.settle()?;
                } else {
                    pending.given_up = false;
                }
                Err(error)
            }
        }
    }

    /// Checks that a new node belongs to this session, and registers it.
    fn check_and_register(
        &self,
        stat: &zk::Stat,
        sent: RequestStart,
        child: String,
    ) -> Result<QueueEntry> {
        let token = token_from_czxid(stat.czxid)?;
        if stat.ephemeral_owner != self.session.id() {
            tracing::warn!("the ensemble created our node for another session than ours");
            self.session.end(LossReason::SessionLost);
            return Err(session_ended_error());
        }
        self.session.note_answer(sent, true);
        self.register(child, token)
    }

    /// Adds a node that exists at the ensemble to the nodes of this session.
    fn register(&self, child: String, token: FencingToken) -> Result<QueueEntry> {
        let (session, request) = (self.session, self.request);
        let holder = node_data::holder_info(request, token);
        let created = session.clock().now();
        let Some(sequence) = Sequence::parse(&child) else {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "the server gave a sequential node no number",
            )
            .on("zookeeper"));
        };
        let node = Node::new(
            request.owner,
            Arc::clone(&self.creation.parent),
            child,
            sequence,
            token,
            holder,
            created,
        );
        session.context().ended_leases.forget(request.owner);
        session.nodes.add(&node);
        if let Some(reason) = session.end_reason() {
            // The session ended between the answer and `add`, so its end did not mark this node as
            // gone.
            node.mark_gone(reason);
            session.nodes.remove(&node);
        }
        Ok(QueueEntry {
            session: Arc::clone(session),
            node,
        })
    }

    /// Finds the node of this attempt after the answer to its creation was lost. Returns the node's
    /// name and token.
    async fn find_created(&self, until: Moment) -> Result<Option<(String, FencingToken)>> {
        let (session, parent) = (self.session, &self.creation.parent);
        loop {
            session.wait_connected(until).await?;
            let client = session.client()?;
            session.send_barrier_write(&client);
            let listed = client.list_children(parent);
            let children = match session.await_answer(Access::Read, until, listed).await? {
                Ok(children) => children,
                Err(zk::Error::NoNode) => return Ok(None),
                Err(zk::Error::ConnectionLoss) => continue,
                Err(error) => return Err(translate(error, Access::Read)),
            };
            let mut children = children.into_iter();
            let Some(child) = children.find(|child| child.starts_with(&self.prefix)) else {
                return Ok(None);
            };
            let path = format!("{parent}/{child}");
            let stat = client.check_stat(&path);
            match session.await_answer(Access::Read, until, stat).await? {
                Ok(Some(stat)) => return Ok(Some((child, token_from_czxid(stat.czxid)?))),
                Ok(None) | Err(zk::Error::ConnectionLoss) => {}
                Err(error) => return Err(translate(error, Access::Read)),
            }
        }
    }
}

/// Returns the contenders ahead of a new entry, if the known queue or a listing shows them.
///
/// The creation and the listing were sent together, on the connection `connection_number`. If
/// `listing` is `None`, no listing was sent.
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
    let listed = session.await_answer(Access::Read, until, listing).await?;
    let ahead = listed
        .ok()
        .and_then(|all| contenders_ahead_of(&entry.node.child, all));
    Ok(ahead.map_or(KnownAhead::Unknown, KnownAhead::Children))
}

/// Creates the container of a name. The servers remove a container some time after its last child
/// is gone.
async fn create_container(session: &Arc<Session>, parent: &str, until: Moment) -> Result<()> {
    let client = session.client()?;
    let options = zk::CreateMode::Container.with_acls(session.acls());
    let created = client.create(parent, &[], &options);
    match session.await_answer(Access::Write, until, created).await? {
        Ok(_) | Err(zk::Error::NodeExists | zk::Error::ConnectionLoss) => Ok(()),
        // The tree was removed by another client, so a new epoch begins.
        Err(zk::Error::NoNode) => {
            let made = read_or_create_epoch(&client, session.layout(), session.acls());
            match session.await_answer(Access::Write, until, made).await? {
                Ok(epoch) => session.set_epoch(epoch),
                Err(zk::Error::ConnectionLoss) => {}
                Err(error) => return Err(translate(error, Access::Write)),
            }
            Ok(())
        }
        Err(error) => Err(translate(error, Access::Write)),
    }
}
