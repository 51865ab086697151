//! The doctor of Postgres: crash safety, write access, failover, clock, session, tables and rights.
//!
//! Every check only reads.

use std::time::Duration;

use distlock_backend_kit::is_loopback;
use distlock_core::{Health, Verdict, unix_time};
use sqlx::{
    PgConnection, Postgres, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{connect::takes_no_writes, context::StoreContext, schema};
use crate::{
    doctor::{self, Replication, RowCounts},
    network::Servers,
    statement_error::{Access, StatementError},
};

/// The difference between the server's clock and this host's clock from which the doctor warns.
const CLOCKS_DIFFER: Duration = Duration::from_secs(5);

/// The settings of the server and of this session. For `synchronous_commit`, which the session
/// changes, both values are read.
const SETTINGS: &str = "
SELECT current_setting('server_version'),
       current_setting('fsync'),
       current_setting('full_page_writes'),
       (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
       current_setting('synchronous_commit'),
       current_setting('transaction_read_only'),
       pg_is_in_recovery(),
       (extract(epoch FROM clock_timestamp()) * 1000000)::int8,
       current_setting('default_transaction_isolation'),
       pg_backend_pid(),
       current_setting('synchronous_standby_names')";

/// The rights on distlock's tables that the user lacks. On the third table (`distributed_meta`),
/// the user needs no right to insert or delete: only the migrations insert its row.
const DENIED: &str = "
SELECT p || ' ON ' || c.relname
  FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
 WHERE c.oid IN (to_regclass($1), to_regclass($2), to_regclass($3))
   AND NOT (c.oid = to_regclass($3) AND p IN ('INSERT', 'DELETE'))
   AND NOT CASE p WHEN 'DELETE' THEN has_table_privilege(c.oid, p) ELSE \
       has_any_column_privilege(c.oid, p) END
 ORDER BY c.relname, p";

/// The tables of distlock that are published to other servers without a replica identity, and for
/// each table an index that could be the identity. The server refuses to change a row of such a
/// table.
const PUBLISHED: &str = "
SELECT DISTINCT ON (c.relname) c.relname::text, k.relname::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_index i ON i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND \
      i.indpred IS NULL
  JOIN pg_class k ON k.oid = i.indexrelid
 WHERE c.oid IN (to_regclass($1), to_regclass($2), to_regclass($3))
   AND (c.relreplident = 'n' OR c.relreplident = 'd'
        AND NOT EXISTS (SELECT FROM pg_index p WHERE p.indrelid = c.oid AND p.indisprimary))
   AND EXISTS (SELECT FROM pg_publication_tables t JOIN pg_publication p USING (pubname)
                WHERE t.schemaname = n.nspname AND t.tablename = c.relname AND (p.pubupdate OR \
                    p.pubdelete))
 ORDER BY c.relname";

/// The tables of distlock with row-level security: this user may see only some of their rows.
const FILTERED: &str = "
SELECT c.relname::text FROM pg_class c
 WHERE c.oid IN (to_regclass($1), to_regclass($2), to_regclass($3)) AND row_security_active(c.oid)
 ORDER BY 1";

const TLS: &str =
    "SELECT coalesce((SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl), '')";

/// Runs all checks on one connection. `stock` is the query that counts rows.
pub(crate) async fn examine(
    connection: &mut PgConnection,
    context: &StoreContext,
    stock: Query<'static, Postgres, PgArguments>,
) -> Result<Health, sqlx::Error> {
    context.common.counters.count("doctor");
    let settings = sqlx::query(SETTINGS).fetch_one(&mut *connection).await?;
    let ours = unix_time(&*context.common.clock);
    let version: String = settings.try_get(0)?;
    let mut health = Health::new(format!("PostgreSQL {version}"));
    durability(&mut health, &settings)?;

    let read_only: String = settings.try_get(5)?;
    let standby: bool = settings.try_get(6)?;
    let (verdict, detail) = if standby {
        (Verdict::Fail, "a standby takes no writes: name the primary")
    } else if read_only == "on" {
        (
            Verdict::Fail,
            "it takes no writes: somebody set `default_transaction_read_only` for the server, the \
                database or the user; \
             `SELECT * FROM pg_db_role_setting` shows where, and `ALTER .. RESET \
             default_transaction_read_only` ends it",
        )
    } else {
        (Verdict::Pass, "a primary")
    };
    health.found("writable", verdict, detail);
    replication(&mut health, context, &settings)?;

    let theirs: i64 = settings.try_get(7)?;
    let theirs = Duration::from_micros(u64::try_from(theirs).unwrap_or(0));
    let apart = theirs.abs_diff(ours);
    let detail = format!("{apart:.1?} from this host's");
    if apart < CLOCKS_DIFFER {
        health.found("clock", Verdict::Pass, detail);
    } else {
        let advice = "leases count by the server's clock, so that nothing breaks, but one of the \
            two is wrong";
        health.found("clock", Verdict::Warn, format!("{detail}: {advice}"));
    }

    session(&mut health, connection, context, &settings).await?;
    context.common.counters.count("doctor");
    let differences = schema::compare(connection, context, false).await?;
    doctor::report_tables(&mut health, &differences);
    rights(&mut health, connection, context).await?;
    published(&mut health, connection, context).await?;

    context.common.counters.count("doctor");
    let tls: String = sqlx::query_scalar(TLS).fetch_one(&mut *connection).await?;
    let local = context.config.peers().into_iter().all(is_loopback);
    match (tls.as_str(), local) {
        ("", true) => health.found("TLS", Verdict::Pass, "plain text, on this host"),
        ("", false) => health.found(
            "TLS",
            Verdict::Warn,
            "plain text: anybody on the way can read and change it; set `sslmode=verify-full`",
        ),
        (version, _) => health.found("TLS", Verdict::Pass, version),
    }
    doctor::report_password(&mut health, &context.config, &context.login).await;

    context.common.counters.count("doctor");
    let row = stock.fetch_one(connection).await?;
    let stock = RowCounts {
        held: row.try_get(0)?,
        free: row.try_get(1)?,
        stale: row.try_get(2)?,
        oldest_stale: row.try_get(3)?,
        records: row.try_get(4)?,
        tombstones: row.try_get(5)?,
    };
    stock.report(&mut health, context.config.reap_after);
    Ok(health)
}

fn durability(health: &mut Health, settings: &PgRow) -> Result<(), sqlx::Error> {
    for (at, name) in [(1, "fsync"), (2, "full_page_writes")] {
        let value: String = settings.try_get(at)?;
        if value == "on" {
            health.found(name, Verdict::Pass, "on");
        } else {
            let detail = "off: a power cut may take back granted locks and their tokens, or \
                damage the tables";
            health.may_forget(name, Verdict::Fail, detail);
        }
    }
    let (server, session): (Option<String>, String) = (settings.try_get(3)?, settings.try_get(4)?);
    let server = server.unwrap_or_default();
    if session == "off" {
        let detail = "off: a crash may take back granted locks and their tokens";
        health.may_forget("synchronous_commit", Verdict::Fail, detail);
    } else if server == session {
        health.found("synchronous_commit", Verdict::Pass, session);
    } else {
        let detail = format!("{server} on the server, {session} in our own sessions");
        health.found("synchronous_commit", Verdict::Pass, detail);
    }
    Ok(())
}

/// Checks whether one server of several takes writes. See also [`replication`].
pub(super) async fn servers(health: &mut Health, context: &StoreContext) {
    let (config, clock) = (&context.config, &*context.common.clock);
    if config.hosts.len() > 1 {
        let unresolved = |error| StatementError::postgres(error, Access::Read).into_error();
        let asking = |candidate| takes_no_writes(context, candidate);
        let found = Servers::connect_to_each(config, clock, unresolved, asking).await;
        doctor::report_servers(health, &found);
    }
}

/// Checks whether a grant is on a standby before the client is answered. This matters if the URL
/// names a server to which a failover leads.
fn replication(
    health: &mut Health,
    context: &StoreContext,
    settings: &PgRow,
) -> Result<(), sqlx::Error> {
    if context.config.hosts.len() > 1 {
        let standbys: String = settings.try_get(10)?;
        let replication = match standbys.is_empty() {
            true => Replication::Asynchronous("set `synchronous_standby_names`"),
            false => Replication::Synchronous,
        };
        replication.report(health);
    }
    Ok(())
}

/// Checks whether the connection keeps the same session with its settings. A pooler in transaction
/// mode may use another session for each transaction.
async fn session(
    health: &mut Health,
    connection: &mut PgConnection,
    context: &StoreContext,
    settings: &PgRow,
) -> Result<(), sqlx::Error> {
    let isolation: String = settings.try_get(8)?;
    let mut backend: i32 = settings.try_get(9)?;
    let mut same = isolation == "read committed";
    for _ in 0..4 {
        context.common.counters.count("doctor");
        let now = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut *connection)
            .await?;
        same &= now == backend;
        backend = now;
    }
    if same {
        health.found("session", Verdict::Pass, "ours alone");
    } else {
        health.found(
            "session",
            Verdict::Fail,
            "it changes under us: a pooler in transaction mode is in between; use session mode or \
                the server itself",
        );
    }
    Ok(())
}

/// Checks whether the user has the rights that locks and records need.
async fn rights(
    health: &mut Health,
    connection: &mut PgConnection,
    context: &StoreContext,
) -> Result<(), sqlx::Error> {
    context.common.counters.count("doctor");
    let [lock, record, meta] = tables(context);
    let denied = sqlx::query_scalar(DENIED)
        .bind(lock)
        .bind(record)
        .bind(meta)
        .fetch_all(&mut *connection)
        .await?;
    doctor::report_rights(health, &denied);
    context.common.counters.count("doctor");
    let [lock, record, meta] = tables(context);
    let filtered: Vec<String> = sqlx::query_scalar(FILTERED)
        .bind(lock)
        .bind(record)
        .bind(meta)
        .fetch_all(connection)
        .await?;
    for table in filtered {
        let detail = format!(
            "{table} has row-level security: unless its policies let this user see and write \
                every row, locks are refused; run \
             `ALTER TABLE {table} DISABLE ROW LEVEL SECURITY`"
        );
        health.found("row security", Verdict::Warn, detail);
    }
    Ok(())
}

/// Checks whether rows of published tables can be changed.
async fn published(
    health: &mut Health,
    connection: &mut PgConnection,
    context: &StoreContext,
) -> Result<(), sqlx::Error> {
    context.common.counters.count("doctor");
    let [lock, record, meta] = tables(context);
    let rows = sqlx::query(PUBLISHED)
        .bind(lock)
        .bind(record)
        .bind(meta)
        .fetch_all(connection)
        .await?;
    for row in &rows {
        let (table, index): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let detail = format!(
            "{table} is published without a replica identity, so that the server changes no row \
                of it: run \
             `ALTER TABLE {table} REPLICA IDENTITY USING INDEX {index}`"
        );
        health.found("publication", Verdict::Fail, detail);
    }
    Ok(())
}

/// The names of the lock, record and meta tables.
fn tables(context: &StoreContext) -> [String; 3] {
    ["lock", "record", "meta"]
        .map(|table| format!("{}distributed_{table}", context.config.table_prefix))
}
