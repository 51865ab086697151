//! The lock contract over the session of a handle.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_backend_kit::{OpenFlag, operation::Operation};
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, FencingToken, Forced, Grant,
    HandOver, Health, Lease, LockInfo, LockName, ReleaseOutcome, Renewal, Renewed, Result,
};
use distlock_wire::v1::{self, answer, operation::Operation as Asked};

use crate::{
    error::{BACKEND, unreadable, wrong_kind},
    store::{RemoteHandle, located},
    wait::RemoteContender,
};

/// The locks of one handle.
#[derive(Debug)]
pub(crate) struct RemoteLock {
    handle: Arc<RemoteHandle>,
    open: OpenFlag,
    capabilities: Capabilities,
}

impl RemoteLock {
    pub(crate) fn new(handle: Arc<RemoteHandle>, capabilities: Capabilities) -> Self {
        Self {
            handle,
            open: OpenFlag::default(),
            capabilities,
        }
    }

    fn open(&self) -> Result<&Arc<RemoteHandle>> {
        self.open.check(BACKEND)?;
        Ok(&self.handle)
    }

    /// Asks something that changes nothing.
    async fn read(
        &self,
        method: &'static str,
        name: Option<&LockName>,
        asked: Asked,
    ) -> Result<answer::Answer> {
        let answer = self.open()?.link.ask(asked).await;
        let answer = answer.and_then(|answer| match answer {
            answer::Answer::Error(error) => Err(error.into()),
            answer => Ok(answer),
        });
        answer.map_err(|error| located(error.of_read(), method, name))
    }
}

#[async_trait]
impl DistLock for RemoteLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        let handle = self.open()?.reopen().await?;
        Ok(Arc::new(Self::new(handle, self.capabilities.clone())))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let op = Operation::Acquire(request.clone());
        let answer = self.open()?.submit(Some(&request.name), op).await?;
        answer.acquired()
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        let handle = Arc::clone(self.open()?);
        let contender = RemoteContender::join(handle, self.open.clone(), request.clone()).await?;
        Ok(Box::new(contender))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let handle = self.open()?;
        renewal.check_floor(&self.capabilities)?;
        let op = Operation::Renew(lease.clone(), *renewal);
        handle.submit(Some(&lease.name), op).await?.renewed()
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let op = Operation::Release(lease.clone());
        let answer = self.open()?.submit(Some(&lease.name), op).await?;
        answer.released()
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        let op = Operation::HandOver(lease.clone(), next.clone());
        let answer = self.open()?.submit(Some(&lease.name), op).await?;
        answer.handed_over()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let asked = Asked::Inspect(v1::InspectLock {
            name: name.as_str().to_owned(),
        });
        let answer = self.read("inspect", Some(name), asked).await?;
        let answer::Answer::Inspect(state) = answer else {
            return Err(located(wrong_kind().of_read(), "inspect", Some(name)));
        };
        let wall = self.handle.link.clock().wall();
        let state = state.read(wall);
        state.map_err(|error| located(unreadable(error).of_read(), "inspect", Some(name)))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let wall = self.handle.link.clock().wall();
        let mut found: Vec<LockInfo> = Vec::new();
        loop {
            let last = found.last().map(|info| &info.name).or(after);
            let left = limit - u32::try_from(found.len()).unwrap_or(limit).min(limit);
            let asked = Asked::List(v1::ListLocks {
                prefix: prefix.to_owned(),
                after: last.map(|name| name.as_str().to_owned()),
                limit: left,
            });
            let answer::Answer::List(list) = self.read("list", None, asked).await? else {
                return Err(located(wrong_kind().of_read(), "list", None));
            };
            // A list that says that there is more and has nothing would be asked for ever.
            let more = list.more && !list.locks.is_empty();
            for state in list.locks {
                let state = state.read(wall);
                let state =
                    state.map_err(|error| located(unreadable(error).of_read(), "list", None))?;
                found.push(state);
            }
            if !more || found.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
                return Ok(found);
            }
        }
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let op = Operation::ForceRelease(name.clone(), expected);
        self.open()?.submit(Some(name), op).await?.forced()
    }

    async fn health(&self) -> Result<Health> {
        let asked = Asked::Health(v1::CheckHealth {});
        match self.read("health", None, asked).await? {
            answer::Answer::Health(report) => Ok(report.into()),
            _ => Err(located(wrong_kind().of_read(), "health", None)),
        }
    }

    fn requests_sent(&self) -> Option<u64> {
        Some(self.handle.link.requests())
    }

    async fn close(&self) {
        if self.open.close() {
            self.handle.close_part().await;
        }
    }
}
