//! Statements that read, and the statements of waiter hints, of the store queue, of the reaper and
//! of the tables themselves.

/// The columns of a lock's row.
pub(super) const LOCK_COLUMNS: &str = "lock_name, holder_id, token, boot_id, expires_at, \
    acquired_at, holder, meta, hint_id, hint_until, nonce";

/// `?1` names.
pub(super) const LOOK: &str = "
SELECT {lock_columns}
  FROM distributed_lock
 WHERE lock_name IN (SELECT value FROM json_each(?1))";

/// `?1` names; `?2` this process's hint id; `?3` the end of the new hint. A hint that ends at or
/// before `?4` is replaced. A hint of another process that ends later becomes the hint of several
/// processes, 0.
pub(super) const SET_HINTS: &str = "
UPDATE distributed_lock SET hint_id = CASE WHEN hint_until > ?4 THEN 0 ELSE ?2 END, \
    hint_until = ?3
 WHERE lock_name IN (SELECT value FROM json_each(?1))
   AND holder_id IS NOT NULL
   AND (hint_id NOT IN (?2, 0) OR hint_until <= ?4)";

/// `?1` the first name, `?2` a name to leave out (the last name of the page before), `?5` the first
/// name above the range (null = no limit: `x''` is a blob, and every blob sorts after every text),
/// `?6` the largest number of rows.
pub(super) const LIST: &str = "
SELECT {lock_columns}
  FROM distributed_lock
 WHERE lock_name >= ?1
   AND lock_name < coalesce(?5, x'')
   AND lock_name IS NOT ?2
   AND holder_id IS NOT NULL AND boot_id = ?3 AND expires_at > ?4
 ORDER BY lock_name
 LIMIT ?6";

/// `?1` keys.
pub(super) const GET: &str = "
SELECT record_key, version, value, boot_id, written_at
  FROM distributed_record
 WHERE record_key IN (SELECT value FROM json_each(?1)) AND deleted = 0";

/// `?1` the first key, `?2` a key to leave out (the last key of the page before), `?3` the first
/// key above the range or null, `?4` the largest number of rows.
pub(super) const SCAN: &str = "
SELECT record_key, version, value, boot_id, written_at
  FROM distributed_record
 WHERE record_key >= ?1
   AND record_key < coalesce(?3, x'')
   AND record_key IS NOT ?2
   AND deleted = 0
 ORDER BY record_key
 LIMIT ?4";

/// `?1` rows of name, id and label of the entry, `?6` the lease of an entry. Returns for each entry
/// the lock's name, the number of entries ahead in the same queue, and the microseconds until all
/// of those have ended. The statements are sent together.
///
/// The entry comes with a hint on the lock's row, held or not, so that a release tells this process
/// from now on, whoever holds the lock by then. `?7`, `?8` and `?9` are `?2`, `?3` and `?4` of
/// [`SET_HINTS`].
pub(super) const RENEW_QUEUE_ENTRIES: &str = "
UPDATE distributed_lock SET hint_id = CASE WHEN hint_until > ?9 THEN 0 ELSE ?7 END, hint_until = ?8
 WHERE lock_name IN (SELECT value ->> 0 FROM json_each(?1))
   AND (hint_id NOT IN (?7, 0) OR hint_until <= ?9);
INSERT INTO distributed_queue (lock_name, entry_id, boot_id, joined_at, expires_at, holder)
SELECT j.value ->> 0, j.value ->> 1, ?3, ?4, ?4 + ?6, j.value ->> 2
  FROM json_each(?1) AS j WHERE true
ON CONFLICT (lock_name, entry_id) DO UPDATE SET
    boot_id = excluded.boot_id, expires_at = excluded.expires_at;
SELECT m.lock_name, count(o.entry_id), coalesce(max(o.expires_at) - ?4, 0)
  FROM json_each(?1) AS j
  JOIN distributed_queue m ON m.lock_name = j.value ->> 0 AND m.entry_id = j.value ->> 1
  LEFT JOIN distributed_queue o ON o.lock_name = m.lock_name AND o.boot_id = ?3
   AND o.expires_at > ?4 AND (o.joined_at, o.entry_id) < (m.joined_at, m.entry_id)
 GROUP BY m.lock_name, m.entry_id";

/// `?1` a name, `?2` the limit of rows. Each row has the number of living entries of the queue and
/// the label of one of them, in the order of the queue.
pub(super) const READ_QUEUE: &str = "
SELECT count(*) OVER (), holder
  FROM distributed_queue
 WHERE lock_name = ?1 AND boot_id = ?3 AND expires_at > ?4
 ORDER BY joined_at, entry_id
 LIMIT ?2";

/// `?1` names, `?2` ids of entries.
pub(super) const LEAVE_QUEUES: &str = "
DELETE FROM distributed_queue
 WHERE lock_name IN (SELECT value FROM json_each(?1))
   AND (entry_id IN (SELECT value FROM json_each(?2)) OR boot_id <> ?3 OR expires_at <= ?4)";

pub(super) const REMOVE_EXPIRED_ENTRIES: &str =
    "DELETE FROM distributed_queue WHERE boot_id <> ?3 OR expires_at <= ?4";

/// Claims a run of the reaper. `?1` the least time since the last claim.
pub(super) const CLAIM_REAPING: &str = "
UPDATE distributed_meta SET reaped_boot = ?3, reaped_at = ?4
 WHERE id = 1 AND (reaped_at IS NULL OR reaped_boot IS NOT ?3 OR reaped_at <= ?4 - ?1)
RETURNING id";

/// One page of the table: the key of each row, and whether the row is idle. `?1` the key before the
/// page, `?2` the number of rows, `?6` the time after which an unused row is idle.
///
/// A row of another boot has been unused for an unknown time, but at least since this boot. A row
/// is not idle if its token is not below the wall clock: the next grant would create a new row,
/// whose token is the time, and that token would not be higher.
pub(super) const IDLE_LOCKS: &str = "
SELECT lock_name,
       token < ?5 AND CASE WHEN boot_id = ?3 THEN expires_at <= ?4 - ?6 ELSE ?4 >= ?6 END
  FROM distributed_lock WHERE lock_name > ?1 ORDER BY lock_name LIMIT ?2";

/// Removes idle rows. `?1` names, `?6` the time after which an unused row is idle.
pub(super) const REAP_LOCKS: &str = "
DELETE FROM distributed_lock
 WHERE lock_name IN (SELECT value FROM json_each(?1))
   AND token < ?5 AND CASE WHEN boot_id = ?3 THEN expires_at <= ?4 - ?6 ELSE ?4 >= ?6 END";

/// The same as [`IDLE_LOCKS`] for the record table, where only tombstones are idle.
pub(super) const IDLE_RECORDS: &str = "
SELECT record_key,
       deleted = 1 AND version < ?5 AND CASE WHEN boot_id = ?3 THEN written_at <= ?4 - ?6 ELSE ?4 \
           >= ?6 END
  FROM distributed_record WHERE record_key > ?1 ORDER BY record_key LIMIT ?2";

pub(super) const REAP_RECORDS: &str = "
DELETE FROM distributed_record
 WHERE record_key IN (SELECT value FROM json_each(?1))
   AND deleted = 1 AND version < ?5 AND CASE WHEN boot_id = ?3 THEN written_at <= ?4 - ?6 ELSE ?4 \
       >= ?6 END";

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
