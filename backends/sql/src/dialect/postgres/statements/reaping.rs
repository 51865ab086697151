//! Statements of the reaper.

/// `$1` how long ago the last turn must be. A turn in the future was taken when the clock was
/// wrong, so that it does not count.
pub(super) const CLAIM_REAPING: &str = "
UPDATE distributed_meta SET reaped_at = clock_timestamp()
 WHERE id = 1 AND (reaped_at IS NULL OR reaped_at <= clock_timestamp() - $1 * interval '1 \
     microsecond'
                   OR reaped_at > clock_timestamp())";

/// `$1` the key before the page, `$2` the number of rows, `$3` how long idle: one page of the
/// table, and whether each row is idle. A row whose token is not below the clock stays: a new row's
/// token would not be higher.
pub(super) const IDLE_LOCKS: &str = "
SELECT lock_name,
       token < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND expires_at <= clock_timestamp() - $3 * interval '1 microsecond'
  FROM distributed_lock WHERE lock_name > $1 ORDER BY lock_name LIMIT $2";

/// `$1` names, `$2` how long idle.
pub(super) const REAP_LOCKS: &str = "
DELETE FROM distributed_lock l
 USING (SELECT lock_name FROM distributed_lock WHERE lock_name = ANY ($1::text[])
         ORDER BY lock_name FOR UPDATE SKIP LOCKED) k
 WHERE l.lock_name = k.lock_name
   AND l.token < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND l.expires_at <= clock_timestamp() - $2 * interval '1 microsecond'";

/// As [`IDLE_LOCKS`], for tombstones.
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
