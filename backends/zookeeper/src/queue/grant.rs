//! Grants the lock to the first node of a queue.
//!
//! Invariant: no lease ends later than the moment until which the session is proven to live.

use std::{borrow::Cow, sync::Arc};

use distlock_core::{Attempt, Grant, Moment, Result, Ttl};

use super::list::{list_ahead, try_read_holder};
use crate::{
    error::entry_lost_error,
    nodes::{Node, NodeStatus, known_queues::ContainerWatch},
    session::Session,
};

/// The limit of listings in one attempt. The attempt lists the queue again when the contender in
/// the way is gone before its data was read.
const MAX_LISTINGS: u32 = 3;

/// Grants the lock to a node if every contender ahead is leaving or gone. Otherwise returns the
/// contender in the way. `ahead` are the children ahead of the node at the last listing.
pub(crate) async fn grant_if_first(
    session: &Arc<Session>,
    node: &Arc<Node>,
    ahead: &[String],
    asked_at: Moment,
    ttl: Ttl,
    until: Moment,
) -> Result<Attempt<Grant>> {
    let mut ahead = Cow::Borrowed(ahead);
    for listing in 1.. {
        let ours = session.nodes.find_own_nodes(&node.parent, &ahead);
        let in_the_way = ours
            .iter()
            .position(|node| !node.as_ref().is_some_and(|node| node.is_leaving_or_gone()));
        let Some(first) = in_the_way else {
            break;
        };
        let holder = match &ours[first] {
            Some(node) => Some(node.holder.clone()),
            None => try_read_holder(session, &node.parent, &ahead[first], until).await,
        };
        // The data of the contender in the way could not be read, so this contender is probably
        // gone since the listing, for example because it did not wait. The queue is listed again.
        if holder.is_some() || listing == MAX_LISTINGS {
            return Ok(Attempt::Busy(holder));
        }
        ahead = Cow::Owned(list_ahead(session, node, until).await?);
    }
    grant_or_extend(session, node, asked_at, ttl, until)
        .await
        .map(Attempt::Acquired)
}

/// Grants or extends the lock of a node that is first in its queue. The lease counts from
/// `asked_at`.
pub(crate) async fn grant_or_extend(
    session: &Arc<Session>,
    node: &Arc<Node>,
    asked_at: Moment,
    ttl: Ttl,
    until: Moment,
) -> Result<Grant> {
    // A proof that is up to a twelfth of the session timeout old is enough. Such a proof shortens
    // the lease by its age, but a new proof would cost a round trip.
    let trusted_until = session
        .ensure_trusted_for(ttl.duration(), asked_at - session.timeout() / 12, until)
        .await?;
    let valid_for = trusted_until
        .since(asked_at)
        .min(session.longest_lease())
        .min(ttl.duration());
    let expires = asked_at + valid_for;
    let was_held = node.status() == NodeStatus::Held;
    if !node.grant_until(expires) {
        return Err(entry_lost_error(node.loss_reason()));
    }
    session.nodes.note_lease_end(expires);
    if !was_held
        && session
            .known_queues
            .note_grant(node, session.connection_number())
    {
        watch_container(session, &node.parent);
    }
    let mut grant = Grant::new(node.token, session.epoch(), valid_for);
    grant.loss = node.loss_feed();
    Ok(grant)
}

/// Sets a watch on a container in the background, and stores the watch in the known queues. If the
/// request fails, the known queues record that the container has no watch.
fn watch_container(session: &Arc<Session>, parent: &Arc<str>) {
    let (task_session, parent) = (Arc::clone(session), Arc::clone(parent));
    session.spawn(async move {
        let session = task_session;
        let connection_number = session.connection_number();
        let set = async {
            let client = session.client().ok()?;
            session.context().requests.add(1);
            let (stat, watcher) = client.check_and_watch_stat(&parent).await.ok()?;
            Some(ContainerWatch {
                connection_number,
                container_czxid: stat?.czxid,
                changed: Box::pin(watcher.changed()),
            })
        };
        let watch = set.await;
        session.known_queues.set_watch(&parent, watch);
    });
}
