//! Reads queues with the contenders of all clients, and deletes nodes of other sessions.
//!
//! The reads of `inspect`, `list` and `force_release` follow a committed write, so they are never
//! older than the state that a quorum had committed when the operation began.

use std::sync::Arc;

use distlock_backend_kit::queue_entry::SHOWN_ENTRIES;
use distlock_core::{FencingToken, Forced, HolderInfo, Lease, LockInfo, LockName, Moment, Result};
use zookeeper_client as zk;

use super::list::{list_children, read_holder};
use crate::{
    error::{Access, translate},
    names::decode_lock_name,
    nodes::{
        node_data,
        sequence::{Sequence, sort_contenders},
        token_from_czxid,
    },
    session::Session,
};

/// The number of containers that are listed before the first answer is awaited.
const AT_ONCE: usize = 64;

/// Reads the holder and the waiters of a lock. The answer is as new as a committed write.
pub(crate) async fn inspect(
    session: &Arc<Session>,
    name: &LockName,
    until: Moment,
) -> Result<LockInfo> {
    inspect_with_waiters(session, name, SHOWN_ENTRIES, until).await
}

/// As [`inspect`], but reads the holder labels of at most `max_read` waiters.
async fn inspect_with_waiters(
    session: &Arc<Session>,
    name: &LockName,
    max_read: usize,
    until: Moment,
) -> Result<LockInfo> {
    let parent = session.layout().container_path(name);
    loop {
        session.wait_connected(until).await?;
        let client = session.client()?;
        session.send_barrier_write(&client);
        let listed = client.list_children(&parent);
        let children = match session.await_answer(Access::Read, until, listed).await? {
            Ok(children) => children,
            Err(zk::Error::NoNode) => Vec::new(),
            Err(zk::Error::NoAuth) => {
                return describe_unreadable(session, name, &parent, until).await;
            }
            Err(error) => return Err(translate(error, Access::Read)),
        };
        let contenders = sort_contenders(children);
        if let Some(mut info) = describe_queue(session, name, &parent, &contenders, until).await? {
            let waiting = contenders.iter().skip(1).take(max_read);
            let paths = waiting.map(|(_, child)| format!("{parent}/{child}"));
            info.queue = read_holders(session, &paths.collect::<Vec<_>>(), until).await?;
            return Ok(info);
        }
    }
}

/// Lists the held locks whose names start with `prefix` and come after `after`, sorted by name.
pub(crate) async fn list_held(
    session: &Arc<Session>,
    prefix: &str,
    after: Option<&LockName>,
    limit: u32,
    until: Moment,
) -> Result<Vec<LockInfo>> {
    session.wait_connected(until).await?;
    let client = session.client()?;
    let locks = &session.layout().locks;
    session.send_barrier_write(&client);
    let listed = client.list_children(locks);
    let children = match session.await_answer(Access::Read, until, listed).await? {
        Ok(children) => children,
        Err(zk::Error::NoNode) => Vec::new(),
        Err(error) => return Err(translate(error, Access::Read)),
    };
    let mut names: Vec<_> = children
        .iter()
        .filter_map(|child| decode_lock_name(child))
        .filter(|name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after))
        .collect();
    names.sort_unstable();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    for chunk in names.chunks(AT_ONCE) {
        if found.len() >= limit {
            break;
        }
        let parents: Vec<_> = chunk
            .iter()
            .map(|name| session.layout().container_path(name))
            .collect();
        // All requests are sent before the first answer is awaited.
        let requested: Vec<_> = parents
            .iter()
            .map(|parent| client.list_children(parent))
            .collect();
        let mut contended = Vec::new();
        for ((name, parent), answer) in chunk.iter().zip(&parents).zip(requested) {
            match session.await_answer(Access::Read, until, answer).await? {
                Ok(children) if children.is_empty() => {}
                Ok(children) => contended.push((name, parent, Some(children))),
                Err(zk::Error::NoNode) => {}
                Err(zk::Error::NoAuth) => contended.push((name, parent, None)),
                Err(error) => return Err(translate(error, Access::Read)),
            }
        }
        for (name, parent, children) in contended {
            if found.len() >= limit {
                break;
            }
            let first = match children {
                Some(children) => {
                    let contenders = sort_contenders(children);
                    describe_queue(session, name, parent, &contenders, until).await?
                }
                None => Some(describe_unreadable(session, name, parent, until).await?),
            };
            let info = match first {
                Some(info) => info,
                // The first contender is gone since the listing, so its queue is listed again.
                None => inspect_with_waiters(session, name, 0, until).await?,
            };
            if info.held.is_some() {
                found.push(info);
            }
        }
    }
    Ok(found)
}

/// Deletes the first node of a queue if its token is the expected one.
pub(crate) async fn force_release(
    session: &Arc<Session>,
    name: &LockName,
    expected: FencingToken,
    until: Moment,
) -> Result<Forced> {
    let parent = session.layout().container_path(name);
    loop {
        let Some(child) = read_first_contender(session, &parent, until).await? else {
            return Ok(Forced::NotHeld);
        };
        let path = format!("{parent}/{child}");
        let Some(holder) = read_holder(session, &path, until).await? else {
            continue;
        };
        match holder.token {
            Some(token) if token == expected => {}
            Some(token) => return Ok(Forced::OtherToken(token)),
            None => continue,
        }
        let client = session.client()?;
        match session
            .await_answer(Access::Write, until, client.delete(&path, None))
            .await?
        {
            Ok(()) => return Ok(Forced::Released),
            // The node is gone since it was read, and the lock may have a new holder. So the queue
            // is read again.
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(translate(error, Access::Write)),
        }
    }
}

/// Finds an owner's node in the queue of a lease and deletes it, even if the node belongs to
/// another session. `true` = this call deleted a node.
pub(crate) async fn delete_node_of_owner(
    session: &Arc<Session>,
    lease: &Lease,
    until: Moment,
) -> Result<bool> {
    let parent = session.layout().container_path(&lease.name);
    for child in list_children(session, &parent, until).await? {
        let path = format!("{parent}/{child}");
        session.wait_connected(until).await?;
        let client = session.client()?;
        let (data, stat) = match session
            .await_answer(Access::Read, until, client.get_data(&path))
            .await?
        {
            Ok(found) => found,
            // The node is gone, or another client made it with other credentials. In the second
            // case the node is not the owner's, because these credentials may read a node of this
            // owner.
            Err(zk::Error::NoNode | zk::Error::NoAuth) => continue,
            Err(error) => return Err(translate(error, Access::Read)),
        };
        let is_it = node_data::is_owned_by(&data, lease.owner);
        let token = token_from_czxid(stat.czxid)?;
        if !is_it || lease.token.is_some_and(|expected| expected != token) {
            continue;
        }
        return match session
            .await_answer(Access::Write, until, client.delete(&path, None))
            .await?
        {
            Ok(()) => Ok(true),
            Err(zk::Error::NoNode) => Ok(false),
            Err(error) => Err(translate(error, Access::Write)),
        };
    }
    Ok(false)
}

/// Returns the first child of a queue, read after a committed write; `None` = the queue is empty.
async fn read_first_contender(
    session: &Arc<Session>,
    parent: &str,
    until: Moment,
) -> Result<Option<String>> {
    session.wait_connected(until).await?;
    let client = session.client()?;
    session.send_barrier_write(&client);
    let children = list_children(session, parent, until).await?;
    Ok(sort_contenders(children)
        .into_iter()
        .next()
        .map(|(_, child)| child))
}

/// Describes a queue from its list of contenders. Reads the data of the first contender; returns
/// `None` when that contender is gone since the listing.
async fn describe_queue(
    session: &Arc<Session>,
    name: &LockName,
    parent: &str,
    contenders: &[(Sequence, String)],
    until: Moment,
) -> Result<Option<LockInfo>> {
    let waiters = u32::try_from(contenders.len().saturating_sub(1)).unwrap_or(u32::MAX);
    let mut info = match contenders.first() {
        None => LockInfo::free(name.clone()),
        Some((_, child)) => {
            let path = format!("{parent}/{child}");
            let Some(holder) = read_holder(session, &path, until).await? else {
                return Ok(None);
            };
            LockInfo::held(name.clone(), holder)
        }
    };
    info.waiters = Some(waiters);
    info.epoch = Some(session.epoch());
    Ok(Some(info))
}

/// Describes a queue whose nodes these credentials may not read. Every client may read the number
/// of children, so the answer is made from that number.
async fn describe_unreadable(
    session: &Arc<Session>,
    name: &LockName,
    parent: &str,
    until: Moment,
) -> Result<LockInfo> {
    let client = session.client()?;
    let stat = client.check_stat(parent);
    let stat = session.await_answer(Access::Read, until, stat).await?;
    let stat = stat.map_err(|error| translate(error, Access::Read).about(name))?;
    let children = stat.map_or(0, |stat| u32::try_from(stat.num_children).unwrap_or(0));
    let mut info = if children == 0 {
        LockInfo::free(name.clone())
    } else {
        LockInfo::held(name.clone(), node_data::unreadable_holder())
    };
    info.waiters = Some(children.saturating_sub(1));
    info.epoch = Some(session.epoch());
    Ok(info)
}

/// Reads the holder labels of the waiters at these paths, and leaves out nodes that are gone. The
/// answers have no tokens, because a waiter has no grant.
async fn read_holders(
    session: &Arc<Session>,
    paths: &[String],
    until: Moment,
) -> Result<Vec<HolderInfo>> {
    let client = session.client()?;
    // All requests are sent before the first answer is awaited.
    let requested: Vec<_> = paths.iter().map(|path| client.get_data(path)).collect();
    let mut holders = Vec::with_capacity(requested.len());
    for answer in requested {
        match session.await_answer(Access::Read, until, answer).await? {
            Ok((data, stat)) => {
                let mut holder = node_data::parse_holder(&data, token_from_czxid(stat.czxid)?);
                holder.token = None;
                holders.push(holder);
            }
            Err(zk::Error::NoNode) => {}
            Err(zk::Error::NoAuth) => holders.push(node_data::unreadable_holder()),
            Err(error) => return Err(translate(error, Access::Read)),
        }
    }
    Ok(holders)
}
