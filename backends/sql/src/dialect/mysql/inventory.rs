//! Statements about the tables themselves: what is there, what the user may do with it, and how
//! much is in it. They are sent when tables are set up, and by the doctor.

use super::statements::{NOBODY, NOW, Statements};

impl Statements {
    /// A migration's text for these tables.
    pub(super) fn script(&self, sql: &str) -> String {
        // Every name of ours begins so, and nothing else does.
        sql.replace("distributed_", &format!("{}distributed_", self.prefix))
    }

    /// The tables' version, and what names them. The version counts the table that version 2 adds,
    /// which leaves `schema_version` alone.
    pub(super) fn meta(&self) -> String {
        format!(
            "SELECT schema_version + (schema_version = 1 AND EXISTS (SELECT 1 \
             FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{}')), \
             epoch FROM {} WHERE id = 1",
            self.line, self.meta
        )
    }

    /// How many of our tables there are.
    pub(super) fn objects(&self) -> String {
        format!(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() \
             AND table_name IN ('{}', '{}', '{}')",
            self.lock, self.record, self.meta
        )
    }

    /// For each right that it takes, a statement that changes nothing and is refused without it.
    pub(super) fn rights(&self) -> Vec<(String, String)> {
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
        // Those that have no value unless told one.
        let lock = "lock_name, token, acquired_at, expires_at, holder";
        let record = "record_key, version, value, deleted, written_at";
        [
            of(&self.lock, lock, "expires_at"),
            of(&self.record, record, "version"),
            // Its row is made by who sets the tables up.
            vec![update(&self.meta, "reaped_at")],
        ]
        .concat()
    }

    /// Locks held, free, stale; the longest time since one went stale; records and tombstones.
    pub(super) fn stocktaking(&self) -> String {
        let held = format!("holder_id <> {NOBODY} AND expires_at > {NOW}");
        let stale = format!("holder_id <> {NOBODY} AND expires_at <= {NOW}");
        format!(
            "SELECT COUNT(CASE WHEN {held} THEN 1 END), COUNT(CASE WHEN COALESCE(holder_id, {NOBODY}) = {NOBODY} THEN 1 END), \
             COUNT(CASE WHEN {stale} THEN 1 END), MAX(CASE WHEN {stale} THEN {NOW} - expires_at END), \
             (SELECT COUNT(*) FROM {0} WHERE deleted = 0), (SELECT COUNT(*) FROM {0} WHERE deleted = 1) FROM {1}",
            self.record, self.lock
        )
    }
}
