//! Statements of the store queue.

/// `?1` rows of name, id and label of the entry, `?6` the lease of an entry. Returns for each entry
/// the lock's name, the number of entries ahead in the same queue, and the microseconds until all
/// of those have ended. The two statements are sent together.
pub(super) const RENEW_QUEUE_ENTRIES: &str = "
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
