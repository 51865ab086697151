//! What the tables must be, and the question that asks the catalogue what they are.

use sqlx::{PgConnection, Row as _};

use super::context::Shared;
use crate::shape::{Difference, Found, KEY, STORAGE, Table, UNTOUCHED, WRITES, differences};

const LOGGED: &str = "an ordinary table that survives a crash";
const TIME: &str = "timestamp with time zone not null";
const NUMBER: &str = "bigint not null";
const TOKEN: &str = "bigint not null with a check of its range";

fn tables() -> Vec<Table> {
    vec![
        (
            "distributed_lock",
            vec![
                (STORAGE, LOGGED),
                (WRITES, UNTOUCHED),
                (KEY, "lock_name"),
                ("lock_name", "text collate C not null"),
                ("holder_id", "uuid"),
                ("token", TOKEN),
                ("expires_at", TIME),
                ("acquired_at", TIME),
                ("holder", "text not null"),
                ("meta", "text"),
                ("nonce", "uuid"),
                ("wanted_by", NUMBER),
                ("wanted_until", TIME),
            ],
        ),
        (
            "distributed_record",
            vec![
                (STORAGE, LOGGED),
                (WRITES, UNTOUCHED),
                (KEY, "record_key"),
                ("record_key", "text collate C not null"),
                ("version", TOKEN),
                ("value", "bytea not null"),
                ("deleted", "boolean not null"),
                ("written_at", TIME),
            ],
        ),
        (
            "distributed_meta",
            vec![
                (STORAGE, LOGGED),
                (WRITES, UNTOUCHED),
                (KEY, "id"),
                ("id", "integer not null with a check of its range"),
                ("schema_version", NUMBER),
                ("epoch", "text not null"),
                ("created_at", TIME),
                ("reaped_at", "timestamp with time zone"),
            ],
        ),
    ]
}

/// For each part of each table that is there: the table, the part, and what it is. Of the checks
/// only those of a range are looked for. An index counts that is unique for one whole column, for
/// every row and at once, and compares as the column does: the statement that takes a lock can do
/// with no other. Quotes are left out, because `quote_all_identifiers` puts them everywhere.
pub(super) const PARTS: &str = "
WITH ours AS (
    SELECT c.oid, c.relname::text AS name, c.relkind, c.relpersistence
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = current_schema()
       AND c.relname IN ('distributed_lock', 'distributed_record', 'distributed_meta'))
SELECT name, 'storage',
       CASE WHEN relkind = 'r' THEN 'an ordinary table' ELSE 'of the kind ' || relkind::text END ||
       CASE relpersistence WHEN 'p' THEN ' that survives a crash' WHEN 'u' THEN ' that is UNLOGGED'
                           ELSE ' that is TEMPORARY' END
  FROM ours
UNION ALL
SELECT name, 'triggers and rules', coalesce(
           (SELECT string_agg(meddler, ' and ' ORDER BY meddler)
              FROM (SELECT 'the trigger ' || tgname AS meddler FROM pg_trigger
                     WHERE tgrelid = ours.oid AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 3 = 3
                    UNION ALL
                    SELECT 'the rule ' || rulename FROM pg_rewrite
                     WHERE ev_class = ours.oid AND ev_type <> '1' AND ev_enabled IN ('O', 'A')) m), 'none')
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
SELECT o.name, 'unique key', a.attname::text
  FROM ours o JOIN pg_index i ON i.indrelid = o.oid
  JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum = i.indkey[0]
 WHERE i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = 1
   AND i.indcollation[0] = a.attcollation";

/// What is otherwise than it must be. A table that is not there is passed over where `some` are
/// enough.
pub(crate) async fn compare(
    connection: &mut PgConnection,
    shared: &Shared,
    some: bool,
) -> Result<Vec<Difference>, sqlx::Error> {
    let question = sqlx::query(shared.statements.parts.text());
    let rows = question.fetch_all(connection).await?;
    let mut found: Vec<Found> = Vec::with_capacity(rows.len());
    for row in &rows {
        found.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
    }
    let prefix = &shared.config.table_prefix;
    Ok(differences(prefix, &tables(), &[], &found, some))
}
