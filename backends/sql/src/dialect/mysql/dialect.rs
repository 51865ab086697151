//! MySQL and MariaDB as an implementation of the trait [`Dialect`].
//!
//! No request exceeds the server's `max_allowed_packet`: long lists are split into parts.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use distlock_backend_kit::{
    batch::{Failure, Limits, Reply},
    operation::{Answer, Operation, OperationKind},
    queue_entry::ContendersAhead,
};
use distlock_core::{
    Capabilities, Clock, Entry, Epoch, Fairness, Health, HolderInfo, HolderLabel, LockName,
    RecordKey, Result,
};

use super::{
    context::{NAME, StoreContext},
    doctor,
    pool::{ConnectionPool, ConnectionSlot, StatementResults},
    rows::{self, PER_OPERATION, first_columns, fitting_parts, read_rows},
    statements::{PAGE, Range},
    tables,
    write::{self, LockedRows},
};
use crate::{
    config::ServerConfig,
    dialect::{CommonContext, Configured, Dialect, Reaped, ReapedPage, above_prefix},
    rows::{LockRow, QueueEntry, renewed_entry, shown_queue},
    statement_error::Access,
    wait::WaitGroups,
};

/// The largest number of operations in a batch: enough to share one flush of the disk, and few
/// enough that their rows are not locked for long.
const BATCH: usize = 256;

/// The space for one queue entry in a statement, in bytes: the name twice and the label, with two
/// characters for each byte, and the expressions for times.
const PER_ENTRY: usize = 4 * 255 + 2 * HolderLabel::MAX_BYTES + 300;

/// The wait groups of this process, one for each set of tables.
static WAIT_GROUPS: WaitGroups<String> = WaitGroups::new();

/// A MySQL or MariaDB database.
#[expect(unnameable_types, reason = "callers use the alias of the store")]
pub struct MySqlDialect {
    context: Arc<StoreContext>,
    pool: ConnectionPool,
    locked_rows: LockedRows,
    /// The largest size of a request in bytes: the server's `max_allowed_packet`.
    packet: usize,
}

impl MySqlDialect {
    fn with(context: Arc<StoreContext>, slot: ConnectionSlot, packet: usize) -> Self {
        Self {
            pool: ConnectionPool::new(context.config.pool_size, slot),
            context,
            locked_rows: LockedRows::default(),
            packet,
        }
    }

    /// Sends a statement that belongs to no batch.
    async fn ask(
        &self,
        operation: &'static str,
        statement: String,
        access: Access,
    ) -> Result<StatementResults> {
        let mut slot = self.pool.lend(&self.context).await?;
        let open = slot.ready(&self.context).await?;
        open.send(&self.context, operation, statement, access)
            .await
            .map_err(|broken| slot.failed(broken.failed).into_error())
    }

    /// Splits the queue entries into parts that each fit into one statement.
    fn fitting_entries<'a>(&self, entries: &'a [QueueEntry]) -> std::slice::Chunks<'a, QueueEntry> {
        let room = self.packet.saturating_sub(PER_OPERATION);
        entries.chunks((room / PER_ENTRY).max(1))
    }

    async fn read(&self, operation: &'static str, statement: String) -> Result<StatementResults> {
        self.ask(operation, statement, Access::Read).await
    }
}

impl Configured for MySqlDialect {
    type Config = ServerConfig;
}

impl Dialect for MySqlDialect {
    const NAME: &'static str = NAME;

    async fn open(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut context = StoreContext::new(config, clock)?;
        let mut slot = ConnectionSlot::default();
        let open = slot.ready(&context).await?;
        let (tables, packet) = (open.tables.clone(), open.packet);
        // A copy of a database has the same name of its history. So the key of the group contains
        // the database and the prefix too.
        let (database, prefix) = (&context.config.database, &context.config.table_prefix);
        let tables = format!("{tables} {prefix} {database}");
        context.common.wait_group = WAIT_GROUPS.shared(tables, &context.common.wait_group);
        Ok(Self::with(Arc::new(context), slot, packet))
    }

    async fn migrate(mut config: ServerConfig, clock: Arc<dyn Clock>) -> Result<bool> {
        config.migrate = true;
        tables::migrate(&StoreContext::new(config, clock)?).await
    }

    fn capabilities() -> Capabilities {
        let mut capabilities = Capabilities::new(Self::NAME);
        capabilities.fairness = Fairness::OnRequest;
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
        limits.operations = BATCH.min(self.packet / PER_OPERATION).max(1);
        // A byte needs two characters in a statement, and a statement contains some values twice.
        limits.bytes = (self.packet / 8).min(1024 * 1024);
        // Two batches: the server works on the second batch while the first batch waits for the
        // disk. One connection is left for reads.
        let pool = usize::try_from(self.context.config.pool_size).unwrap_or(1);
        limits.in_flight = pool.saturating_sub(1).clamp(1, 2);
        limits
    }

    async fn reopen(&self) -> Result<Self> {
        let mut slot = ConnectionSlot::default();
        let packet = slot.ready(&self.context).await?.packet;
        Ok(Self::with(Arc::clone(&self.context), slot, packet))
    }

    async fn write(
        &self,
        _: OperationKind,
        ops: &[Operation],
    ) -> Result<Vec<Reply<Answer>>, Failure> {
        let slot = self.pool.lend(&self.context).await;
        let batch = write::Batch {
            ops,
            context: &self.context,
            slot: &mut *slot.map_err(Failure::Whole)?,
            locked_rows: &self.locked_rows,
            earlier_send: None,
        };
        batch.send().await
    }

    async fn read_rows(&self, names: &[LockName]) -> Result<Vec<(LockName, Result<LockRow>)>> {
        let mut slot = self.pool.lend(&self.context).await?;
        let open = slot.ready(&self.context).await?;
        let names: Vec<_> = names.iter().collect();
        read_rows(open, &self.context, &names, Access::Read)
            .await
            .map_err(|failed| slot.failed(failed).into_error())
    }

    async fn set_hints(&self, names: &[LockName], time: Duration) -> Result<()> {
        let statements = &self.context.statements;
        for names in fitting_parts(names, |it| it.as_str().as_bytes(), self.packet) {
            // Rows that another transaction has locked get no hint now: a waiter for one lock must
            // not be delayed by the row of another lock.
            let keys = names.iter().map(|name| name.as_str().as_bytes());
            let unlocked = statements.unlocked(Reaped::Locks, keys);
            let names = first_columns(&self.read("set_hints", unlocked).await?)?;
            if !names.is_empty() {
                let statement =
                    statements.set_hints(&names, self.context.common.wait_group.hint_id(), time);
                self.ask("set_hints", statement, Access::Write).await?;
            }
        }
        Ok(())
    }

    async fn renew_queue_entries(
        &self,
        entries: &[QueueEntry],
        lease: Duration,
    ) -> Result<Vec<(LockName, ContendersAhead)>> {
        let mut kept = Vec::with_capacity(entries.len());
        for entries in self.fitting_entries(entries) {
            let statement = self.context.statements.renew_queue_entries(entries, lease);
            let found = self
                .ask("renew_queue_entries", statement, Access::Write)
                .await?;
            for row in &found.rows {
                let (count, ends) = (rows::column(row, 1)?, rows::column(row, 2)?);
                kept.extend(renewed_entry(rows::string(row, 0)?, count, ends));
            }
        }
        Ok(kept)
    }

    async fn read_queue(&self, name: &LockName) -> Result<(u32, Vec<HolderInfo>)> {
        let statement = self.context.statements.read_queue(name);
        let found = self.read("read_queue", statement).await?;
        let rows = found.rows.iter();
        shown_queue(rows.map(|row| Ok((rows::column(row, 0)?, rows::string(row, 1)?))))
    }

    async fn leave_queues(&self, entries: &[QueueEntry]) -> Result<()> {
        for entries in self.fitting_entries(entries) {
            let statement = self.context.statements.leave_queues(entries);
            self.ask("leave_queues", statement, Access::Write).await?;
        }
        Ok(())
    }

    async fn remove_expired_entries(&self) -> Result<u64> {
        let statement = self.context.statements.remove_expired_entries();
        let cleared = self.ask("reap", statement, Access::Write).await?;
        Ok(cleared.changed())
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<(LockName, LockRow)>> {
        let range = Range {
            from: prefix,
            after: after.map(LockName::as_str),
            below: above_prefix(prefix),
            limit,
        };
        let found = self
            .read("list", self.context.statements.list(&range))
            .await?;
        let rows = found.rows.iter().map(|row| {
            let (name, row) = rows::lock(row, &self.context)?;
            Ok((name, row?))
        });
        rows.collect()
    }

    async fn epoch(&self) -> Result<Epoch> {
        let mut slot = self.pool.lend(&self.context).await?;
        Ok(slot.ready(&self.context).await?.epoch.clone())
    }

    async fn get(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let mut found = HashMap::new();
        for keys in fitting_parts(keys, |it| it.as_str().as_bytes(), self.packet) {
            let statement = self.context.statements.get(keys);
            for row in &self.read("get", statement).await?.rows {
                let (key, entry) = rows::record(row)?;
                found.insert(key, entry);
            }
        }
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        let range = Range {
            from: prefix,
            after: after.map(RecordKey::as_str),
            below: above_prefix(prefix),
            limit,
        };
        let found = self
            .read("scan", self.context.statements.scan(&range))
            .await?;
        found.rows.iter().map(rows::record).collect()
    }

    async fn claim_reaping(&self, every: Duration) -> Result<bool> {
        let statement = self.context.statements.claim_reaping(every.as_micros());
        let claimed = self.ask("claim_reaping", statement, Access::Write).await?;
        Ok(claimed.changed() > 0)
    }

    async fn reap_page(&self, table: Reaped, _: Option<String>) -> Result<ReapedPage> {
        let (statements, after) = (&self.context.statements, self.context.reap_after());
        let mut page = ReapedPage::default();
        let idle = self
            .read("find_idle", statements.idle(table, after))
            .await?;
        let idle = first_columns(&idle)?;
        if idle.is_empty() {
            return Ok(page);
        }
        for some in fitting_parts(&idle, Vec::as_slice, self.packet) {
            // Rows that another transaction has locked are left to a later run.
            let unlocked = statements.unlocked(table, some.iter().map(Vec::as_slice));
            let unlocked = first_columns(&self.read("find_idle", unlocked).await?)?;
            if !unlocked.is_empty() {
                let reap = statements.reap(table, &unlocked, after);
                page.removed += self.ask("reap", reap, Access::Write).await?.changed();
            }
        }
        // An index finds the idle rows. The rows of this page are removed by now, so that the next
        // page needs no start key.
        page.next = (idle.len() == PAGE && page.removed > 0).then(String::new);
        Ok(page)
    }

    async fn health(&self) -> Result<Health> {
        let mut slot = self.pool.lend(&self.context).await?;
        let open = slot.ready(&self.context).await?;
        let mut health = Health::new(open.server.clone());
        health.epoch = Some(open.epoch.clone());
        let examined = doctor::examine(&mut health, open, &self.context).await;
        examined.map_err(|failed| slot.failed(failed).into_error())?;
        doctor::servers(&mut health, &self.context).await;
        Ok(health)
    }

    async fn close(&self) {
        self.pool.close(&self.context).await;
    }
}

impl fmt::Debug for MySqlDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySql")
            .field("config", &self.context.config)
            .finish_non_exhaustive()
    }
}
