//! Statements about the tables themselves.

/// The version of the tables, and the name of their history.
pub(super) const META: &str = "
SELECT schema_version, epoch FROM distributed_meta WHERE id = 1";

/// The number of all tables and other objects in the file, and the number of distlock's tables
/// among them.
pub(super) const TABLES_PRESENT: &str = "
SELECT count(*),
       coalesce(sum(name IN ('distributed_lock', 'distributed_queue', 'distributed_record',
                             'distributed_meta')), 0)
  FROM sqlite_master";

/// The numbers of held, free and expired locks; the longest time since one expired; the numbers of
/// records and tombstones.
pub(super) const ROW_COUNTS: &str = "
SELECT count(*) FILTER (WHERE holder_id IS NOT NULL AND boot_id = ?3 AND expires_at > ?4),
       count(*) FILTER (WHERE holder_id IS NULL),
       count(*) FILTER (WHERE holder_id IS NOT NULL AND NOT (boot_id = ?3 AND expires_at > ?4)),
       max(CASE WHEN holder_id IS NOT NULL AND NOT (boot_id = ?3 AND expires_at > ?4)
           THEN iif(boot_id = ?3, ?4 - expires_at, ?4) END),
       (SELECT count(*) FROM distributed_record WHERE deleted = 0),
       (SELECT count(*) FROM distributed_record WHERE deleted = 1)
  FROM distributed_lock";

/// For each table of distlock: its name, the statement that created the table, and its triggers.
/// Every trigger is reported: any trigger can change or drop written rows, because in SQLite even a
/// trigger `AFTER` a change can write to its own table.
pub(super) const SCHEMA_PARTS: &str = "
SELECT o.name, coalesce(o.sql, ''),
       coalesce((SELECT group_concat('the trigger ' || t.name, ' and ') FROM sqlite_master t
                  WHERE t.type = 'trigger' AND t.tbl_name = o.name), 'none')
  FROM sqlite_master o
 WHERE o.name IN ('distributed_lock', 'distributed_queue', 'distributed_record',
                  'distributed_meta')";
