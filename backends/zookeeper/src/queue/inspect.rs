//! Reads queues of all clients, and removes entries by force.
//!
//! The reads of `inspect`, `list` and `force_release` follow a committed write, so they are never
//! older than the state that a quorum had committed when the operation began.

use std::sync::Arc;

use distlock_core::{FencingToken, Forced, HolderInfo, Lease, LockInfo, LockName, Moment, Result};
use zookeeper_client as zk;

use super::{holder::read_holder, list::list_children};
use crate::{
    error::{Access, translate},
    names::lock_name,
    nodes::{
        node_data,
        sequence::{Sequence, in_order},
        token,
    },
    session::Session,
};

/// How many containers are listed in one go.
const AT_ONCE: usize = 64;

/// How many waiters are named.
const MAX_NAMED: usize = 16;

/// Reads the holder and the waiters of a lock, as the leader knows them.
pub(crate) async fn inspect(
    session: &Arc<Session>,
    name: &LockName,
    until: Moment,
) -> Result<LockInfo> {
    inspect_naming(session, name, MAX_NAMED, until).await
}

/// As [`inspect`], but names at most `named` waiters.
async fn inspect_naming(
    session: &Arc<Session>,
    name: &LockName,
    named: usize,
    until: Moment,
) -> Result<LockInfo> {
    let parent = session.layout().container(name);
    loop {
        session.wait_connected(until).await?;
        let client = session.client()?;
        session.barrier_write(&client);
        let listed = client.list_children(&parent);
        let children = match session.answer(Access::Read, until, listed).await? {
            Ok(children) => children,
            Err(zk::Error::NoNode) => Vec::new(),
            Err(zk::Error::NoAuth) => {
                return describe_unreadable(session, name, &parent, until).await;
            }
            Err(error) => return Err(translate(error, Access::Read)),
        };
        let contenders = in_order(children);
        if let Some(mut info) = describe_queue(session, name, &parent, &contenders, until).await? {
            let waiting = contenders.iter().skip(1).take(named);
            let paths = waiting.map(|(_, child)| format!("{parent}/{child}"));
            info.queue = read_holders(session, &paths.collect::<Vec<_>>(), until).await?;
            return Ok(info);
        }
    }
}

/// The held locks, sorted by name.
pub(crate) async fn list(
    session: &Arc<Session>,
    prefix: &str,
    after: Option<&LockName>,
    limit: u32,
    until: Moment,
) -> Result<Vec<LockInfo>> {
    session.wait_connected(until).await?;
    let client = session.client()?;
    let locks = &session.layout().locks;
    session.barrier_write(&client);
    let listed = client.list_children(locks);
    let children = match session.answer(Access::Read, until, listed).await? {
        Ok(children) => children,
        Err(zk::Error::NoNode) => Vec::new(),
        Err(error) => return Err(translate(error, Access::Read)),
    };
    let mut names: Vec<_> = children
        .iter()
        .filter_map(|child| lock_name(child))
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
            .map(|name| session.layout().container(name))
            .collect();
        // All are on their way before the first is waited for.
        let asked: Vec<_> = parents
            .iter()
            .map(|parent| client.list_children(parent))
            .collect();
        let mut contended = Vec::new();
        for ((name, parent), asked) in chunk.iter().zip(&parents).zip(asked) {
            match session.answer(Access::Read, until, asked).await? {
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
                    let contenders = in_order(children);
                    describe_queue(session, name, parent, &contenders, until).await?
                }
                None => Some(describe_unreadable(session, name, parent, until).await?),
            };
            let info = match first {
                Some(info) => info,
                // The first contender has gone in between.
                None => inspect_naming(session, name, 0, until).await?,
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
    let parent = session.layout().container(name);
    loop {
        let Some(child) = first_child(session, &parent, until).await? else {
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
            .answer(Access::Write, until, client.delete(&path, None))
            .await?
        {
            Ok(()) => return Ok(Forced::Released),
            // Released just before, so the lock may have a new holder: look again.
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(translate(error, Access::Write)),
        }
    }
}

/// Deletes an owner's node that belongs to another session. `true` = there was one.
pub(crate) async fn delete_of_owner(
    session: &Arc<Session>,
    lease: &Lease,
    until: Moment,
) -> Result<bool> {
    let parent = session.layout().container(&lease.name);
    for child in list_children(session, &parent, until).await? {
        let path = format!("{parent}/{child}");
        session.wait_connected(until).await?;
        let client = session.client()?;
        let (data, stat) = match session
            .answer(Access::Read, until, client.get_data(&path))
            .await?
        {
            Ok(found) => found,
            // Gone, or made with other credentials. A node of this owner may be read.
            Err(zk::Error::NoNode | zk::Error::NoAuth) => continue,
            Err(error) => return Err(translate(error, Access::Read)),
        };
        let is_it = node_data::is_owned_by(&data, lease.owner);
        let token = token(stat.czxid)?;
        if !is_it || lease.token.is_some_and(|expected| expected != token) {
            continue;
        }
        return match session
            .answer(Access::Write, until, client.delete(&path, None))
            .await?
        {
            Ok(()) => Ok(true),
            Err(zk::Error::NoNode) => Ok(false),
            Err(error) => Err(translate(error, Access::Write)),
        };
    }
    Ok(false)
}

async fn first_child(
    session: &Arc<Session>,
    parent: &str,
    until: Moment,
) -> Result<Option<String>> {
    session.wait_connected(until).await?;
    let client = session.client()?;
    session.barrier_write(&client);
    let children = list_children(session, parent, until).await?;
    Ok(in_order(children)
        .into_iter()
        .next()
        .map(|(_, child)| child))
}

/// Describes a queue from its contenders; `None` when the first of them has gone in between.
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

/// Describes a queue that these credentials may not read: everybody may know how many children it
/// has.
async fn describe_unreadable(
    session: &Arc<Session>,
    name: &LockName,
    parent: &str,
    until: Moment,
) -> Result<LockInfo> {
    let client = session.client()?;
    let stat = client.check_stat(parent);
    let stat = session.answer(Access::Read, until, stat).await?;
    let stat = stat.map_err(|error| translate(error, Access::Read).about(name))?;
    let children = stat.map_or(0, |stat| u32::try_from(stat.num_children).unwrap_or(0));
    let mut info = if children == 0 {
        LockInfo::free(name.clone())
    } else {
        LockInfo::held(name.clone(), node_data::unreadable())
    };
    info.waiters = Some(children.saturating_sub(1));
    info.epoch = Some(session.epoch());
    Ok(info)
}

/// The holders of these nodes, without the nodes that have gone in between. Nothing has been
/// granted to them.
async fn read_holders(
    session: &Arc<Session>,
    paths: &[String],
    until: Moment,
) -> Result<Vec<HolderInfo>> {
    let client = session.client()?;
    // All are on their way before the first is waited for.
    let asked: Vec<_> = paths.iter().map(|path| client.get_data(path)).collect();
    let mut holders = Vec::with_capacity(asked.len());
    for asked in asked {
        match session.answer(Access::Read, until, asked).await? {
            Ok((data, stat)) => {
                let mut holder = node_data::parse(&data, token(stat.czxid)?);
                holder.token = None;
                holders.push(holder);
            }
            Err(zk::Error::NoNode) => {}
            Err(zk::Error::NoAuth) => holders.push(node_data::unreadable()),
            Err(error) => return Err(translate(error, Access::Read)),
        }
    }
    Ok(holders)
}
