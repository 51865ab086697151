//! Statements about the tables themselves: their existence and form, the user's rights, and the
//! numbers of rows. Only the set-up of the tables and the doctor send these statements.

use super::{
    expressions::{NOBODY, NOW},
    set::Statements,
};
use crate::schema_check::{KEY, STORAGE, UNTOUCHED, WRITES};

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
    /// [`Table`](crate::schema_check::Table).
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
