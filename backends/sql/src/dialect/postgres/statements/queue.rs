//! Statements of the store queue.

/// `$1` names, `$2` ids of entries, `$3` the lease of an entry, `$4` labels. Returns for each entry
/// the lock's name, the number of entries ahead in the same queue, and the microseconds until all
/// of those have ended. An entry that ends later than a whole lease from now was written before the
/// server's clock went back, and its contender may be dead. Such an entry counts again as soon as
/// its contender has renewed it.
pub(super) const RENEW_QUEUE_ENTRIES: &str = "
WITH kept AS (
    INSERT INTO distributed_queue AS q (lock_name, entry_id, joined_at, expires_at, holder)
    SELECT k.name, k.entry_id, clock_timestamp(), clock_timestamp() + $3 * interval '1 microsecond',
           k.holder
      FROM unnest($1::text[], $2::int8[], $4::text[]) AS k (name, entry_id, holder)
     ORDER BY k.name COLLATE \"C\"
    ON CONFLICT (lock_name, entry_id) DO UPDATE SET expires_at = excluded.expires_at
    RETURNING q.lock_name, q.entry_id, q.joined_at
) SELECT k.lock_name, o.entries, o.ended_in
    FROM kept k, LATERAL (
         SELECT count(*) AS entries,
                coalesce(extract(epoch FROM max(expires_at) - clock_timestamp()) * 1000000, 0)::int8
                AS ended_in
           FROM distributed_queue o
          WHERE o.lock_name = k.lock_name AND o.expires_at > clock_timestamp()
            AND o.expires_at <= clock_timestamp() + $3 * interval '1 microsecond'
            AND (o.joined_at, o.entry_id) < (k.joined_at, k.entry_id)) o";

/// `$1` a name, `$2` the lease of an entry, `$3` the limit of rows. Each row has the number of
/// living entries of the queue and the label of one of them, in the order of the queue.
pub(super) const READ_QUEUE: &str = "
SELECT count(*) OVER (), holder
  FROM distributed_queue
 WHERE lock_name = $1 AND expires_at > clock_timestamp()
   AND expires_at <= clock_timestamp() + $2 * interval '1 microsecond'
 ORDER BY joined_at, entry_id
 LIMIT $3";

/// `$1` names, `$2` ids of entries, `$3` the channel of notifications, `$4` the text before the
/// name in a notification. The statement notifies even if it finds no entry behind the removed
/// entry. A contender may be joining at the same moment: the statement does not see the uncommitted
/// entry of that contender, and the contender still counts the removed entry as ahead.
pub(super) const LEAVE_QUEUES: &str = "
WITH gone AS (
    DELETE FROM distributed_queue
     WHERE lock_name = ANY ($1::text[]) AND (entry_id = ANY ($2::int8[]) OR expires_at <= \
         clock_timestamp())
    RETURNING lock_name
) SELECT pg_notify($3, $4 || queue.lock_name) FROM (SELECT DISTINCT lock_name FROM gone) \
    queue";

pub(super) const REMOVE_EXPIRED_ENTRIES: &str =
    "DELETE FROM distributed_queue WHERE expires_at <= clock_timestamp()";
