//! Locks. Each held lock is one key.
//!
//! Every change of a lock is one script, in which the check and the change are atomic. A read
//! (`inspect`, `list`) needs no script, and its answer may be outdated when it returns.

use std::{collections::BTreeSet, future::Future, sync::Arc};

use async_trait::async_trait;
use distlock_backend_kit::{
    OpenFlag,
    operation::{Answer, Operation},
};
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, Error, ErrorKind, Fairness,
    FencingToken, Forced, Grant, HandOver, Health, Lease, LockInfo, LockName, ReleaseOutcome,
    Renewal, Renewed, Result, Wakeup,
};
use redis::Value;

use crate::{
    doctor,
    error::BACKEND,
    format::{keys::Target, value},
    routing::{Call, Response},
    store::Store,
    wait::{self, RedisContender},
};

/// The number of keys that one step of a scan examines on the server.
const SCAN_COUNT: u32 = 1000;

/// The locks of a Redis store.
#[derive(Debug)]
pub(crate) struct RedisLock {
    store: Arc<Store>,
    capabilities: Capabilities,
    open: OpenFlag,
}

impl RedisLock {
    pub(crate) fn new(store: Arc<Store>, capabilities: Capabilities) -> Self {
        Self {
            store,
            capabilities,
            open: OpenFlag::default(),
        }
    }

    fn open(&self) -> Result<&Arc<Store>> {
        self.open.check(BACKEND)?;
        Ok(&self.store)
    }

    fn submit<'a>(
        &'a self,
        name: &'a LockName,
        operation: Operation,
    ) -> impl Future<Output = Result<Answer>> + Send + use<'a> {
        let submitted = self.open().map(|store| store.submit(Some(name), operation));
        async move { submitted?.await }
    }

    /// Returns the first `limit` lock names after `after`, in byte order, as the keys show them.
    ///
    /// The scan examines every key of the servers in small steps, so it is meant for people and
    /// repair tools. In a cluster it examines one server after the other. If a slot moves during
    /// the scan to a server that was already examined, its locks are left out. The slot map does
    /// not show this in time: it changes when a slot has moved, not when the move begins.
    async fn scan(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<LockName>> {
        let access = self.store.access();
        let pattern = access.layout.locks_like(prefix);
        // The slot map may be outdated, and the caller would take an incomplete list for a complete
        // one.
        if let Some(unserved @ 1..) = access.router.unserved().await? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "nobody serves {unserved} of the cluster's slots, so the list would lack the \
                     locks in them"
                ),
            ));
        }
        let mut first = BTreeSet::new();
        for connection in access.router.connections().await? {
            let mut cursor = String::from("0");
            loop {
                let mut step = redis::cmd("SCAN");
                step.arg(&cursor)
                    .arg("MATCH")
                    .arg(&pattern)
                    .arg("COUNT")
                    .arg(SCAN_COUNT);
                let keys: Vec<String>;
                (cursor, keys) = connection.query(&step).await?;
                for name in keys.iter().filter_map(|key| access.layout.lock_of(key)) {
                    if after.is_none_or(|after| name > *after) && name.as_str().starts_with(prefix)
                    {
                        first.insert(name);
                        if first.len() > limit {
                            first.pop_last();
                        }
                    }
                }
                if cursor == "0" {
                    break;
                }
            }
        }
        Ok(first.into_iter().collect())
    }

    /// Reads the holders of several locks.
    async fn read(&self, names: &[LockName]) -> Result<Vec<LockInfo>> {
        let access = self.store.access();
        let calls = names
            .iter()
            .map(|name| lock_call(&access.layout.lock(name)));
        let response = access.router.ask_all(calls.collect()).await;
        names
            .iter()
            .zip(response)
            .map(|(name, response)| self.describe(name, response?))
            .collect()
    }

    /// Reads the holder and the store queue of one lock, in one round trip. If somebody waits, a
    /// second round trip reads the labels of the first waiters.
    async fn read_with_queue(&self, name: &LockName) -> Result<LockInfo> {
        let access = self.store.access();
        let lock = access.layout.lock(name);
        let keys = access.layout.queue(&lock);
        let calls = vec![lock_call(&lock), wait::queue_call(lock.bucket, &keys)];
        let mut answers = access.router.ask_all(calls).await.into_iter();
        let (Some(held), Some(queue)) = (answers.next(), answers.next()) else {
            return Ok(LockInfo::free(name.clone()));
        };
        let mut info = self.describe(name, held?)?;
        let waiters = match queue {
            Ok(queue) => wait::waiters_of(&queue),
            // The queue decides nothing about the lock, so a queue that this user may not read, or
            // a foreign value under its key, does not hide the holder.
            Err(error) => {
                tracing::debug!(%error, "the store queue cannot be read");
                None
            }
        };
        if let Some(waiters) = waiters {
            info.waiters = u32::try_from(waiters.len()).ok();
            let labels = wait::read_labels(&access.router, lock.bucket, &keys, &waiters).await;
            info.queue = labels.unwrap_or_else(|error| {
                tracing::debug!(%error, "the queue entries cannot be read: no waiter is named");
                Vec::new()
            });
        }
        Ok(info)
    }

    fn describe(&self, name: &LockName, response: Response) -> Result<LockInfo> {
        let epoch = self.store.access().router.epoch(&response.connection);
        let mut info = lock_info(name, response)?;
        info.epoch = Some(epoch);
        Ok(info)
    }
}

/// Returns the call that reads the holder of a lock.
fn lock_call(lock: &Target) -> Call {
    let (mut get, mut remaining) = (redis::cmd("GETRANGE"), redis::cmd("PTTL"));
    get.arg(&lock.key).arg(0).arg(value::MAX_LOCK_VALUE);
    remaining.arg(&lock.key);
    Call::plain(lock.bucket, vec![get, remaining])
}

/// Reads the replies to `GETRANGE` and `PTTL`. `GETRANGE` gives the same reply for a missing key as
/// for an empty value; `PTTL` distinguishes the two.
fn lock_info(name: &LockName, response: Response) -> Result<LockInfo> {
    let mut replies = response.replies.into_iter();
    let (found, remaining) = (replies.next(), replies.next());
    let remaining = match remaining {
        Some(Value::Int(remaining)) => remaining,
        _ => -2,
    };
    Ok(match found {
        // A lock that expires between the two commands is free.
        Some(Value::BulkString(found)) if remaining != -2 => {
            LockInfo::held(name.clone(), value::holder(name, &found, remaining)?)
        }
        _ => LockInfo::free(name.clone()),
    })
}

#[async_trait]
impl DistLock for RedisLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        let store = self.open()?.reopen().await;
        let store = store.map_err(|error| error.on(BACKEND).during("reopen"))?;
        Ok(Arc::new(Self::new(store, self.capabilities.clone())))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let op = Operation::Acquire(request.clone());
        self.submit(&request.name, op).await?.acquired()
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        let store = Arc::clone(self.open()?);
        Ok(Box::new(
            RedisContender::join(store, self.open.clone(), request.clone()).await,
        ))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let op = Operation::Renew(lease.clone(), *renewal);
        self.submit(&lease.name, op).await?.renewed()
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let store = self.open()?;
        let checks = &store.access().waiter_checks;
        let op = Operation::Release(lease.clone());
        let answer = if checks.should_check(lease.owner, store.clock().now()) {
            store.submit_with_waiters(&lease.name, op).await?
        } else {
            store.submit(Some(&lease.name), op).await?
        };
        answer.released()
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        let store = self.open()?;
        let op = Operation::HandOver(lease.clone(), next.clone());
        let answer = store.submit(Some(&lease.name), op).await?;
        let handed = answer.handed_over()?;
        if let HandOver::Done(_) = &handed {
            let checks = &store.access().waiter_checks;
            checks.handed_over(lease.owner, next.owner);
        }
        Ok(handed)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        self.open()?;
        let read = self.read_with_queue(name).await;
        read.map_err(|error| error.of_read().on(BACKEND).during("inspect").about(name))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        self.open()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut held = Vec::new();
        let mut after = after.cloned();
        // Locks that the scan found may be free now. The loop goes on, because a page must be full
        // unless it is the last one.
        while held.len() < limit {
            let listed = async {
                let names = self.scan(prefix, after.as_ref(), limit).await?;
                let infos = self.read(&names).await?;
                Ok((names, infos))
            };
            let (names, infos) = listed
                .await
                .map_err(|error: Error| error.of_read().on(BACKEND).during("list"))?;
            held.extend(infos.into_iter().filter(|info| info.held.is_some()));
            if names.len() < limit {
                break;
            }
            after = names.last().cloned();
        }
        held.truncate(limit);
        Ok(held)
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let op = Operation::ForceRelease(name.clone(), expected);
        self.submit(name, op).await?.forced()
    }

    async fn health(&self) -> Result<Health> {
        let router = &self.open()?.access().router;
        let examined = doctor::examine(router).await;
        examined.map_err(|error| error.of_read().on(BACKEND).during("health"))
    }

    fn requests_sent(&self) -> Option<u64> {
        Some(self.store.access().router.connector.requests().total())
    }

    async fn close(&self) {
        if self.open.close() {
            self.store.close_part().await;
        }
    }
}

/// Returns the capabilities of this backend. The server's settings decide whether locks survive a
/// restart.
pub(crate) fn capabilities(survives_restart: bool) -> Capabilities {
    let mut capabilities = Capabilities::new(BACKEND);
    capabilities.fairness = Fairness::OnRequest;
    capabilities.wakeup = Wakeup::Push;
    capabilities.survives_restart = survives_restart;
    capabilities.token_floor = true;
    capabilities.store_queue = true;
    capabilities
}
