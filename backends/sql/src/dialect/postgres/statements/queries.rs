//! Statements that read, and the statements of waiter hints, of the store queue, of the reaper and
//! of the tables themselves.

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
           1000000 END)::int8,
       (extract(epoch FROM clock_timestamp()) * 1000000)::int8
  FROM distributed_record WHERE record_key = ANY ($1::text[]) AND NOT deleted";

/// `$1` keys.
pub(super) const VERSIONS: &str = "
SELECT record_key, version FROM distributed_record WHERE record_key = ANY ($1::text[]) AND NOT \
    deleted";

/// The same parameters as [`LIST`], with keys instead of names.
pub(super) const SCAN: &str = "
SELECT record_key, version, value,
       (CASE WHEN isfinite(written_at) THEN extract(epoch FROM clock_timestamp() - written_at) * \
           1000000 END)::int8,
       (extract(epoch FROM clock_timestamp()) * 1000000)::int8
  FROM distributed_record
 WHERE record_key >= $1
   AND ($2::text IS NULL OR record_key <> $2)
   AND ($3::text IS NULL OR record_key < $3)
   AND NOT deleted
 ORDER BY record_key
 LIMIT $4";

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

/// The version of the tables, and the name of their history.
pub(super) const META: &str = "
SELECT schema_version, epoch FROM distributed_meta WHERE id = 1";

pub(super) const SCHEMA: &str = "
coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
           WHERE n.nspname = ANY (current_schemas(false))
             AND c.relname IN ('distributed_lock', 'distributed_queue', 'distributed_record',
                               'distributed_meta')
           ORDER BY array_position(current_schemas(false), n.nspname) LIMIT 1), current_schema())";

/// The tables of distlock that exist, all from one snapshot. `to_regclass` would look up each name
/// at another moment, and could find only some of the tables that another process is committing.
pub(super) const TABLES_PRESENT: &str = "
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = current_schema() AND c.relname IN ('distributed_lock', \
     'distributed_queue', 'distributed_record', 'distributed_meta')";

/// The numbers of held, free and expired locks; the longest time since one expired; the numbers of
/// records and tombstones.
pub(super) const ROW_COUNTS: &str = "
SELECT count(*) FILTER (WHERE holder_id IS NOT NULL AND expires_at > clock_timestamp()),
       count(*) FILTER (WHERE holder_id IS NULL),
       count(*) FILTER (WHERE holder_id IS NOT NULL AND expires_at <= clock_timestamp()),
       (extract(epoch FROM max(clock_timestamp() - expires_at)
                FILTER (WHERE holder_id IS NOT NULL AND expires_at <= clock_timestamp() AND \
                    isfinite(expires_at)))
        * 1000000)::int8,
       (SELECT count(*) FROM distributed_record WHERE NOT deleted),
       (SELECT count(*) FROM distributed_record WHERE deleted)
  FROM distributed_lock";

/// For each part of each existing table: the table, the part, and the value of the part. Only
/// checks of a range are reported. An index is reported as a unique key if it has whole columns,
/// covers every row, is checked immediately, and has the collations of the columns: the statement
/// of an acquire needs such an index. Quotes are removed, because the setting
/// `quote_all_identifiers` adds quotes to every name.
pub(super) const SCHEMA_PARTS: &str = "
WITH ours AS (
    SELECT c.oid, c.relname::text AS name, c.relkind, c.relpersistence
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = current_schema()
       AND c.relname IN ('distributed_lock', 'distributed_queue', 'distributed_record',
                         'distributed_meta'))
SELECT name, 'storage',
       CASE WHEN relkind = 'r' THEN 'an ordinary table' ELSE 'of the kind ' || relkind::text END ||
       CASE relpersistence WHEN 'p' THEN ' that survives a crash' WHEN 'u' THEN ' that is UNLOGGED'
                           ELSE ' that is TEMPORARY' END
  FROM ours
UNION ALL
SELECT name, 'triggers and rules', coalesce(
           (SELECT string_agg(meddler, ' and ' ORDER BY meddler)
              FROM (SELECT 'the trigger ' || tgname AS meddler FROM pg_trigger
                     WHERE tgrelid = ours.oid AND NOT tgisinternal AND tgenabled IN ('O', 'A') \
                         AND tgtype & 3 = 3
                    UNION ALL
                    SELECT 'the rule ' || rulename FROM pg_rewrite
                     WHERE ev_class = ours.oid AND ev_type <> '1' AND ev_enabled IN ('O', 'A')) \
                         m), 'none')
  FROM ours
UNION ALL
SELECT o.name, a.attname::text,
       replace(format_type(a.atttypid, a.atttypmod), '\"', '') ||
       CASE WHEN a.attname IN ('lock_name', 'record_key') AND a.attcollation <> 0
            THEN ' collate ' ||
                 (SELECT CASE WHEN oid = 950 THEN 'C'
                              ELSE collnamespace::regnamespace::text || '.' || collname END
                    FROM pg_collation WHERE oid = a.attcollation) ELSE '' END ||
       CASE WHEN a.attnotnull THEN ' not null' ELSE '' END ||
       CASE WHEN EXISTS (
            SELECT FROM pg_constraint k
             WHERE k.conrelid = o.oid AND k.contype = 'c' AND k.convalidated
               AND k.conkey = ARRAY[a.attnum]
               AND (replace(pg_get_constraintdef(k.oid), '\"', '')
                        LIKE '%(' || a.attname::text || ' >= 1)%<= ''9007199254740991''%'
                    OR replace(pg_get_constraintdef(k.oid), '\"', '')
                        LIKE '%(' || a.attname::text || ' = 1)%'))
            THEN ' with a check of its range' ELSE '' END
  FROM ours o JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT o.name, 'unique key', string_agg(a.attname::text, ', ' ORDER BY k.place)
  FROM ours o JOIN pg_index i ON i.indrelid = o.oid
 CROSS JOIN unnest(i.indkey::int2[], i.indcollation::oid[])
       WITH ORDINALITY k (attnum, sorted_by, place)
  LEFT JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum = k.attnum
 WHERE i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
   AND k.place <= i.indnkeyatts
 GROUP BY o.name, i.indexrelid
HAVING bool_and(coalesce(a.attcollation = k.sorted_by, false))";
