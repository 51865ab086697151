//! Postgres as an implementation of the trait [`Dialect`]: one primary, any number of client hosts.

use std::{collections::HashMap, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use distlock_backend_kit::{
    batch::{Failure, Limits, Reply},
    operation::{Answer, Operation, OperationKind},
    queue_entry::{ContendersAhead, ENTRY_LEASE, SHOWN_ENTRIES},
};
use distlock_core::{
    Capabilities, Clock, Entry, Epoch, Fairness, Health, HolderInfo, LockName, RecordKey, Result,
    Wakeup,
};
use sqlx::{
    Postgres,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{
    connect::with_statement_timeout,
    context::{NAME, StoreContext},
    doctor, listen,
    pool::ConnectionPool,
    rows::{self, read_rows},
    statements::Sql,
    tables, write,
};
use crate::{
    config::ServerConfig,
    dialect::{CommonContext, Configured, Dialect, REAPED_ROWS, Reaped, ReapedPage, above_prefix},
    rows::{LockRow, QueueEntry, renewed_entry, shown_queue},
    statement_error::{Access, StatementError},
    wait::RENEW_HINT_BELOW,
};

type Statement = Query<'static, Postgres, PgArguments>;

/// A Postgres database.
#[expect(unnameable_types, reason = "callers use the alias of the store")]
pub struct PostgresDialect {
    context: Arc<StoreContext>,
    pool: ConnectionPool,
    /// The pool for hints and queue entries. These need not survive a crash of the server, so that
    /// their commits do not wait for the disk.
    hint_pool: ConnectionPool,
}

impl PostgresDialect {
    async fn connected(context: Arc<StoreContext>) -> Result<Self> {
        let pool = ConnectionPool::new(context.config.pool_size, true);
        let connection = pool.lend(&context).await?;
        let _ = connection.give_back(Ok(()));
        Ok(Self {
            context,
            pool,
            hint_pool: ConnectionPool::new(1, false),
        })
    }

    /// Sends a statement that only reads, and returns its rows.
    async fn read(
        &self,
        operation: &'static str,
        sql: &Sql,
        bind: impl FnOnce(Statement) -> Statement + Send,
    ) -> Result<Vec<PgRow>> {
        let context = &*self.context;
        let mut connection = self.pool.lend(context).await?;
        context.common.counters.count(operation);
        let query = bind(sqlx::query(sql.text()));
        let rows = with_statement_timeout(context, Access::Read, async {
            let rows = query.fetch_all(connection.connection()).await;
            rows.map_err(|error| StatementError::postgres(error, Access::Read))
        })
        .await;
        connection
            .give_back(rows)
            .map_err(|failed| context.explain(failed))
    }

    /// Sends a statement that changes rows and belongs to no batch. Returns the number of rows.
    async fn change(
        &self,
        pool: &ConnectionPool,
        operation: &'static str,
        sql: &Sql,
        bind: impl FnOnce(Statement) -> Statement + Send,
    ) -> Result<u64> {
        let context = &*self.context;
        let mut connection = pool.lend(context).await?;
        context.common.counters.count(operation);
        let query = bind(sqlx::query(sql.text()));
        let changed = with_statement_timeout(context, Access::Write, async {
            let done = query.execute(connection.connection()).await;
            done.map(|done| done.rows_affected())
                .map_err(|error| StatementError::postgres(error, Access::Write))
        })
        .await;
        connection
            .give_back(changed)
            .map_err(|failed| context.explain(failed))
    }
}

impl Configured for PostgresDialect {
    type Config = ServerConfig;
}

impl Dialect for PostgresDialect {
    const NAME: &'static str = NAME;

    const NOTIFIES: bool = true;

    async fn open(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::connected(Arc::new(StoreContext::new(config, clock)?)).await
    }

    async fn migrate(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<bool> {
        tables::migrate(&StoreContext::new(config, clock)?).await
    }

    fn capabilities() -> Capabilities {
        let mut capabilities = Capabilities::new(Self::NAME);
        capabilities.fairness = Fairness::OnRequest;
        capabilities.wakeup = Wakeup::Push;
        capabilities.token_floor = true;
        capabilities.store_queue = true;
        capabilities.tells_force_release = true;
        capabilities
    }

    fn context(&self) -> &CommonContext {
        &self.context.common
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        // Two batches: one batch may wait for a locked row while the other is carried out. One
        // connection is left for reads.
        let pool = usize::try_from(self.context.config.pool_size).unwrap_or(1);
        limits.in_flight = pool.saturating_sub(1).clamp(1, 2);
        limits
    }

    async fn reopen(&self) -> Result<Self> {
        Self::connected(Arc::clone(&self.context)).await
    }

    async fn write(
        &self,
        kind: OperationKind,
        ops: &[Operation],
    ) -> Result<Vec<Reply<Answer>>, Failure> {
        write::send(&self.context, &self.pool, kind, ops).await
    }

    async fn read_rows(&self, names: &[LockName]) -> Result<Vec<(LockName, Result<LockRow>)>> {
        let context = &*self.context;
        let mut connection = self.pool.lend(context).await?;
        let names = texts(names.iter().map(LockName::as_str));
        let looking = read_rows(connection.connection(), context, names);
        let found = with_statement_timeout(context, Access::Read, looking).await;
        let found = connection
            .give_back(found)
            .map_err(|failed| context.explain(failed))?;
        Ok(found.into_iter().collect())
    }

    async fn set_hints(&self, names: &[LockName], time: Duration) -> Result<()> {
        let names = texts(names.iter().map(LockName::as_str));
        let hint_id = self.context.common.wait_group.hint_id();
        let want = &self.context.statements.set_hints;
        self.change(&self.hint_pool, "set_hints", want, |query| {
            let query = query.bind(names).bind(hint_id).bind(micros(time));
            query.bind(micros(RENEW_HINT_BELOW))
        })
        .await
        .map(drop)
    }

    async fn set_hint(&self, name: &LockName, time: Duration) -> Result<bool> {
        let context = &*self.context;
        let mut connection = self.hint_pool.lend(context).await?;
        context.common.counters.count("set_hints");
        let query = sqlx::query_scalar(context.statements.set_hint.text())
            .bind(name.as_str().to_owned())
            .bind(context.common.wait_group.hint_id())
            .bind(micros(time))
            .bind(micros(RENEW_HINT_BELOW));
        let armed = with_statement_timeout(context, Access::Write, async {
            let armed = query.fetch_one(connection.connection()).await;
            armed.map_err(|error| StatementError::postgres(error, Access::Write))
        })
        .await;
        connection
            .give_back(armed)
            .map_err(|failed| context.explain(failed))
    }

    async fn renew_queue_entries(
        &self,
        entries: &[QueueEntry],
        lease: Duration,
    ) -> Result<Vec<(LockName, ContendersAhead)>> {
        let context = &*self.context;
        let names = texts(entries.iter().map(|entry| entry.name.as_str()));
        let waiters: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        let labels = texts(entries.iter().map(|entry| entry.holder.as_str()));
        let mut connection = self.hint_pool.lend(context).await?;
        context.common.counters.count("renew_queue_entries");
        let query = sqlx::query_as(context.statements.renew_queue_entries.text());
        let query = query
            .bind(names)
            .bind(waiters)
            .bind(micros(lease))
            .bind(labels);
        let kept: Result<Vec<(String, i64, i64)>, _> =
            with_statement_timeout(context, Access::Write, async {
                let kept = query.fetch_all(connection.connection()).await;
                kept.map_err(|error| StatementError::postgres(error, Access::Write))
            })
            .await;
        let kept = connection
            .give_back(kept)
            .map_err(|failed| context.explain(failed))?;
        let kept = kept.into_iter();
        let kept = kept.filter_map(|(name, count, ends)| renewed_entry(name, count, ends));
        Ok(kept.collect())
    }

    async fn read_queue(&self, name: &LockName) -> Result<(u32, Vec<HolderInfo>)> {
        let rows = self
            .read("read_queue", &self.context.statements.read_queue, |query| {
                let query = query
                    .bind(name.as_str().to_owned())
                    .bind(micros(ENTRY_LEASE));
                query.bind(i64::try_from(SHOWN_ENTRIES).unwrap_or(i64::MAX))
            })
            .await?;
        let rows = rows.iter();
        shown_queue(rows.map(|row| Ok((rows::column(row, 0)?, rows::column(row, 1)?))))
    }

    async fn leave_queues(&self, entries: &[QueueEntry]) -> Result<()> {
        let names = texts(entries.iter().map(|entry| entry.name.as_str()));
        let waiters: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        let (channel, left) = (
            self.context.statements.channel(),
            listen::LEFT_QUEUE.to_string(),
        );
        let leave = &self.context.statements.leave_queues;
        self.change(&self.hint_pool, "leave_queues", leave, |query| {
            query.bind(names).bind(waiters).bind(channel).bind(left)
        })
        .await
        .map(drop)
    }

    async fn remove_expired_entries(&self) -> Result<u64> {
        let clear = &self.context.statements.remove_expired_entries;
        // A handle without waiters has no connection for hints, and needs none for this either.
        self.change(&self.pool, "reap", clear, |query| query).await
    }

    fn listen(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(listen::listen(Arc::clone(&self.context)))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<(LockName, LockRow)>> {
        let after = after.map(LockName::as_str);
        let rows = self
            .read("list", &self.context.statements.list, |query| {
                page(query, prefix, after, limit)
            })
            .await?;
        let hint_id = self.context.common.wait_group.hint_id();
        rows.iter()
            .map(|row| {
                let (name, row) = rows::lock(row, hint_id)?;
                Ok((name, row?))
            })
            .collect()
    }

    async fn epoch(&self) -> Result<Epoch> {
        Ok(self.context.epoch())
    }

    async fn get(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let names = texts(keys.iter().map(RecordKey::as_str));
        let rows = self
            .read("get", &self.context.statements.get, |query| {
                query.bind(names)
            })
            .await?;
        let found = rows
            .iter()
            .map(rows::record)
            .collect::<Result<HashMap<_, _>>>()?;
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        let after = after.map(RecordKey::as_str);
        let rows = self
            .read("scan", &self.context.statements.scan, |query| {
                page(query, prefix, after, limit)
            })
            .await?;
        rows.iter().map(rows::record).collect()
    }

    async fn claim_reaping(&self, every: Duration) -> Result<bool> {
        let claim = &self.context.statements.claim_reaping;
        self.change(&self.pool, "claim_reaping", claim, |query| {
            query.bind(micros(every))
        })
        .await
        .map(|changed| changed > 0)
    }

    async fn reap_page(&self, table: Reaped, after: Option<String>) -> Result<ReapedPage> {
        let statements = &self.context.statements;
        let (idle, reap) = match table {
            Reaped::Locks => (&statements.idle_locks, &statements.reap_locks),
            Reaped::Records => (&statements.idle_records, &statements.reap_records),
        };
        let reap_after = micros(self.context.config.reap_after);
        let rows = self
            .read("find_idle", idle, |query| {
                query
                    .bind(after.unwrap_or_default())
                    .bind(i64::from(REAPED_ROWS))
                    .bind(reap_after)
            })
            .await?;
        let rows = rows.iter();
        let rows = rows.map(|row| Ok((rows::column(row, 0)?, rows::column(row, 1)?)));
        let (mut page, names) = ReapedPage::of(rows)?;
        if !names.is_empty() {
            page.removed = self
                .change(&self.pool, "reap", reap, |query| {
                    query.bind(names).bind(reap_after)
                })
                .await?;
        }
        Ok(page)
    }

    async fn health(&self) -> Result<Health> {
        let context = &*self.context;
        let mut connection = self.pool.lend(context).await?;
        let stock = sqlx::query(context.statements.row_counts.text());
        let examining = doctor::examine(connection.connection(), context, stock);
        let examined = with_statement_timeout(context, Access::Read, async {
            let examined = examining.await;
            examined.map_err(|error| StatementError::postgres(error, Access::Read))
        })
        .await;
        let mut health = connection
            .give_back(examined)
            .map_err(|failed| context.explain(failed))?;
        health.epoch = Some(context.epoch());
        doctor::servers(&mut health, context).await;
        Ok(health)
    }

    async fn close(&self) {
        self.pool.close().await;
        self.hint_pool.close().await;
    }
}

impl fmt::Debug for PostgresDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("database", &self.context.database_label())
            .finish_non_exhaustive()
    }
}

/// Binds the parameters of a statement that reads one page of a table in the order of the keys.
fn page(query: Statement, prefix: &str, after: Option<&str>, limit: u32) -> Statement {
    query
        .bind(after.map_or(prefix, |after| after.max(prefix)).to_owned())
        .bind(after.map(str::to_owned))
        .bind(above_prefix(prefix))
        .bind(i64::from(limit))
}

fn texts<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    texts.map(str::to_owned).collect()
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
