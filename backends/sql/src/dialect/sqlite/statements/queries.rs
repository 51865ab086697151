//! Statements that read rows, and the statement that sets waiter hints.

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
