//! Statements that read, and the statements of waiter hints, of the store queue, of the reaper and
//! of the tables themselves.

use std::time::Duration;

use distlock_backend_kit::queue_entry::{ENTRY_LEASE, SHOWN_ENTRIES};
use distlock_core::{LockName, RecordKey};

use super::set::{NOBODY, NOW, ROW_NOW, Statements, hex, idle_condition, list, push_text};
use crate::{
    dialect::Reaped,
    rows::QueueEntry,
    tables::{KEY, STORAGE, UNTOUCHED, WRITES},
    wait::{RENEW_HINT_BELOW, SEVERAL_PROCESSES},
};

impl Statements {
    pub(crate) fn read_rows<'a>(&self, names: impl Iterator<Item = &'a LockName>) -> String {
        format!(
            "SELECT {} FROM {} WHERE lock_name IN ({})",
            lock_columns(),
            self.lock,
            list(names.map(|name| name.as_str().as_bytes()))
        )
    }

    /// Two lists of rows: `0` and the key for each row that exists, then `1` and the key for each
    /// row that no other transaction has locked.
    pub(crate) fn there_and_unlocked(&self, table: Reaped, keys: &[&[u8]]) -> String {
        let (name, column) = self.table(table);
        let keys = list(keys.iter().copied());
        let rows = format!("{column} FROM {name} FORCE INDEX (PRIMARY) WHERE {column} IN ({keys})");
        format!("SELECT 0, {rows}; SELECT 1, {rows} FOR UPDATE SKIP LOCKED")
    }

    /// The keys of the rows that no other transaction has locked.
    pub(crate) fn unlocked<'a>(
        &self,
        table: Reaped,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> String {
        let (table, column) = self.table(table);
        // Without `FORCE INDEX`, the optimiser may read and lock all rows of a small table.
        format!(
            "SELECT {column} FROM {table} FORCE INDEX (PRIMARY) WHERE {column} IN ({}) FOR UPDATE \
                SKIP LOCKED",
            list(keys)
        )
    }

    /// Sets this process's waiter hint on held rows. A live hint of another process becomes the
    /// hint of several processes.
    pub(crate) fn set_hints(&self, names: &[Vec<u8>], hint_id: i64, time: Duration) -> String {
        let (micros, renew) = (time.as_micros(), RENEW_HINT_BELOW.as_micros());
        format!(
            "UPDATE {} FORCE INDEX (PRIMARY) \
             SET hint_id = IF(hint_until > {NOW} + {renew}, {SEVERAL_PROCESSES}, {hint_id}), \
             hint_until = {NOW} + {micros} \
             WHERE lock_name IN ({}) AND holder_id <> {NOBODY} \
             AND (hint_id NOT IN ({hint_id}, {SEVERAL_PROCESSES}) OR hint_until <= {NOW} + \
             {renew})",
            self.lock,
            list(names.iter().map(Vec::as_slice))
        )
    }

    /// The held locks of the range, in byte order of their names.
    pub(crate) fn list(&self, range: &Range<'_>) -> String {
        format!(
            "SELECT {} FROM {} WHERE {} AND holder_id <> {NOBODY} AND expires_at > {NOW} \
             ORDER BY lock_name LIMIT {}",
            lock_columns(),
            self.lock,
            range.condition("lock_name"),
            range.limit
        )
    }

    pub(crate) fn get(&self, keys: &[RecordKey]) -> String {
        format!(
            "SELECT record_key, version, value, written_at, {NOW} FROM {} WHERE record_key IN \
                ({}) AND deleted = 0",
            self.record,
            list(keys.iter().map(|key| key.as_str().as_bytes()))
        )
    }

    pub(crate) fn scan(&self, range: &Range<'_>) -> String {
        format!(
            "SELECT record_key, version, value, written_at, {NOW} FROM {} WHERE {} AND deleted = 0 \
             ORDER BY record_key LIMIT {}",
            self.record,
            range.condition("record_key"),
            range.limit
        )
    }
}

/// A range of keys in byte order: from `from`, after `after` and below `below`, with at most
/// `limit` rows.
pub(crate) struct Range<'a> {
    pub(crate) from: &'a str,
    pub(crate) after: Option<&'a str>,
    pub(crate) below: Option<String>,
    pub(crate) limit: u32,
}

impl Range<'_> {
    fn condition(&self, column: &str) -> String {
        let mut condition = format!("{column} >= {}", hex(self.from.as_bytes()));
        if let Some(after) = self.after {
            condition += &format!(" AND {column} > {}", hex(after.as_bytes()));
        }
        if let Some(below) = &self.below {
            condition += &format!(" AND {column} < {}", hex(below.as_bytes()));
        }
        condition
    }
}

fn lock_columns() -> String {
    format!(
        "lock_name, holder_id, token, expires_at, acquired_at, holder, meta, hint_id, \
            hint_until, {NOW}"
    )
}

impl Statements {
    /// Takes or renews queue entries. Reports for each entry the lock's name, the number of entries
    /// ahead in the same queue, and the time until all of those have ended. An entry that ends
    /// later than a whole lease from now was written before the server's clock went back, and its
    /// contender may be dead. Such an entry counts again as soon as its contender has renewed it.
    pub(crate) fn renew_queue_entries(&self, entries: &[QueueEntry], lease: Duration) -> String {
        let queue = &self.queue;
        let rows = |write: &dyn Fn(&QueueEntry, String) -> String| {
            let rows = entries.iter();
            let rows = rows.map(|it| write(it, hex(it.name.as_str().as_bytes())));
            rows.collect::<Vec<_>>().join(",")
        };
        let lease = lease.as_micros();
        let until = format!("{NOW} + {lease}");
        let new = rows(&|it, name| {
            let mut row = format!("({name},{},{NOW},{until},", it.id);
            push_text(&mut row, it.holder.as_str());
            row + ")"
        });
        let mine = rows(&|it, name| format!("({name},{})", it.id));
        // `NOW` would be too early for the end of the longest lease: an entry may have been renewed
        // after this statement began and before it reads the entry.
        format!(
            "INSERT INTO {queue} (lock_name, entry_id, joined_at, expires_at, holder) VALUES {new} \
             ON DUPLICATE KEY UPDATE expires_at = {until}; \
             SELECT m.lock_name, COUNT(o.entry_id), COALESCE(MAX(o.expires_at) - {NOW}, 0) \
             FROM {queue} m LEFT JOIN {queue} o ON o.lock_name = m.lock_name \
             AND o.expires_at > {NOW} AND o.expires_at <= {ROW_NOW} + {lease} \
             AND (o.joined_at, o.entry_id) < (m.joined_at, m.entry_id) \
             WHERE (m.lock_name, m.entry_id) IN ({mine}) GROUP BY m.lock_name, m.entry_id"
        )
    }

    /// The queue of a lock. Each row has the number of living entries and the label of one of them,
    /// in the order of the queue.
    pub(crate) fn read_queue(&self, name: &LockName) -> String {
        let lease = ENTRY_LEASE.as_micros();
        format!(
            "SELECT COUNT(*) OVER (), holder FROM {} WHERE lock_name = {} AND expires_at > {NOW} \
             AND expires_at <= {ROW_NOW} + {lease} ORDER BY joined_at, entry_id LIMIT \
             {SHOWN_ENTRIES}",
            self.queue,
            hex(name.as_str().as_bytes())
        )
    }

    /// Gives up queue entries, and removes the expired entries of the same queues.
    pub(crate) fn leave_queues(&self, entries: &[QueueEntry]) -> String {
        let ids: Vec<_> = entries.iter().map(|it| it.id.to_string()).collect();
        format!(
            "DELETE FROM {} WHERE lock_name IN ({}) AND (entry_id IN ({}) OR expires_at <= {NOW})",
            self.queue,
            list(entries.iter().map(|it| it.name.as_str().as_bytes())),
            ids.join(",")
        )
    }

    /// Removes the expired entries of every queue, at most [`PAGE`] of them.
    pub(crate) fn remove_expired_entries(&self) -> String {
        format!(
            "DELETE FROM {} WHERE expires_at <= {NOW} LIMIT {PAGE}",
            self.queue
        )
    }
}

/// The number of rows that one step of the reaper removes.
pub(crate) const PAGE: usize = 500;

impl Statements {
    /// Claims a run of the reaper, unless a process has claimed a run within `every` microseconds.
    /// An earlier claim with a time in the future does not count: the clock was wrong at that time.
    pub(crate) fn claim_reaping(&self, every: u128) -> String {
        format!(
            "UPDATE {} SET reaped_at = {NOW} \
             WHERE id = 1 AND (reaped_at IS NULL OR reaped_at <= {NOW} - {every} OR reaped_at > \
             {NOW})",
            self.meta
        )
    }

    /// The keys of up to [`PAGE`] idle rows. A row is not idle if its token is not below the
    /// present time: the next grant would create a new row, whose token is the time, and that token
    /// would not be higher.
    pub(crate) fn idle(&self, table: Reaped, reap_after: u128) -> String {
        let (name, column) = self.table(table);
        let condition = idle_condition(table, reap_after);
        format!("SELECT {column} FROM {name} WHERE {condition} LIMIT {PAGE}")
    }

    pub(crate) fn reap(&self, table: Reaped, keys: &[Vec<u8>], reap_after: u128) -> String {
        let (name, column) = self.table(table);
        let condition = idle_condition(table, reap_after);
        // This is the form of `DELETE` for several tables. The form for one table has no `FORCE
        // INDEX`.
        format!(
            "DELETE idle FROM {name} AS idle FORCE INDEX (PRIMARY) WHERE {column} IN ({}) AND \
                {condition}",
            list(keys.iter().map(Vec::as_slice))
        )
    }
}

impl Statements {
    /// The text of a migration with the table prefix added to every name.
    pub(crate) fn script(&self, sql: &str) -> String {
        // In a migration, all names of tables and indexes begin with `distributed_`, and no other
        // word does.
        sql.replace("distributed_", &format!("{}distributed_", self.prefix))
    }

    /// The tables' version, and the name of their history.
    pub(crate) fn meta(&self) -> String {
        format!(
            "SELECT schema_version, epoch FROM {} WHERE id = 1",
            self.meta
        )
    }

    /// The number of distlock's tables that exist.
    pub(crate) fn tables_present(&self) -> String {
        format!(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() \
             AND table_name IN {}",
            self.names()
        )
    }

    /// The names of distlock's tables, as a list of texts.
    fn names(&self) -> String {
        let (lock, queue) = (&self.lock, &self.queue);
        format!("('{lock}', '{queue}', '{}', '{}')", self.record, self.meta)
    }

    /// For each needed right: its name, and a statement that changes nothing. The server refuses
    /// the statement if the user lacks the right.
    pub(crate) fn rights(&self) -> Vec<(String, String)> {
        let update = |table: &str, some: &str| {
            let statement = format!("UPDATE {table} SET {some} = {some} WHERE 1 = 0");
            (format!("UPDATE ON {table}"), statement)
        };
        let of = |table: &str, columns: &str, some: &str| {
            let insert = format!(
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE 1 = 0"
            );
            let delete = format!("DELETE FROM {table} WHERE 1 = 0");
            vec![
                (format!("INSERT ON {table}"), insert),
                update(table, some),
                (format!("DELETE ON {table}"), delete),
            ]
        };
        // The columns without a default value: an insert must name them.
        let lock = "lock_name, token, acquired_at, expires_at, holder";
        let record = "record_key, version, value, deleted, written_at";
        [
            of(&self.lock, lock, "expires_at"),
            of(&self.record, record, "version"),
            // The migration inserts the meta row, so that a user of the store only updates it.
            vec![update(&self.meta, "reaped_at")],
        ]
        .concat()
    }

    /// The numbers of held, free and expired locks; the longest time since one expired; the numbers
    /// of records and tombstones.
    pub(crate) fn row_counts(&self) -> String {
        let held = format!("holder_id <> {NOBODY} AND expires_at > {NOW}");
        let stale = format!("holder_id <> {NOBODY} AND expires_at <= {NOW}");
        format!(
            "SELECT COUNT(CASE WHEN {held} THEN 1 END), COUNT(CASE WHEN COALESCE(holder_id, \
                {NOBODY}) = {NOBODY} THEN 1 END), \
             COUNT(CASE WHEN {stale} THEN 1 END), MAX(CASE WHEN {stale} THEN {NOW} - expires_at \
             END), \
             (SELECT COUNT(*) FROM {0} WHERE deleted = 0), (SELECT COUNT(*) FROM {0} WHERE \
             deleted = 1) FROM {1}",
            self.record, self.lock
        )
    }

    /// For each part of each existing table: the table, the part, and the value of the part. See
    /// [`Table`](crate::tables::Table).
    ///
    /// The part `KEY` lists all unique keys of a table. A second unique key is a difference: with
    /// it, the statement of an acquire could change the row of another lock.
    ///
    /// The part `WRITES` lists the triggers `BEFORE` a change, because such a trigger can change
    /// the new row. A trigger `AFTER` a change cannot change its own table. The catalogue shows no
    /// triggers to a user without the right `TRIGGER`.
    pub(crate) fn parts(&self) -> String {
        let names = self.names();
        let ours = format!("table_schema = DATABASE() AND table_name IN {names}");
        format!(
            "SELECT table_name, '{STORAGE}', \
             CONCAT(table_type, ' in ', COALESCE(engine, 'nothing')), '', '', '' \
             FROM information_schema.tables WHERE {ours} \
             UNION ALL SELECT table_name, '{WRITES}', COALESCE((SELECT \
             GROUP_CONCAT(CONCAT('the trigger ', trigger_name) ORDER BY trigger_name SEPARATOR ' \
             and ') \
             FROM information_schema.triggers WHERE event_object_schema = table_schema \
             AND event_object_table = table_name AND action_timing = 'BEFORE'), '{UNTOUCHED}'), \
             '', '', '' \
             FROM information_schema.tables WHERE {ours} \
             UNION ALL SELECT table_name, column_name, column_type, \
             CASE WHEN character_set_name IS NULL THEN '' \
             ELSE CONCAT(' character set ', character_set_name) END, \
             CASE WHEN is_nullable = 'NO' THEN ' not null' ELSE '' END, \
             COALESCE(generation_expression, '') \
             FROM information_schema.columns WHERE {ours} \
             UNION ALL SELECT table_name, '{KEY}', \
             GROUP_CONCAT(is_of ORDER BY is_of SEPARATOR ' and '), '', '', '' \
             FROM (SELECT table_name, GROUP_CONCAT(CONCAT(column_name, \
             CASE WHEN sub_part IS NULL THEN '' ELSE CONCAT('(', sub_part, ')') END) \
             ORDER BY seq_in_index SEPARATOR ', ') AS is_of \
             FROM information_schema.statistics WHERE {ours} AND non_unique = 0 \
             GROUP BY table_name, index_name) AS of_one_key GROUP BY table_name"
        )
    }
}
