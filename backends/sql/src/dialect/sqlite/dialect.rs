//! SQLite as an implementation of the trait [`Dialect`]: one file, processes of one host.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use distlock_backend_kit::{
    batch::{Failure, Limits, Reply},
    operation::{Answer, Operation, OperationKind},
    queue_entry::{ContendersAhead, SHOWN_ENTRIES},
};
use distlock_core::{
    Capabilities, Clock, Entry, Epoch, ExpiryClock, Fairness, Health, HolderInfo, LockName, Reach,
    RecordKey, Result,
};
use futures_util::TryStreamExt as _;
use sqlx::{
    Either, Executor as _, Sqlite,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use tokio::sync::Mutex;

use super::{
    context::{NAME, StoreContext},
    doctor,
    file::FileId,
    options::SqliteConfig,
    pool::{BusyRetry, ConnectionSlot, OpenConnection, ReadConnection},
    rows::{self, json, read_rows},
    statements::Sql,
    tables, write,
};
use crate::{
    dialect::{CommonContext, Configured, Dialect, REAPED_ROWS, Reaped, ReapedPage, above_prefix},
    rows::{LockRow, QueueEntry, renewed_entry, shown_queue},
    statement_error::{Access, StatementError},
    wait::{HINT_LIFETIME, RENEW_HINT_BELOW, WaitGroups},
};

/// The wait groups of this process, one for each file and table prefix.
static WAIT_GROUPS: WaitGroups<(FileId, String)> = WaitGroups::new();

/// A SQLite file, with a connection for batches, a connection for hints and queue entries, and a
/// connection for reads.
#[expect(unnameable_types, reason = "callers use the alias of the store")]
pub struct SqliteDialect {
    context: Arc<StoreContext>,
    writer: Mutex<ConnectionSlot>,
    /// The connection for hints and queue entries. These need not survive a crash of the host.
    hinting: Mutex<ConnectionSlot>,
    reader: ReadConnection,
}

impl SqliteDialect {
    fn with(context: Arc<StoreContext>, writer: ConnectionSlot) -> Self {
        Self {
            context,
            writer: Mutex::new(writer),
            hinting: Mutex::new(ConnectionSlot::hinting()),
            reader: ReadConnection::default(),
        }
    }

    /// Sends a statement that only reads, and returns its rows.
    async fn read(
        &self,
        operation: &'static str,
        sql: &Sql,
        bind: impl FnOnce(Statement) -> Statement + Send,
    ) -> Result<Vec<SqliteRow>> {
        let mut slot = self.reader.take(&*self.context.common.clock).await;
        let open = slot.ready(&self.context).await?;
        self.context.common.counters.count(operation);
        bind(sqlx::query(sql.text()))
            .fetch_all(&mut open.connection)
            .await
            .map_err(|error| {
                slot.failed(StatementError::sqlite(error, Access::Read))
                    .into_error()
            })
    }

    /// Sends a statement that changes rows and belongs to no batch. Returns the number of changed
    /// rows, and the rows of the result.
    async fn change(
        &self,
        slot: &Mutex<ConnectionSlot>,
        operation: &'static str,
        sql: &Sql,
        bind: impl Fn(Statement) -> Statement + Send + Sync,
    ) -> Result<(u64, Vec<SqliteRow>)> {
        let mut slot = slot.lock().await;
        let mut busy_retry = BusyRetry::new(&self.context);
        self.context.common.counters.count(operation);
        loop {
            let open = slot.ready(&self.context).await?;
            let results = open.connection.fetch_many(bind(sqlx::query(sql.text())));
            let changed =
                results.try_fold(
                    (0, Vec::new()),
                    async |(count, mut rows), step| match step {
                        Either::Left(done) => Ok((count + done.rows_affected(), rows)),
                        Either::Right(row) => {
                            rows.push(row);
                            Ok((count, rows))
                        }
                    },
                );
            let failed = match changed.await {
                Ok(changed) => return Ok(changed),
                Err(error) => StatementError::sqlite(error, Access::Write),
            };
            if !busy_retry.allows(open, &failed, &self.context) {
                return Err(slot.failed(failed).into_error());
            }
        }
    }
}

type Statement = Query<'static, Sqlite, SqliteArguments>;

impl Configured for SqliteDialect {
    type Config = SqliteConfig;
}

impl Dialect for SqliteDialect {
    const NAME: &'static str = NAME;

    async fn open(config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut context = StoreContext::new(config, clock)?;
        let mut writer = ConnectionSlot::writing();
        writer.ready(&context).await?;
        if let Ok(Some(file)) = FileId::of(&context.path) {
            let tables = (file, context.config.table_prefix.clone());
            context.common.wait_group = WAIT_GROUPS.shared(tables, &context.common.wait_group);
        }
        Ok(Self::with(Arc::new(context), writer))
    }

    async fn migrate(mut config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<bool> {
        config.migrate = true;
        tables::migrate(&StoreContext::new(config, clock)?).await
    }

    fn capabilities() -> Capabilities {
        let mut capabilities = Capabilities::new(Self::NAME);
        capabilities.fairness = Fairness::OnRequest;
        capabilities.expiry_clock = ExpiryClock::Host;
        capabilities.reach = Reach::Host;
        capabilities.token_floor = true;
        capabilities.store_queue = true;
        capabilities.tells_force_release = true;
        #[cfg(target_os = "linux")]
        {
            capabilities.wakeup = distlock_core::Wakeup::Push;
        }
        capabilities
    }

    fn context(&self) -> &CommonContext {
        &self.context.common
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        limits.ahead = true;
        limits
    }

    /// Acquires and releases share a transaction and its sync to the disk. The sync costs more than
    /// both statements.
    fn batched_as(kind: OperationKind) -> OperationKind {
        match kind {
            OperationKind::Release => OperationKind::Acquire,
            kind => kind,
        }
    }

    async fn reopen(&self) -> Result<Self> {
        let mut writer = ConnectionSlot::writing();
        writer.ready(&self.context).await?;
        Ok(Self::with(Arc::clone(&self.context), writer))
    }

    async fn write(
        &self,
        kind: OperationKind,
        ops: &[Operation],
    ) -> Result<Vec<Reply<Answer>>, Failure> {
        let replies = write::send(&self.context, &self.writer, kind, ops).await?;
        #[cfg(target_os = "linux")]
        super::watch::tell_of_releases(&self.context, &replies);
        Ok(replies)
    }

    async fn read_rows(&self, names: &[LockName]) -> Result<Vec<(LockName, Result<LockRow>)>> {
        let mut slot = self.reader.take(&*self.context.common.clock).await;
        let open = slot.ready(&self.context).await?;
        let names: Vec<_> = names.iter().collect();
        read_rows(
            &mut open.connection,
            &self.context,
            &names,
            self.context.now(),
        )
        .await
        .map_err(|failed| slot.failed(failed).into_error())
    }

    async fn set_hints(&self, names: &[LockName], time: Duration) -> Result<()> {
        let names: Vec<_> = names.iter().map(LockName::as_str).collect();
        let now = self.context.now().boot;
        let hint_id = self.context.common.wait_group.hint_id();
        self.change(
            &self.hinting,
            "set_hints",
            &self.context.statements.set_hints,
            |query| {
                let query = query.bind(json(&names)).bind(hint_id);
                let query = query.bind(later(now, time));
                query.bind(later(now, RENEW_HINT_BELOW))
            },
        )
        .await
        .map(drop)
    }

    #[cfg(target_os = "linux")]
    fn prepare_to_wait(&self) {
        super::watch::ensure_watching(&self.context);
    }

    async fn renew_queue_entries(
        &self,
        entries: &[QueueEntry],
        lease: Duration,
    ) -> Result<Vec<(LockName, ContendersAhead)>> {
        let rows = entries
            .iter()
            .map(|it| (it.name.as_str(), it.id, it.holder.as_str()));
        let (rows, now) = (json(&rows.collect::<Vec<_>>()), self.context.now());
        let lease = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX);
        let renew = &self.context.statements.renew_queue_entries;
        let (_, kept) = self
            .change(&self.hinting, "renew_queue_entries", renew, |query| {
                let query = query.bind(rows.clone()).bind(0);
                let query = query.bind(self.context.boot.to_vec());
                let query = query.bind(now.boot).bind(now.wall).bind(lease);
                let query = query.bind(self.context.common.wait_group.hint_id());
                let query = query.bind(later(now.boot, HINT_LIFETIME));
                query.bind(later(now.boot, RENEW_HINT_BELOW))
            })
            .await?;
        let mut entries = Vec::with_capacity(kept.len());
        for row in &kept {
            let (count, ends) = (rows::column(row, 1)?, rows::column(row, 2)?);
            entries.extend(renewed_entry(rows::column(row, 0)?, count, ends));
        }
        Ok(entries)
    }

    async fn read_queue(&self, name: &LockName) -> Result<(u32, Vec<HolderInfo>)> {
        let now = self.context.now();
        let rows = self
            .read("read_queue", &self.context.statements.read_queue, |query| {
                let query = query.bind(name.as_str().to_owned());
                let query = query.bind(i64::try_from(SHOWN_ENTRIES).unwrap_or(i64::MAX));
                query.bind(self.context.boot.to_vec()).bind(now.boot)
            })
            .await?;
        let rows = rows.iter();
        shown_queue(rows.map(|row| Ok((rows::column(row, 0)?, rows::column(row, 1)?))))
    }

    async fn leave_queues(&self, entries: &[QueueEntry]) -> Result<()> {
        let names: Vec<_> = entries.iter().map(|it| it.name.as_str()).collect();
        let waiters: Vec<_> = entries.iter().map(|it| it.id).collect();
        let (names, waiters, now) = (json(&names), json(&waiters), self.context.now());
        let leave = &self.context.statements.leave_queues;
        self.change(&self.hinting, "leave_queues", leave, |query| {
            let query = query.bind(names.clone()).bind(waiters.clone());
            query.bind(self.context.boot.to_vec()).bind(now.boot)
        })
        .await?;
        #[cfg(target_os = "linux")]
        super::watch::tell_of_departure(&self.context);
        Ok(())
    }

    async fn remove_expired_entries(&self) -> Result<u64> {
        let now = self.context.now();
        let clear = &self.context.statements.remove_expired_entries;
        self.change(&self.hinting, "reap", clear, |query| {
            let query = query.bind(0).bind(0);
            query.bind(self.context.boot.to_vec()).bind(now.boot)
        })
        .await
        .map(|(removed, _)| removed)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<(LockName, LockRow)>> {
        let now = self.context.now();
        let after = after.map(LockName::as_str);
        let rows = self
            .read("list", &self.context.statements.list, |query| {
                query
                    .bind(after.map_or(prefix, |after| after.max(prefix)).to_owned())
                    .bind(after.map(str::to_owned))
                    .bind(self.context.boot.to_vec())
                    .bind(now.boot)
                    .bind(above_prefix(prefix))
                    .bind(limit)
            })
            .await?;
        rows.iter()
            .map(|row| {
                let (name, row) = rows::lock(row, &self.context, now)?;
                Ok((name, row?))
            })
            .collect()
    }

    async fn epoch(&self) -> Result<Epoch> {
        let mut slot = self.reader.take(&*self.context.common.clock).await;
        Ok(slot.ready(&self.context).await?.epoch.clone())
    }

    async fn get(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let names: Vec<_> = keys.iter().map(RecordKey::as_str).collect();
        let now = self.context.now();
        let rows = self
            .read("get", &self.context.statements.get, |query| {
                query.bind(json(&names))
            })
            .await?;
        let found = rows
            .iter()
            .map(|row| rows::record(row, &self.context, now))
            .collect::<Result<HashMap<_, _>>>()?;
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        let now = self.context.now();
        let after = after.map(RecordKey::as_str);
        let rows = self
            .read("scan", &self.context.statements.scan, |query| {
                query
                    .bind(after.map_or(prefix, |after| after.max(prefix)).to_owned())
                    .bind(after.map(str::to_owned))
                    .bind(above_prefix(prefix))
                    .bind(limit)
            })
            .await?;
        rows.iter()
            .map(|row| rows::record(row, &self.context, now))
            .collect()
    }

    async fn claim_reaping(&self, every: Duration) -> Result<bool> {
        let now = self.context.now();
        let every = i64::try_from(every.as_micros()).unwrap_or(i64::MAX);
        let boot = self.context.boot.to_vec();
        self.change(
            &self.writer,
            "claim_reaping",
            &self.context.statements.claim_reaping,
            |query| query.bind(every).bind(0).bind(boot.clone()).bind(now.boot),
        )
        .await
        .map(|(changed, _)| changed > 0)
    }

    async fn reap_page(&self, table: Reaped, after: Option<String>) -> Result<ReapedPage> {
        let context = &self.context;
        let statements = &context.statements;
        let (idle, reap) = match table {
            Reaped::Locks => (&statements.idle_locks, &statements.reap_locks),
            Reaped::Records => (&statements.idle_records, &statements.reap_records),
        };
        let now = context.now();
        let reap_after = i64::try_from(context.config.reap_after.as_micros()).unwrap_or(i64::MAX);
        let rest = |query: Statement| {
            query
                .bind(context.boot.to_vec())
                .bind(now.boot)
                .bind(now.wall)
                .bind(reap_after)
        };
        let rows = self
            .read("find_idle", idle, |query| {
                rest(query.bind(after.unwrap_or_default()).bind(REAPED_ROWS))
            })
            .await?;
        let rows = rows.iter();
        let rows = rows.map(|row| Ok((rows::column(row, 0)?, rows::column(row, 1)?)));
        let (mut page, names) = ReapedPage::of(rows)?;
        if !names.is_empty() {
            (page.removed, _) = self
                .change(&self.writer, "reap", reap, |query| {
                    rest(query.bind(json(&names)).bind(0))
                })
                .await?;
        }
        Ok(page)
    }

    async fn health(&self) -> Result<Health> {
        // The doctor has its own connection: its check of a large file takes long, and no operation
        // must wait for that check.
        let mut open = OpenConnection::new(&self.context).await?;
        let now = self.context.now();
        let stock = sqlx::query(self.context.statements.row_counts.text())
            .bind(0)
            .bind(0)
            .bind(self.context.boot.to_vec())
            .bind(now.boot);
        let examined = doctor::examine(&mut open.connection, &self.context, stock).await;
        let epoch = open.epoch.clone();
        open.close().await;
        let mut health =
            examined.map_err(|error| StatementError::sqlite(error, Access::Read).into_error())?;
        health.epoch = Some(epoch);
        Ok(health)
    }

    async fn close(&self) {
        self.writer.lock().await.close().await;
        self.hinting.lock().await.close().await;
        self.reader.close(&*self.context.common.clock).await;
    }
}

/// The reading `now` of the boot-time clock, plus `time`.
fn later(now: i64, time: Duration) -> i64 {
    now.saturating_add(i64::try_from(time.as_micros()).unwrap_or(i64::MAX))
}

impl fmt::Debug for SqliteDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite")
            .field("path", &self.context.path)
            .finish_non_exhaustive()
    }
}
