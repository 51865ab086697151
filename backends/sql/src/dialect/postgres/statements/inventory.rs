//! Statements about the tables themselves.

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
