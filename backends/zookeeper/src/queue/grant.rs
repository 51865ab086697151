//! Grants the lock to the first node of a queue.
//!
//! Invariant: a lease never outlives the proof that the session is alive.

use std::{borrow::Cow, sync::Arc};

use distlock_core::{Attempt, Grant, LossReason, Moment, Result, Ttl};

use super::{container_watch::watch_container, holder::try_read_holder, list};
use crate::{
    error::{entry_removed, session_ended},
    nodes::{Node, NodeStatus},
    session::Session,
};

/// How often one attempt lists the queue, when the contenders ahead go before they can be read.
const LOOKS: u32 = 3;

/// Grants the lock if every contender ahead has let go.
pub(crate) async fn decide(
    session: &Arc<Session>,
    node: &Arc<Node>,
    ahead: &[String],
    asked: Moment,
    ttl: Ttl,
    until: Moment,
) -> Result<Attempt<Grant>> {
    let mut ahead = Cow::Borrowed(ahead);
    for look in 1.. {
        let ours = session.nodes.own_children(&node.parent, &ahead);
        let in_the_way = ours
            .iter()
            .position(|node| !node.as_ref().is_some_and(|node| node.has_let_go()));
        let Some(first) = in_the_way else {
            break;
        };
        let holder = match &ours[first] {
            Some(node) => Some(node.holder.clone()),
            None => try_read_holder(session, &node.parent, &ahead[first], until).await,
        };
        // A contender that has gone in between was not in the way: it may only have tried, as this
        // one does.
        if holder.is_some() || look == LOOKS {
            return Ok(Attempt::Busy(holder));
        }
        ahead = Cow::Owned(list::list_ahead(session, node, until).await?);
    }
    grant(session, node, asked, ttl, until)
        .await
        .map(Attempt::Acquired)
}

/// Grants or extends the lock of a node that is first in its queue. The lease counts from `asked`.
pub(crate) async fn grant(
    session: &Arc<Session>,
    node: &Arc<Node>,
    asked: Moment,
    ttl: Ttl,
    until: Moment,
) -> Result<Grant> {
    // A slightly old proof costs a small part of the lease; a new proof costs a round trip.
    let trusted_until = session
        .trusted_for(ttl.duration(), asked - session.timeout() / 12, until)
        .await?;
    let valid_for = trusted_until
        .since(asked)
        .min(session.longest_lease())
        .min(ttl.duration());
    let expires = asked + valid_for;
    let was_held = node.status() == NodeStatus::Held;
    if !node.grant_until(expires) {
        return Err(match node.status() {
            NodeStatus::Gone(LossReason::SessionLost) => session_ended(),
            _ => entry_removed(),
        });
    }
    session.nodes.note_lease_end(expires);
    if !was_held
        && session
            .known_queues
            .granted(node, session.connection_number())
    {
        watch_container(session, &node.parent);
    }
    let mut grant = Grant::new(node.token, session.epoch(), valid_for);
    grant.loss = node.loss();
    Ok(grant)
}
