//! Every statement that is sent in normal operation.
//!
//! A batch is one statement over `json_each(?1)`, an array of arrays; identities and values travel beside it as one blob each,
//! cut up by position, because JSON cannot carry bytes. The two statements that nearly all traffic consists of take an array
//! of names instead, and the rest by position too: reading a row's array anew for each of its columns costs more than
//! changing the row. Common parameters: `?3` the boot's id, `?4` now in microseconds since
//! boot, `?5` now in microseconds since 1970.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::shape::PARTS;

/// The statements of one table prefix.
pub(super) struct Statements {
    pub(super) take_one: Sql,
    pub(super) take_alike: Sql,
    pub(super) take: Sql,
    pub(super) acquire: Sql,
    pub(super) renew: Sql,
    pub(super) free_one: Sql,
    pub(super) free: Sql,
    pub(super) take_and_free_alike: Sql,
    pub(super) take_and_free: Sql,
    pub(super) release: Sql,
    pub(super) hand_over: Sql,
    pub(super) force: Sql,
    pub(super) look: Sql,
    pub(super) want: Sql,
    pub(super) keep_places: Sql,
    pub(super) leave_lines: Sql,
    pub(super) clear_lines: Sql,
    pub(super) list: Sql,
    pub(super) create: Sql,
    pub(super) replace: Sql,
    pub(super) delete: Sql,
    pub(super) get: Sql,
    pub(super) scan: Sql,
    pub(super) claim_reaping: Sql,
    pub(super) idle_locks: Sql,
    pub(super) reap_locks: Sql,
    pub(super) idle_records: Sql,
    pub(super) reap_records: Sql,
    pub(super) meta: Sql,
    pub(super) objects: Sql,
    pub(super) parts: Sql,
    pub(super) stocktaking: Sql,
    /// What the tables' names begin with.
    prefix: String,
}

/// One statement's text, cheap to send again.
#[derive(Clone)]
pub(super) struct Sql(Arc<str>);

impl Sql {
    pub(super) fn text(&self) -> SqlStr {
        // Safe: the text is one of the constants below; all that varies is the prefix, which holds nothing but `[a-z0-9_]`.
        AssertSqlSafe(Arc::clone(&self.0)).into_sql_str()
    }
}

impl Statements {
    /// `prefix` was checked by [`SqliteConfig::check`](crate::SqliteConfig::check).
    pub(super) fn new(prefix: &str) -> Self {
        let sql = |text: &str| Sql(prefixed(text, prefix).into());
        Self {
            take_one: sql(&filled(TAKE, &ONE)),
            take_alike: sql(&filled(TAKE, &ALIKE)),
            take: sql(&filled(TAKE, &MANY)),
            acquire: sql(ACQUIRE),
            renew: sql(RENEW),
            free_one: sql(&filled(FREE, &ONE)),
            free: sql(&filled(FREE, &LEASES)),
            take_and_free_alike: sql(&take_and_free(&ALIKE)),
            take_and_free: sql(&take_and_free(&MANY)),
            release: sql(RELEASE),
            hand_over: sql(HAND_OVER),
            force: sql(FORCE),
            look: sql(LOOK),
            want: sql(WANT),
            keep_places: sql(KEEP_PLACES),
            leave_lines: sql(LEAVE_LINES),
            clear_lines: sql(CLEAR_LINES),
            list: sql(LIST),
            create: sql(CREATE),
            replace: sql(REPLACE),
            delete: sql(DELETE),
            get: sql(GET),
            scan: sql(SCAN),
            claim_reaping: sql(CLAIM_REAPING),
            idle_locks: sql(IDLE_LOCKS),
            reap_locks: sql(REAP_LOCKS),
            idle_records: sql(IDLE_RECORDS),
            reap_records: sql(REAP_RECORDS),
            meta: sql(META),
            objects: sql(OBJECTS),
            parts: sql(PARTS),
            stocktaking: sql(STOCKTAKING),
            prefix: prefix.to_owned(),
        }
    }

    /// A migration's text for these tables.
    pub(super) fn script(&self, text: &str) -> SqlStr {
        AssertSqlSafe(prefixed(text, &self.prefix)).into_sql_str()
    }
}

/// Every name of ours begins with `distributed_`, and nothing else does.
fn prefixed(text: &str, prefix: &str) -> String {
    text.replace("distributed_", &format!("{prefix}distributed_"))
}

/// Where the operations of a statement come from: what stands for the row source, an owner, and the columns of a row.
type Source = [(&'static str, &'static str); 6];

/// A batch, as everywhere else.
const MANY: Source = [
    ("{from}", "FROM json_each(?1) AS j"),
    ("{owner}", "substr(?2, j.key * 16 + 1, 16)"),
    ("{0}", "j.value ->> 0"),
    ("{1}", "j.value ->> 1"),
    ("{2}", "j.value ->> 2"),
    ("{3}", "j.value ->> 3"),
];

/// One operation, without the detour over JSON: a lone caller pays nothing for the batches of others.
const ONE: Source = [
    ("{from}", ""),
    ("{owner}", "?2"),
    ("{0}", "?1"),
    ("{1}", "?7"),
    ("{2}", "?8"),
    ("{3}", "?9"),
];

/// A batch of takers that differ in name and owner only, as those of one process mostly do.
const ALIKE: Source = [
    ("{from}", "FROM json_each(?1) AS j"),
    ("{owner}", "substr(?2, j.key * 16 + 1, 16)"),
    ("{0}", "j.value"),
    ("{1}", "?7"),
    ("{2}", "?8"),
    ("{3}", "?9"),
];

/// A batch of leases: names, owners, and tokens of 16 digits each in one blob, 0 for none.
const LEASES: Source = [
    ("{from}", "FROM json_each(?1) AS j"),
    ("{owner}", "substr(?2, j.key * 16 + 1, 16)"),
    ("{0}", "j.value"),
    (
        "{1}",
        "nullif(CAST(substr(?7, j.key * 16 + 1, 16) AS INTEGER), 0)",
    ),
    ("{2}", "NULL"),
    ("{3}", "NULL"),
];

/// The same beside a batch of takers.
const LEASES_BESIDE: Source = [
    ("{from}", "FROM json_each(?10) AS j"),
    ("{owner}", "substr(?11, j.key * 16 + 1, 16)"),
    ("{0}", "j.value"),
    (
        "{1}",
        "nullif(CAST(substr(?12, j.key * 16 + 1, 16) AS INTEGER), 0)",
    ),
    ("{2}", "NULL"),
    ("{3}", "NULL"),
];

/// Takes and frees in one transaction, sent as a whole: four answers, of which the second and the third count rows.
fn take_and_free(takers: &Source) -> String {
    let (take, free) = (filled(TAKE, takers), filled(FREE, &LEASES_BESIDE));
    format!("BEGIN IMMEDIATE; {take}; {free}; COMMIT")
}

fn filled(text: &str, source: &Source) -> String {
    source.iter().fold(text.to_owned(), |text, (slot, value)| {
        text.replace(slot, value)
    })
}

/// Rows of name, time to live, label, meta; `?6` this process. Takes what [`ACQUIRE`] would give a token equal to the wall
/// clock, which is nearly always all of it. How many rows it changed is all that must come back then, no row has to.
const TAKE: &str = "
INSERT INTO distributed_lock AS l
    (lock_name, holder_id, token, boot_id, expires_at, acquired_at, holder, meta)
SELECT {0}, {owner}, ?5, ?3, ?4 + {1}, ?5, {2}, {3} {from} WHERE true
ON CONFLICT (lock_name) DO UPDATE SET
    holder_id = excluded.holder_id,
    token = ?5,
    boot_id = ?3,
    expires_at = excluded.expires_at,
    acquired_at = ?5,
    holder = excluded.holder,
    meta = excluded.meta,
    nonce = NULL,
    wanted_until = CASE WHEN l.wanted_by = ?6 OR l.boot_id <> ?3 THEN 0 ELSE l.wanted_until END
WHERE l.token < ?5
  AND (l.holder_id IS NULL
    OR l.expires_at <= ?4
    OR (l.boot_id <> ?3 AND length(l.boot_id) = 16))";

/// Rows of name, token or null; `?6` this process. Frees what nobody else waits for. As with [`TAKE`], the number of rows
/// says it all when it is all of them.
const FREE: &str = "
UPDATE distributed_lock AS l SET
    holder_id = NULL, boot_id = ?3, expires_at = ?4, holder = '', meta = NULL, nonce = NULL
  {from}
 WHERE l.lock_name = {0}
   AND l.holder_id = {owner}
   AND l.token = ifnull({1}, l.token)
   AND (l.wanted_until <= ?4 OR l.wanted_by = ?6)";

/// `?1` rows of name, time to live, label, meta; `?2` owners; `?6` this process.
///
/// The row of a name is free when nobody stands in it, when its lease is over, or when it is from another boot. Whoever
/// stands in it already gets the same token again. The token is the higher of the previous one plus one and the wall clock.
const ACQUIRE: &str = "
INSERT INTO distributed_lock AS l
    (lock_name, holder_id, token, boot_id, expires_at, acquired_at, holder, meta)
SELECT j.value ->> 0, substr(?2, j.key * 16 + 1, 16), ?5, ?3, ?4 + (j.value ->> 1), ?5, j.value ->> 2, j.value ->> 3
  FROM json_each(?1) AS j WHERE true
ON CONFLICT (lock_name) DO UPDATE SET
    token = CASE WHEN l.holder_id = excluded.holder_id AND l.boot_id = ?3 AND l.expires_at > ?4
            THEN l.token ELSE max(l.token + 1, ?5) END,
    acquired_at = CASE WHEN l.holder_id = excluded.holder_id AND l.boot_id = ?3 AND l.expires_at > ?4
            THEN l.acquired_at ELSE ?5 END,
    nonce = CASE WHEN l.holder_id = excluded.holder_id AND l.boot_id = ?3 AND l.expires_at > ?4
            THEN l.nonce END,
    wanted_until = CASE WHEN l.wanted_by = ?6 OR l.boot_id <> ?3 THEN 0 ELSE l.wanted_until END,
    holder_id = excluded.holder_id,
    boot_id = ?3,
    expires_at = excluded.expires_at,
    holder = excluded.holder,
    meta = excluded.meta
WHERE l.holder_id IS NULL
   OR l.holder_id = excluded.holder_id
   OR l.expires_at <= ?4
   OR (l.boot_id <> ?3 AND length(l.boot_id) = 16)
RETURNING lock_name, token";

/// `?1` rows of name, time to live, token or null, ticket step (0 keep, 1 issue, 2 redeem); `?2` owners; `?6` nonces.
const RENEW: &str = "
UPDATE distributed_lock AS l SET
    expires_at = ?4 + (j.value ->> 1),
    nonce = CASE j.value ->> 3 WHEN 0 THEN l.nonce WHEN 1 THEN substr(?6, j.key * 16 + 1, 16) END
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.holder_id = substr(?2, j.key * 16 + 1, 16)
   AND l.boot_id = ?3 AND l.expires_at > ?4
   AND (j.value ->> 2 IS NULL OR l.token = j.value ->> 2)
   AND (j.value ->> 3 <> 2 OR l.nonce = substr(?6, j.key * 16 + 1, 16))
RETURNING lock_name, token";

/// `?1` rows of name, token or null; `?2` owners; `?6` this process.
const RELEASE: &str = "
UPDATE distributed_lock AS l SET
    holder_id = NULL, boot_id = ?3, expires_at = ?4, holder = '', meta = NULL, nonce = NULL
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.holder_id = substr(?2, j.key * 16 + 1, 16)
   AND (j.value ->> 1 IS NULL OR l.token = j.value ->> 1)
RETURNING lock_name, wanted_until > ?4 AND wanted_by <> ?6";

/// `?1` rows of name, time to live, label, meta, token or null; `?2` owners; `?6` next owners.
const HAND_OVER: &str = "
UPDATE distributed_lock AS l SET
    holder_id = substr(?6, j.key * 16 + 1, 16),
    token = max(l.token + 1, ?5),
    expires_at = ?4 + (j.value ->> 1),
    acquired_at = ?5,
    holder = j.value ->> 2,
    meta = j.value ->> 3,
    nonce = NULL
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.holder_id = substr(?2, j.key * 16 + 1, 16)
   AND l.boot_id = ?3 AND l.expires_at > ?4
   AND (j.value ->> 4 IS NULL OR l.token = j.value ->> 4)
RETURNING lock_name, token";

/// `?1` rows of name, token. The text in `meta` is [`FORCED`](crate::dialect::FORCED).
const FORCE: &str = "
UPDATE distributed_lock AS l SET
    holder_id = NULL, expires_at = ?4, holder = '', meta = 'force-released', nonce = NULL
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.token = j.value ->> 1
   AND l.holder_id IS NOT NULL AND l.boot_id = ?3 AND l.expires_at > ?4
RETURNING lock_name";

/// `?1` names.
const LOOK: &str = "
SELECT lock_name, holder_id, token, boot_id, expires_at, acquired_at, holder, meta, wanted_by, wanted_until
  FROM distributed_lock
 WHERE lock_name IN (SELECT value FROM json_each(?1))";

/// `?1` names; `?2` this process; `?3` until when; `?4` until when a mark stands that is renewed. Where another process's
/// stands for longer, it becomes the mark of several, 0.
const WANT: &str = "
UPDATE distributed_lock SET wanted_by = CASE WHEN wanted_until > ?4 THEN 0 ELSE ?2 END, wanted_until = ?3
 WHERE lock_name IN (SELECT value FROM json_each(?1))
   AND holder_id IS NOT NULL
   AND (wanted_by NOT IN (?2, 0) OR wanted_until <= ?4)";

/// `?1` from, `?2` but not this one, `?5` below (null = no bound: every blob is above every text), `?6` how many.
const LIST: &str = "
SELECT lock_name, holder_id, token, boot_id, expires_at, acquired_at, holder, meta, wanted_by, wanted_until
  FROM distributed_lock
 WHERE lock_name >= ?1
   AND lock_name < coalesce(?5, x'')
   AND lock_name IS NOT ?2
   AND holder_id IS NOT NULL AND boot_id = ?3 AND expires_at > ?4
 ORDER BY lock_name
 LIMIT ?6";

/// `?1` rows of key, start, length; `?2` values. A tombstone's version is passed, never repeated.
const CREATE: &str = "
INSERT INTO distributed_record AS r (record_key, version, value, deleted, boot_id, written_at)
SELECT j.value ->> 0, ?5, substr(?2, (j.value ->> 1) + 1, j.value ->> 2), 0, ?3, ?4
  FROM json_each(?1) AS j WHERE true
ON CONFLICT (record_key) DO UPDATE SET
    version = max(r.version + 1, ?5), value = excluded.value, deleted = 0, boot_id = ?3, written_at = ?4
WHERE r.deleted = 1
RETURNING record_key, version";

/// `?1` rows of key, start, length, version; `?2` values.
const REPLACE: &str = "
UPDATE distributed_record AS r SET
    version = max(r.version + 1, ?5),
    value = substr(?2, (j.value ->> 1) + 1, j.value ->> 2),
    boot_id = ?3, written_at = ?4
  FROM json_each(?1) AS j
 WHERE r.record_key = j.value ->> 0 AND r.version = j.value ->> 3 AND r.deleted = 0
RETURNING record_key, version";

/// `?1` rows of key, version. The row stays as a tombstone until it is reaped.
const DELETE: &str = "
UPDATE distributed_record AS r SET value = x'', deleted = 1, boot_id = ?3, written_at = ?4
  FROM json_each(?1) AS j
 WHERE r.record_key = j.value ->> 0 AND r.version = j.value ->> 1 AND r.deleted = 0
RETURNING record_key, version";

/// `?1` keys.
const GET: &str = "
SELECT record_key, version, value, boot_id, written_at
  FROM distributed_record
 WHERE record_key IN (SELECT value FROM json_each(?1)) AND deleted = 0";

/// As [`LIST`]: `?1` from, `?2` but not this one, `?3` below, `?4` how many.
const SCAN: &str = "
SELECT record_key, version, value, boot_id, written_at
  FROM distributed_record
 WHERE record_key >= ?1
   AND record_key < coalesce(?3, x'')
   AND record_key IS NOT ?2
   AND deleted = 0
 ORDER BY record_key
 LIMIT ?4";

/// `?1` how long ago the last turn must be.
const CLAIM_REAPING: &str = "
UPDATE distributed_meta SET reaped_boot = ?3, reaped_at = ?4
 WHERE id = 1 AND (reaped_at IS NULL OR reaped_boot IS NOT ?3 OR reaped_at <= ?4 - ?1)
RETURNING id";

/// `?1` after, `?2` how many, `?6` how long idle: one page of the table, and which of its rows are idle.
///
/// Since when a row of another boot is idle is not known, but certainly since this boot. A row whose token is not below the
/// wall clock stays: a new row's token would not be higher.
const IDLE_LOCKS: &str = "
SELECT lock_name,
       token < ?5 AND CASE WHEN boot_id = ?3 THEN expires_at <= ?4 - ?6 ELSE ?4 >= ?6 END
  FROM distributed_lock WHERE lock_name > ?1 ORDER BY lock_name LIMIT ?2";

/// `?1` names, `?6` how long idle.
const REAP_LOCKS: &str = "
DELETE FROM distributed_lock
 WHERE lock_name IN (SELECT value FROM json_each(?1))
   AND token < ?5 AND CASE WHEN boot_id = ?3 THEN expires_at <= ?4 - ?6 ELSE ?4 >= ?6 END";

/// As [`IDLE_LOCKS`], for tombstones.
const IDLE_RECORDS: &str = "
SELECT record_key,
       deleted = 1 AND version < ?5 AND CASE WHEN boot_id = ?3 THEN written_at <= ?4 - ?6 ELSE ?4 >= ?6 END
  FROM distributed_record WHERE record_key > ?1 ORDER BY record_key LIMIT ?2";

const REAP_RECORDS: &str = "
DELETE FROM distributed_record
 WHERE record_key IN (SELECT value FROM json_each(?1))
   AND deleted = 1 AND version < ?5 AND CASE WHEN boot_id = ?3 THEN written_at <= ?4 - ?6 ELSE ?4 >= ?6 END";

/// The version counts the table that version 2 adds, which leaves `schema_version` alone.
const META: &str = "
SELECT schema_version + (schema_version = 1
       AND EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'distributed_line')), epoch
  FROM distributed_meta WHERE id = 1";

/// `?1` rows of name and waiter, `?6` the lease of a place. Says each name, and how many are ahead.
/// Both statements travel together.
const KEEP_PLACES: &str = "
INSERT INTO distributed_line (lock_name, waiter, boot_id, ticket, expires_at)
SELECT j.value ->> 0, j.value ->> 1, ?3, ?4, ?4 + ?6 FROM json_each(?1) AS j WHERE true
ON CONFLICT (lock_name, waiter) DO UPDATE SET
    boot_id = excluded.boot_id, expires_at = excluded.expires_at;
SELECT m.lock_name, (SELECT count(*) FROM distributed_line o
                      WHERE o.lock_name = m.lock_name AND o.boot_id = ?3 AND o.expires_at > ?4
                        AND (o.ticket, o.waiter) < (m.ticket, m.waiter))
  FROM json_each(?1) AS j
  JOIN distributed_line m ON m.lock_name = j.value ->> 0 AND m.waiter = j.value ->> 1";

/// `?1` names, `?2` waiters.
const LEAVE_LINES: &str = "
DELETE FROM distributed_line
 WHERE lock_name IN (SELECT value FROM json_each(?1))
   AND (waiter IN (SELECT value FROM json_each(?2)) OR boot_id <> ?3 OR expires_at <= ?4)";

const CLEAR_LINES: &str = "DELETE FROM distributed_line WHERE boot_id <> ?3 OR expires_at <= ?4";

/// How many tables and other objects the file holds, and how many of ours.
const OBJECTS: &str = "
SELECT count(*),
       coalesce(sum(name IN ('distributed_lock', 'distributed_record', 'distributed_meta')), 0)
  FROM sqlite_master";

/// Locks held, free, stale; the longest time since one went stale; records and tombstones.
const STOCKTAKING: &str = "
SELECT count(*) FILTER (WHERE holder_id IS NOT NULL AND boot_id = ?3 AND expires_at > ?4),
       count(*) FILTER (WHERE holder_id IS NULL),
       count(*) FILTER (WHERE holder_id IS NOT NULL AND NOT (boot_id = ?3 AND expires_at > ?4)),
       max(CASE WHEN holder_id IS NOT NULL AND NOT (boot_id = ?3 AND expires_at > ?4)
           THEN iif(boot_id = ?3, ?4 - expires_at, ?4) END),
       (SELECT count(*) FROM distributed_record WHERE deleted = 0),
       (SELECT count(*) FROM distributed_record WHERE deleted = 1)
  FROM distributed_lock";
