//! Statements of the store queue.

/// `?1` rows of name and id of the entry, `?6` the lease of an entry. Returns for each entry the
/// lock's name and the number of entries ahead in the same queue. The two statements are sent
/// together.
pub(super) const RENEW_QUEUE_ENTRIES: &str = "
INSERT INTO distributed_line (lock_name, waiter, boot_id, ticket, expires_at)
SELECT j.value ->> 0, j.value ->> 1, ?3, ?4, ?4 + ?6 FROM json_each(?1) AS j WHERE true
ON CONFLICT (lock_name, waiter) DO UPDATE SET
    boot_id = excluded.boot_id, expires_at = excluded.expires_at;
SELECT m.lock_name, (SELECT count(*) FROM distributed_line o
                      WHERE o.lock_name = m.lock_name AND o.boot_id = ?3 AND o.expires_at > ?4
                        AND (o.ticket, o.waiter) < (m.ticket, m.waiter))
  FROM json_each(?1) AS j
  JOIN distributed_line m ON m.lock_name = j.value ->> 0 AND m.waiter = j.value ->> 1";

/// `?1` names, `?2` ids of entries.
pub(super) const LEAVE_QUEUES: &str = "
DELETE FROM distributed_line
 WHERE lock_name IN (SELECT value FROM json_each(?1))
   AND (waiter IN (SELECT value FROM json_each(?2)) OR boot_id <> ?3 OR expires_at <= ?4)";

pub(super) const REMOVE_EXPIRED_ENTRIES: &str =
    "DELETE FROM distributed_line WHERE boot_id <> ?3 OR expires_at <= ?4";
