//! The locks of a store: one row for each lock name.
//!
//! The module turns each call of [`DistLock`] into an operation for the store's batches, or into a
//! read of the dialect. The module contains no SQL.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distlock_backend_kit::{
    OpenFlag,
    operation::{Answer, Operation},
};
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, Epoch, Error, FencingToken, Forced,
    Grant, HandOver, Health, Lease, LockInfo, LockName, ReleaseOutcome, Renewal, Renewed, Result,
};

use crate::{
    contender::SqlContender, dialect::Dialect, doctor, rows::LockRow, sql_store::reopen,
    store::Store,
};

pub(crate) struct SqlLock<D: Dialect> {
    store: Arc<Store<D>>,
    capabilities: Capabilities,
    open: OpenFlag,
}

impl<D: Dialect> SqlLock<D> {
    pub(crate) fn new(store: Arc<Store<D>>) -> Self {
        Self {
            store,
            capabilities: D::capabilities(),
            open: OpenFlag::default(),
        }
    }

    fn open(&self) -> Result<&Arc<Store<D>>> {
        self.open.check(D::NAME)?;
        Ok(&self.store)
    }

    async fn submit(&self, op: Operation) -> Result<Answer> {
        self.open()?.submit(op).await
    }
}

fn info(name: LockName, row: Option<LockRow>, epoch: Epoch) -> LockInfo {
    let mut info = match row {
        Some(LockRow {
            held: Some(holder), ..
        }) => LockInfo::held(name, holder),
        Some(row) => {
            let mut info = LockInfo::free(name);
            info.last_token = Some(row.last_token);
            info
        }
        None => LockInfo::free(name),
    };
    info.epoch = Some(epoch);
    info
}

#[async_trait]
impl<D: Dialect> DistLock for SqlLock<D> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        Ok(Arc::new(Self::new(reopen(self.open()?).await?)))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let op = Operation::Acquire(request.clone());
        self.submit(op).await?.acquired()
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        let store = Arc::clone(self.open()?);
        Ok(Box::new(
            SqlContender::join(store, self.open.clone(), request.clone()).await,
        ))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let op = Operation::Renew(lease.clone(), *renewal);
        self.submit(op).await?.renewed()
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let op = Operation::Release(lease.clone());
        self.submit(op).await?.released()
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        let op = Operation::HandOver(lease.clone(), next.clone());
        self.submit(op).await?.handed_over()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let wrap = |error: Error| error.on(D::NAME).during("inspect").about(name);
        let rows = self
            .open()?
            .dialect()
            .read_rows(std::slice::from_ref(name))
            .await
            .map_err(wrap)?;
        let row = rows.into_iter().next().map(|(_, row)| row).transpose();
        let epoch = self.store.dialect().epoch().await.map_err(wrap)?;
        let mut info = info(name.clone(), row.map_err(wrap)?, epoch);
        match self.store.dialect().read_queue(name).await {
            Ok((waiters, queue)) => (info.waiters, info.queue) = (Some(waiters), queue),
            // The queue decides nothing about the lock, so a user without the right to read it, or
            // a table that was dropped meanwhile, does not hide the holder.
            Err(error) => tracing::debug!(%error, "the store queue was not read"),
        }
        Ok(info)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let wrap = |error: Error| error.on(D::NAME).during("list");
        let dialect = self.open()?.dialect();
        let rows = dialect.list(prefix, after, limit).await.map_err(wrap)?;
        let epoch = dialect.epoch().await.map_err(wrap)?;
        let rows = rows.into_iter();
        Ok(rows
            .map(|(name, row)| info(name, Some(row), epoch.clone()))
            .collect())
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let op = Operation::ForceRelease(name.clone(), expected);
        self.submit(op).await?.forced()
    }

    async fn health(&self) -> Result<Health> {
        let dialect = self.open()?.dialect();
        let health = dialect.health().await;
        let mut health = health.map_err(|error| error.on(D::NAME).during("health"))?;
        doctor::check_store_queue(&mut health, dialect).await;
        Ok(health)
    }

    fn requests_sent(&self) -> Option<u64> {
        Some(self.store.dialect().context().counters.statements())
    }

    async fn close(&self) {
        let open = self.open.close();
        self.store.close_part(open).await;
    }
}

impl<D: Dialect> fmt::Debug for SqlLock<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}
