//! Statements of the reaper.

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
