//! Every statement that is sent in normal operation.
//!
//! A batch is one statement over `unnest` of one array for each column. It first locks the rows it may change, in the order
//! of their names, so that no two batches wait for each other in a circle, and leaves out rows that others have locked
//! (`SKIP LOCKED`): those operations are sent singly afterwards. A single operation is the same statement over its values,
//! without that first step: it waits a little for its row.
//!
//! What a condition says about the time is asked again after a row was waited for: `clock_timestamp()` is the time of asking,
//! and at READ COMMITTED a changed row is looked at again.

use std::{fmt::Write as _, sync::Arc};

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::shape::PARTS;
use crate::op::Kind;

/// The statements of one table prefix.
pub(super) struct Statements {
    one: Batches,
    many: Batches,
    pub(super) look: Sql,
    pub(super) versions: Sql,
    pub(super) want: Sql,
    pub(super) arm: Sql,
    pub(super) keep_places: Sql,
    pub(super) leave_lines: Sql,
    pub(super) clear_lines: Sql,
    pub(super) list: Sql,
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

struct Batches {
    acquire: Sql,
    renew: Sql,
    release: Sql,
    hand_over: Sql,
    force: Sql,
    create: Sql,
    replace: Sql,
    delete: Sql,
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
    /// `prefix` was checked by [`ServerConfig::check`](crate::ServerConfig::check).
    pub(super) fn new(prefix: &str) -> Self {
        let sql = |text: &str| Sql(prefixed(text, prefix).into());
        let batches = |lone: bool| Batches {
            acquire: sql(&insert(&ACQUIRE, lone)),
            renew: sql(&update(&RENEW, lone)),
            release: sql(&update(&RELEASE, lone)),
            hand_over: sql(&update(&HAND_OVER, lone)),
            force: sql(&update(&FORCE, lone)),
            create: sql(&insert(&CREATE, lone)),
            replace: sql(&update(&REPLACE, lone)),
            delete: sql(&update(&DELETE, lone)),
        };
        Self {
            one: batches(true),
            many: batches(false),
            look: sql(LOOK),
            versions: sql(VERSIONS),
            want: sql(WANT),
            arm: sql(ARM),
            keep_places: sql(KEEP_PLACES),
            leave_lines: sql(LEAVE_LINES),
            clear_lines: sql(CLEAR_LINES),
            list: sql(LIST),
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

    /// The statement of a batch. A `lone` operation waits for its row.
    pub(super) fn batch(&self, kind: Kind, lone: bool) -> &Sql {
        let batches = if lone { &self.one } else { &self.many };
        match kind {
            Kind::Renew => &batches.renew,
            Kind::Release => &batches.release,
            Kind::HandOver => &batches.hand_over,
            Kind::Acquire => &batches.acquire,
            Kind::Force => &batches.force,
            Kind::Create => &batches.create,
            Kind::Replace => &batches.replace,
            Kind::Delete => &batches.delete,
        }
    }

    /// A migration's text for these tables.
    pub(super) fn script(&self, text: &str) -> String {
        prefixed(text, &self.prefix)
    }

    /// The schema that the tables are in: this one, or the first along the `search_path` that has one of them. Where none has,
    /// they are made in the first that there is.
    pub(super) fn schema(&self, known: Option<&str>) -> String {
        match known {
            // As bytes, because what a quote means is a setting.
            Some(known) => {
                let hex = known.bytes().fold(String::new(), |mut hex, byte| {
                    let _ = write!(hex, "{byte:02x}");
                    hex
                });
                format!("convert_from(decode('{hex}', 'hex'), 'UTF8')")
            }
            None => prefixed(SCHEMA, &self.prefix),
        }
    }

    /// Where releases are told.
    pub(super) fn channel(&self) -> String {
        prefixed("distributed_lock", &self.prefix)
    }
}

/// Every name of ours begins with `distributed_`, and nothing else does.
fn prefixed(text: &str, prefix: &str) -> String {
    text.replace("distributed_", &format!("{prefix}distributed_"))
}

/// A batch that only changes rows that are there.
struct Update {
    /// The operations as rows `k`.
    input: &'static str,
    table: &'static str,
    key: &'static str,
    /// Which row `l` each of them may change.
    when: &'static str,
    set: &'static str,
    /// Of each row that was changed, beside its key. `{wanted}` is whether another process waits for it.
    returning: &'static str,
    /// This process, for `{wanted}`.
    mark: &'static str,
    /// Where others who wait are told of it.
    tell: Option<&'static str>,
}

fn update(it: &Update, lone: bool) -> String {
    let Update {
        input,
        table,
        key,
        when,
        set,
        returning,
        mark,
        tell,
    } = it;
    let wanted = format!("(l.wanted_until > clock_timestamp() AND l.wanted_by <> {mark})");
    let tell = tell.map_or_else(String::new, |channel| {
        format!(", CASE WHEN {wanted} THEN pg_notify({channel}, l.{key})::text END")
    });
    let update = |rows: &str| {
        format!(
            "UPDATE {table} l SET {set} FROM {rows} WHERE l.{key} = k.key AND {when}
    RETURNING l.{key}, {returning}{tell}"
        )
    };
    let text = if lone {
        update(&values(input))
    } else {
        format!(
            "WITH locked AS MATERIALIZED (
    SELECT k.* FROM {input} JOIN {table} l ON l.{key} = k.key WHERE {when}
     ORDER BY l.{key} FOR UPDATE OF l SKIP LOCKED
) {}",
            update("locked k")
        )
    };
    text.replace("{wanted}", &wanted)
        .replace("{now_micros}", NOW_MICROS)
}

/// A batch that changes rows that are there, and makes those that are not.
struct Insert {
    /// The operations as rows `k`.
    input: &'static str,
    table: &'static str,
    key: &'static str,
    /// Which row `l` each of them may change.
    when: &'static str,
    set: &'static str,
    columns: &'static str,
    new: &'static str,
    /// What tokens or versions are called here.
    number: &'static str,
}

fn insert(it: &Insert, lone: bool) -> String {
    let Insert {
        input,
        table,
        key,
        when,
        set,
        columns,
        new,
        number,
    } = it;
    let (input, locked, rows) = if lone {
        let input = values(input);
        (
            format!("input AS NOT MATERIALIZED (SELECT * FROM {input})"),
            String::new(),
            "input",
        )
    } else {
        let locked = format!(
            "locked AS MATERIALIZED (
    SELECT k.* FROM input k JOIN {table} l ON l.{key} = k.key WHERE {when}
     ORDER BY l.{key} FOR UPDATE OF l SKIP LOCKED
), "
        );
        (
            format!("input AS (SELECT * FROM {input})"),
            locked,
            "locked",
        )
    };
    format!(
        "WITH {input}, {locked}updated AS (
    UPDATE {table} l SET {set} FROM {rows} k WHERE l.{key} = k.key AND {when}
    RETURNING l.{key}, l.{number}
), inserted AS (
    INSERT INTO {table} AS l ({columns}) SELECT {new} FROM input k
     WHERE NOT EXISTS (SELECT FROM {table} o WHERE o.{key} = k.key)
     ORDER BY k.key COLLATE \"C\"
    ON CONFLICT ({key}) DO NOTHING
    RETURNING l.{key}, l.{number}
) SELECT {key}, {number} FROM updated UNION ALL SELECT {key}, {number} FROM inserted"
    )
    .replace("{now_micros}", NOW_MICROS)
}

/// One row of values instead of rows out of arrays.
fn values(input: &str) -> String {
    input.replace("unnest(", "(SELECT ").replace("[]", "")
}

/// The server's clock in microseconds since 1970: what tokens and versions rise with.
const NOW_MICROS: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";

/// The row of a name is free when nobody stands in it or when its lease is over. Whoever stands in it already gets the same
/// token again. The token is the higher of the previous one plus one and the server's clock. `$6` this process.
///
/// A row that nobody may take is not even locked, so that asking for a held lock writes nothing.
const ACQUIRE: Insert = Insert {
    input: "unnest($1::text[], $2::uuid[], $3::int8[], $4::text[], $5::text[]) AS k (key, owner, ttl, holder, meta)",
    table: "distributed_lock",
    key: "lock_name",
    when: "(l.holder_id IS NULL OR l.expires_at <= clock_timestamp() OR l.holder_id = k.owner)",
    set: "token = CASE WHEN l.holder_id = k.owner AND l.expires_at > clock_timestamp() THEN l.token
                ELSE greatest(l.token + 1, {now_micros}) END,
        acquired_at = CASE WHEN l.holder_id = k.owner AND l.expires_at > clock_timestamp() THEN l.acquired_at
                ELSE clock_timestamp() END,
        nonce = CASE WHEN l.holder_id = k.owner AND l.expires_at > clock_timestamp() THEN l.nonce END,
        wanted_until = CASE WHEN l.wanted_by = $6 THEN 'epoch' ELSE l.wanted_until END,
        holder_id = k.owner,
        expires_at = clock_timestamp() + k.ttl * interval '1 microsecond',
        holder = k.holder, meta = k.meta",
    columns: "lock_name, holder_id, token, expires_at, acquired_at, holder, meta",
    new: "k.key, k.owner, {now_micros}, clock_timestamp() + k.ttl * interval '1 microsecond', clock_timestamp(),
        k.holder, k.meta",
    number: "token",
};

/// Steps of the ticket: 0 keep, 1 issue, 2 redeem.
const RENEW: Update = Update {
    input: "unnest($1::text[], $2::uuid[], $3::int8[], $4::int8[], $5::int4[], $6::uuid[])
           AS k (key, owner, token, ttl, step, nonce)",
    table: "distributed_lock",
    key: "lock_name",
    when: "l.holder_id = k.owner AND (k.token IS NULL OR l.token = k.token) AND l.expires_at > clock_timestamp()
       AND (k.step <> 2 OR l.nonce = k.nonce)",
    set: "expires_at = clock_timestamp() + k.ttl * interval '1 microsecond',
        nonce = CASE k.step WHEN 0 THEN l.nonce WHEN 1 THEN k.nonce END",
    returning: "l.token",
    mark: "NULL",
    tell: None,
};

/// `$4` this process, `$5` where others who wait are told: only where somebody does, because that costs all who commit.
///
/// It grants nothing, so it waits for no disk and no standby. A crash of the server can bring back, for what is left of its
/// lease, a lock that was freed in the last moments before (three times `wal_writer_delay`), and a failover one whose release
/// the standby had not received; every grant that follows on it does wait, and with it what was written before.
const RELEASE: Update = Update {
    input: "unnest($1::text[], $2::uuid[], $3::int8[]) AS k (key, owner, token)",
    table: "distributed_lock",
    key: "lock_name",
    when: "l.holder_id = k.owner AND (k.token IS NULL OR l.token = k.token)",
    set: "holder_id = NULL, expires_at = clock_timestamp(), holder = '', meta = NULL, nonce = NULL",
    returning: "{wanted}, (SELECT set_config('synchronous_commit', 'off', true))",
    mark: "$4",
    tell: Some("$5"),
};

/// `$8` this process.
const HAND_OVER: Update = Update {
    input:
        "unnest($1::text[], $2::uuid[], $3::int8[], $4::uuid[], $5::int8[], $6::text[], $7::text[])
           AS k (key, owner, token, next, ttl, holder, meta)",
    table: "distributed_lock",
    key: "lock_name",
    when: "l.holder_id = k.owner AND (k.token IS NULL OR l.token = k.token) AND l.expires_at > clock_timestamp()",
    set: "holder_id = k.next,
        token = greatest(l.token + 1, {now_micros}),
        expires_at = clock_timestamp() + k.ttl * interval '1 microsecond',
        acquired_at = clock_timestamp(),
        holder = k.holder, meta = k.meta, nonce = NULL",
    returning: "l.token, {wanted}",
    mark: "$8",
    tell: None,
};

/// `$3` this process, `$4` where others who wait are told.
// The text in `meta` is `dialect::FORCED`.
const FORCE: Update = Update {
    input: "unnest($1::text[], $2::int8[]) AS k (key, token)",
    table: "distributed_lock",
    key: "lock_name",
    when: "l.token = k.token AND l.holder_id IS NOT NULL AND l.expires_at > clock_timestamp()",
    set: "holder_id = NULL, expires_at = clock_timestamp(), holder = '', \
          meta = 'force-released', nonce = NULL",
    returning: "{wanted}",
    mark: "$3",
    tell: Some("$4"),
};

/// A tombstone's version is passed, never repeated.
const CREATE: Insert = Insert {
    input: "unnest($1::text[], $2::bytea[]) AS k (key, value)",
    table: "distributed_record",
    key: "record_key",
    when: "l.deleted",
    set: "version = greatest(l.version + 1, {now_micros}), value = k.value, deleted = false, written_at = clock_timestamp()",
    columns: "record_key, version, value, deleted, written_at",
    new: "k.key, {now_micros}, k.value, false, clock_timestamp()",
    number: "version",
};

const REPLACE: Update = Update {
    input: "unnest($1::text[], $2::bytea[], $3::int8[]) AS k (key, value, version)",
    table: "distributed_record",
    key: "record_key",
    when: "l.version = k.version AND NOT l.deleted",
    set: "version = greatest(l.version + 1, {now_micros}), value = k.value, written_at = clock_timestamp()",
    returning: "l.version",
    mark: "NULL",
    tell: None,
};

/// The row stays as a tombstone until it is reaped.
const DELETE: Update = Update {
    input: "unnest($1::text[], $2::int8[]) AS k (key, version)",
    table: "distributed_record",
    key: "record_key",
    when: "l.version = k.version AND NOT l.deleted",
    set: "value = '', deleted = true, written_at = clock_timestamp()",
    returning: "l.version",
    mark: "NULL",
    tell: None,
};

/// `$1` names. A time that is infinite is no number, and the server would refuse the whole
/// statement because of one row.
const LOOK: &str = "
SELECT lock_name, holder_id, token,
       (CASE WHEN isfinite(expires_at) THEN extract(epoch FROM expires_at) * 1000000 END)::int8,
       (CASE WHEN isfinite(expires_at) THEN extract(epoch FROM expires_at - clock_timestamp()) * 1000000 END)::int8,
       (CASE WHEN isfinite(acquired_at) THEN extract(epoch FROM acquired_at) * 1000000 END)::int8,
       holder, meta, wanted_by,
       (CASE WHEN isfinite(wanted_until) THEN extract(epoch FROM wanted_until - clock_timestamp()) * 1000000 END)::int8,
       nonce
  FROM distributed_lock WHERE lock_name = ANY ($1::text[])";

/// `$1` names; `$2` this process; `$3` for how long; `$4` how little may be left of a mark before it is renewed. Where another
/// process's stands, it becomes the mark of several, 0.
const WANT: &str = "
UPDATE distributed_lock l SET
       wanted_by = CASE WHEN l.wanted_until > clock_timestamp() + $4 * interval '1 microsecond' THEN 0 ELSE $2 END,
       wanted_until = clock_timestamp() + $3 * interval '1 microsecond'
  FROM (SELECT lock_name FROM distributed_lock
         WHERE lock_name = ANY ($1::text[]) AND holder_id IS NOT NULL
           AND (wanted_by NOT IN ($2, 0) OR wanted_until <= clock_timestamp() + $4 * interval '1 microsecond')
         ORDER BY lock_name FOR UPDATE SKIP LOCKED) k
 WHERE l.lock_name = k.lock_name AND l.holder_id IS NOT NULL";

/// `$1` a name; the rest as for [`WANT`]. Says whether the lock is held and carries a mark that tells of this process, so that
/// its release will be told.
const ARM: &str = "
WITH marked AS (
    UPDATE distributed_lock SET
           wanted_by = CASE WHEN wanted_until > clock_timestamp() + $4 * interval '1 microsecond' THEN 0 ELSE $2 END,
           wanted_until = clock_timestamp() + $3 * interval '1 microsecond'
     WHERE lock_name = $1 AND holder_id IS NOT NULL AND expires_at > clock_timestamp()
       AND (wanted_by NOT IN ($2, 0) OR wanted_until <= clock_timestamp() + $4 * interval '1 microsecond')
    RETURNING 1
) SELECT EXISTS (SELECT FROM marked)
      OR EXISTS (SELECT FROM distributed_lock
                  WHERE lock_name = $1 AND holder_id IS NOT NULL AND expires_at > clock_timestamp()
                    AND wanted_by IN ($2, 0) AND wanted_until > clock_timestamp() + $4 * interval '1 microsecond')";

/// `$1` from, `$2` but not this one, `$3` below, `$4` how many.
const LIST: &str = "
SELECT lock_name, holder_id, token,
       (CASE WHEN isfinite(expires_at) THEN extract(epoch FROM expires_at) * 1000000 END)::int8,
       (CASE WHEN isfinite(expires_at) THEN extract(epoch FROM expires_at - clock_timestamp()) * 1000000 END)::int8,
       (CASE WHEN isfinite(acquired_at) THEN extract(epoch FROM acquired_at) * 1000000 END)::int8,
       holder, meta, wanted_by,
       (CASE WHEN isfinite(wanted_until) THEN extract(epoch FROM wanted_until - clock_timestamp()) * 1000000 END)::int8,
       nonce
  FROM distributed_lock
 WHERE lock_name >= $1
   AND ($2::text IS NULL OR lock_name <> $2)
   AND ($3::text IS NULL OR lock_name < $3)
   AND holder_id IS NOT NULL AND expires_at > clock_timestamp()
 ORDER BY lock_name
 LIMIT $4";

/// `$1` keys.
const GET: &str = "
SELECT record_key, version, value,
       (CASE WHEN isfinite(written_at) THEN extract(epoch FROM clock_timestamp() - written_at) * 1000000 END)::int8
  FROM distributed_record WHERE record_key = ANY ($1::text[]) AND NOT deleted";

/// `$1` keys.
const VERSIONS: &str = "
SELECT record_key, version FROM distributed_record WHERE record_key = ANY ($1::text[]) AND NOT deleted";

/// As [`LIST`].
const SCAN: &str = "
SELECT record_key, version, value,
       (CASE WHEN isfinite(written_at) THEN extract(epoch FROM clock_timestamp() - written_at) * 1000000 END)::int8
  FROM distributed_record
 WHERE record_key >= $1
   AND ($2::text IS NULL OR record_key <> $2)
   AND ($3::text IS NULL OR record_key < $3)
   AND NOT deleted
 ORDER BY record_key
 LIMIT $4";

/// `$1` how long ago the last turn must be. One that lies ahead was had when the clock was wrong.
const CLAIM_REAPING: &str = "
UPDATE distributed_meta SET reaped_at = clock_timestamp()
 WHERE id = 1 AND (reaped_at IS NULL OR reaped_at <= clock_timestamp() - $1 * interval '1 microsecond'
                   OR reaped_at > clock_timestamp())";

/// `$1` after, `$2` how many, `$3` how long idle: one page of the table, and which of its rows are idle. A row whose token is
/// not below the clock stays: a new row's token would not be higher.
const IDLE_LOCKS: &str = "
SELECT lock_name,
       token < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND expires_at <= clock_timestamp() - $3 * interval '1 microsecond'
  FROM distributed_lock WHERE lock_name > $1 ORDER BY lock_name LIMIT $2";

/// `$1` names, `$2` how long idle.
const REAP_LOCKS: &str = "
DELETE FROM distributed_lock l
 USING (SELECT lock_name FROM distributed_lock WHERE lock_name = ANY ($1::text[])
         ORDER BY lock_name FOR UPDATE SKIP LOCKED) k
 WHERE l.lock_name = k.lock_name
   AND l.token < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND l.expires_at <= clock_timestamp() - $2 * interval '1 microsecond'";

/// As [`IDLE_LOCKS`], for tombstones.
const IDLE_RECORDS: &str = "
SELECT record_key,
       deleted AND version < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND written_at <= clock_timestamp() - $3 * interval '1 microsecond'
  FROM distributed_record WHERE record_key > $1 ORDER BY record_key LIMIT $2";

const REAP_RECORDS: &str = "
DELETE FROM distributed_record l
 USING (SELECT record_key FROM distributed_record WHERE record_key = ANY ($1::text[])
         ORDER BY record_key FOR UPDATE SKIP LOCKED) k
 WHERE l.record_key = k.record_key
   AND l.deleted AND l.version < (extract(epoch FROM clock_timestamp()) * 1000000)::int8
   AND l.written_at <= clock_timestamp() - $2 * interval '1 microsecond'";

/// The version counts the table that version 2 adds, which leaves `schema_version` alone.
const META: &str = "
SELECT schema_version + (schema_version = 1 AND to_regclass('distributed_line') IS NOT NULL)::int, epoch
  FROM distributed_meta WHERE id = 1";

/// `$1` names, `$2` waiters, `$3` the lease of a place. Says each name, and how many are ahead.
const KEEP_PLACES: &str = "
WITH kept AS (
    INSERT INTO distributed_line AS l (lock_name, waiter, ticket, expires_at)
    SELECT k.name, k.waiter, clock_timestamp(), clock_timestamp() + $3 * interval '1 microsecond'
      FROM unnest($1::text[], $2::int8[]) AS k (name, waiter) ORDER BY k.name COLLATE \"C\"
    ON CONFLICT (lock_name, waiter) DO UPDATE SET expires_at = excluded.expires_at
    RETURNING l.lock_name, l.waiter, l.ticket
) SELECT k.lock_name, (SELECT count(*) FROM distributed_line o
                        WHERE o.lock_name = k.lock_name AND o.expires_at > clock_timestamp()
                          AND (o.ticket, o.waiter) < (k.ticket, k.waiter))
    FROM kept k";

/// `$1` names, `$2` waiters, `$3` where those behind are told, `$4` what comes before the name there. It tells also when nobody
/// is seen behind: somebody may be joining at this moment, and neither statement sees what the other has not committed.
const LEAVE_LINES: &str = "
WITH gone AS (
    DELETE FROM distributed_line
     WHERE lock_name = ANY ($1::text[]) AND (waiter = ANY ($2::int8[]) OR expires_at <= clock_timestamp())
    RETURNING lock_name
) SELECT pg_notify($3, $4 || left_line.lock_name) FROM (SELECT DISTINCT lock_name FROM gone) left_line";

const CLEAR_LINES: &str = "DELETE FROM distributed_line WHERE expires_at <= clock_timestamp()";

const SCHEMA: &str = "
coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
           WHERE n.nspname = ANY (current_schemas(false))
             AND c.relname IN ('distributed_lock', 'distributed_record', 'distributed_meta')
           ORDER BY array_position(current_schemas(false), n.nspname) LIMIT 1), current_schema())";

/// Which of our tables there are, all as of one moment: `to_regclass` would look each name up by itself, and find a part of
/// what another process is just committing.
const OBJECTS: &str = "
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = current_schema() AND c.relname IN ('distributed_lock', 'distributed_record', 'distributed_meta')";

/// Locks held, free, stale; the longest time since one went stale; records and tombstones.
const STOCKTAKING: &str = "
SELECT count(*) FILTER (WHERE holder_id IS NOT NULL AND expires_at > clock_timestamp()),
       count(*) FILTER (WHERE holder_id IS NULL),
       count(*) FILTER (WHERE holder_id IS NOT NULL AND expires_at <= clock_timestamp()),
       (extract(epoch FROM max(clock_timestamp() - expires_at)
                FILTER (WHERE holder_id IS NOT NULL AND expires_at <= clock_timestamp() AND isfinite(expires_at)))
        * 1000000)::int8,
       (SELECT count(*) FROM distributed_record WHERE NOT deleted),
       (SELECT count(*) FROM distributed_record WHERE deleted)
  FROM distributed_lock";
