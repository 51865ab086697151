//! Statements that read rows, and the statements that set waiter hints.

/// The columns of a lock's row. Times and the remaining times of lease and hint are in
/// microseconds. An infinite time is reported as null: it cannot become a number, and one such row
/// would make the server refuse the whole statement.
pub(super) const LOCK_COLUMNS: &str = "lock_name, holder_id, token,
       (CASE WHEN isfinite(expires_at) THEN extract(epoch FROM expires_at - clock_timestamp()) * \
           1000000 END)::int8,
       (CASE WHEN isfinite(acquired_at) THEN extract(epoch FROM acquired_at) * 1000000 END)::int8,
       holder, meta, hint_id,
       (CASE WHEN isfinite(hint_until) THEN extract(epoch FROM hint_until - \
           clock_timestamp()) * 1000000 END)::int8,
       nonce";

/// `$1` names.
pub(super) const LOOK: &str = "
SELECT {lock_columns}
  FROM distributed_lock WHERE lock_name = ANY ($1::text[])";

/// `$1` names; `$2` this process's hint id; `$3` the lifetime of the hint; `$4` the remaining
/// lifetime at which a hint is renewed. A live hint of another process becomes the hint of several
/// processes, 0.
pub(super) const SET_HINTS: &str = "
UPDATE distributed_lock l SET
       hint_id = CASE WHEN l.hint_until > clock_timestamp() + $4 * interval '1 microsecond' \
           THEN 0 ELSE $2 END,
       hint_until = clock_timestamp() + $3 * interval '1 microsecond'
  FROM (SELECT lock_name FROM distributed_lock
         WHERE lock_name = ANY ($1::text[]) AND holder_id IS NOT NULL
           AND (hint_id NOT IN ($2, 0) OR hint_until <= clock_timestamp() + $4 * interval '1 \
               microsecond')
         ORDER BY lock_name FOR UPDATE SKIP LOCKED) k
 WHERE l.lock_name = k.lock_name AND l.holder_id IS NOT NULL";

/// `$1` a name; the other parameters are those of [`SET_HINTS`]. Returns whether the lock is held
/// and has a hint that stands for this process, so that the release will notify this process.
pub(super) const SET_HINT: &str = "
WITH marked AS (
    UPDATE distributed_lock SET
           hint_id = CASE WHEN hint_until > clock_timestamp() + $4 * interval '1 microsecond' \
               THEN 0 ELSE $2 END,
           hint_until = clock_timestamp() + $3 * interval '1 microsecond'
     WHERE lock_name = $1 AND holder_id IS NOT NULL AND expires_at > clock_timestamp()
       AND (hint_id NOT IN ($2, 0) OR hint_until <= clock_timestamp() + $4 * interval '1 \
           microsecond')
    RETURNING 1
) SELECT EXISTS (SELECT FROM marked)
      OR EXISTS (SELECT FROM distributed_lock
                  WHERE lock_name = $1 AND holder_id IS NOT NULL AND expires_at > clock_timestamp()
                    AND hint_id IN ($2, 0) AND hint_until > clock_timestamp() + $4 * interval \
                        '1 microsecond')";

/// `$1` the first name, `$2` a name to leave out (the last name of the page before), `$3` the first
/// name above the range, `$4` the largest number of rows.
pub(super) const LIST: &str = "
SELECT {lock_columns}
  FROM distributed_lock
 WHERE lock_name >= $1
   AND ($2::text IS NULL OR lock_name <> $2)
   AND ($3::text IS NULL OR lock_name < $3)
   AND holder_id IS NOT NULL AND expires_at > clock_timestamp()
 ORDER BY lock_name
 LIMIT $4";

/// `$1` keys.
pub(super) const GET: &str = "
SELECT record_key, version, value,
       (CASE WHEN isfinite(written_at) THEN extract(epoch FROM clock_timestamp() - written_at) * \
           1000000 END)::int8
  FROM distributed_record WHERE record_key = ANY ($1::text[]) AND NOT deleted";

/// `$1` keys.
pub(super) const VERSIONS: &str = "
SELECT record_key, version FROM distributed_record WHERE record_key = ANY ($1::text[]) AND NOT \
    deleted";

/// The same parameters as [`LIST`], with keys instead of names.
pub(super) const SCAN: &str = "
SELECT record_key, version, value,
       (CASE WHEN isfinite(written_at) THEN extract(epoch FROM clock_timestamp() - written_at) * \
           1000000 END)::int8
  FROM distributed_record
 WHERE record_key >= $1
   AND ($2::text IS NULL OR record_key <> $2)
   AND ($3::text IS NULL OR record_key < $3)
   AND NOT deleted
 ORDER BY record_key
 LIMIT $4";
