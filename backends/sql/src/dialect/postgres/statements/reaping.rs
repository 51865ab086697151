//! Statements of the reaper.

/// Claims a run of the reaper. `$1` the least time since the last claim. An earlier claim with a
/// time in the future does not count: the clock was wrong at that time.
pub(super) const CLAIM_REAPING: &str = "
UPDATE distributed_meta SET reaped_at = clock_timestamp()
 WHERE id = 1 AND (reaped_at IS NULL OR reaped_at <= clock_timestamp() - $1 * interval '1 \
     microsecond'
                   OR reaped_at > clock_timestamp())";

/// One page of the table: the key of each row, and whether the row is idle. `$1` the key before the
/// page, `$2` the number of rows, `$3` the time after which an unused row is idle. A row is not
/// idle if its token is not below the present time: the next grant would create a new row, whose
/// token is the time, and that token would not be higher.
pub(super) const IDLE_LOCKS: &str = "
SELECT lock_name,
       token < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND expires_at <= clock_timestamp() - $3 * interval '1 microsecond'
  FROM distributed_lock WHERE lock_name > $1 ORDER BY lock_name LIMIT $2";

/// Removes idle rows. `$1` names, `$2` the time after which an unused row is idle.
pub(super) const REAP_LOCKS: &str = "
DELETE FROM distributed_lock l
 USING (SELECT lock_name FROM distributed_lock WHERE lock_name = ANY ($1::text[])
         ORDER BY lock_name FOR UPDATE SKIP LOCKED) k
 WHERE l.lock_name = k.lock_name
   AND l.token < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND l.expires_at <= clock_timestamp() - $2 * interval '1 microsecond'";

/// The same as [`IDLE_LOCKS`] for the record table, where only tombstones are idle.
pub(super) const IDLE_RECORDS: &str = "
SELECT record_key,
       deleted AND version < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND written_at <= clock_timestamp() - $3 * interval '1 microsecond'
  FROM distributed_record WHERE record_key > $1 ORDER BY record_key LIMIT $2";

pub(super) const REAP_RECORDS: &str = "
DELETE FROM distributed_record l
 USING (SELECT record_key FROM distributed_record WHERE record_key = ANY ($1::text[])
         ORDER BY record_key FOR UPDATE SKIP LOCKED) k
 WHERE l.record_key = k.record_key
   AND l.deleted AND l.version < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND l.written_at <= clock_timestamp() - $2 * interval '1 microsecond'";
