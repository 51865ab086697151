//! The doctor of MySQL and MariaDB: durability, read-only state, failover, clock, rights, tables.
//!
//! Every check only reads. A statement that tests a right matches no row.

use std::collections::HashMap;

use distlock_core::{ErrorKind, Health, Result, Verdict, micros, unix_time};

use super::{
    connect::open_session,
    context::StoreContext,
    pool::{OpenConnection, StatementResults},
    rows, schema,
    statements::NOW,
};
use crate::{
    doctor::{self, Replication, RowCounts},
    network::Servers,
    statement_error::{Access, StatementError},
};

/// The difference between the server's clock and this machine's clock above which the doctor warns,
/// in microseconds. A wrong clock does not change the length of a lease. After a failover, tokens
/// depend on the new server's clock.
const CLOCK_OFF: u64 = 5_000_000;

const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
    ('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'binlog_format', 'read_only', \
    'super_read_only', \
    'group_replication_group_name', 'rpl_semi_sync_master_enabled', \
    'rpl_semi_sync_source_enabled', \
    'wsrep_on', 'innodb_doublewrite', 'innodb_rollback_on_timeout', 'max_allowed_packet')";

/// Reports 1 if `SYSDATE` has the same value during a whole statement, like `NOW`.
const SYSDATE_STANDS_STILL: &str = "SELECT SLEEP(0.002), NOW(6) = SYSDATE(6)";

/// The least `max_allowed_packet` in bytes that has room for the largest record value: two
/// hexadecimal digits for each byte, and the rest of the statement.
const PACKET: u64 = 1024 * 1024;

/// Runs all checks on one connection.
pub(crate) async fn examine(
    health: &mut Health,
    open: &mut OpenConnection,
    context: &StoreContext,
) -> Result<(), StatementError> {
    let found = ask(open, context, VARIABLES.to_owned()).await?;
    let mut variables = HashMap::new();
    for row in &found.rows {
        let name = rows::string(row, 0).map_err(StatementError::corrupt)?;
        variables.insert(name, rows::string(row, 1).map_err(StatementError::corrupt)?);
    }
    durability(health, &variables);
    topology(health, &variables);
    if context.config.hosts.len() > 1 {
        replication(&variables).report(health);
    }
    limits(health, &variables);

    let before = micros(unix_time(&*context.common.clock));
    let found = ask(open, context, format!("SELECT {NOW}")).await?;
    let after = micros(unix_time(&*context.common.clock));
    let theirs: i64 = first(&found, 0)?;
    let theirs = u64::try_from(theirs).unwrap_or(0);
    let off = before
        .saturating_sub(theirs)
        .max(theirs.saturating_sub(after));
    let (verdict, note) = if off > CLOCK_OFF {
        (
            Verdict::Warn,
            ": leases do not depend on it, but check which of the two is wrong",
        )
    } else {
        (Verdict::Pass, "")
    };
    health.found(
        "clock",
        verdict,
        format!("{} ms from this machine's{note}", off / 1000),
    );
    let found = ask(open, context, SYSDATE_STANDS_STILL.to_owned()).await?;
    if first::<i64>(&found, 1)? == 1 {
        health.found(
            "sysdate-is-now",
            // The holder of the longer lease trusts its end, and somebody else gets the lock.
            Verdict::Fail,
            "on: a renewal that waited for a locked row extends the lease from the time of its \
             sending, so a renewal that its client gave up may shorten a longer lease; start the \
             server without this option",
        );
    }

    let found = ask(open, context, context.statements.parts()).await?;
    let differences = schema::compare(context, &found, false).map_err(StatementError::corrupt)?;
    doctor::report_tables(health, &differences);

    rights(health, open, context).await?;
    doctor::report_password(health, &context.config, &context.login).await;

    let found = ask(open, context, context.statements.row_counts()).await?;
    RowCounts {
        held: first(&found, 0)?,
        free: first(&found, 1)?,
        stale: first(&found, 2)?,
        oldest_stale: first(&found, 3)?,
        records: first(&found, 4)?,
        tombstones: first(&found, 5)?,
    }
    .report(health, context.config.reap_after);
    Ok(())
}

fn durability(health: &mut Health, variables: &HashMap<String, String>) {
    match get(variables, "innodb_flush_log_at_trx_commit") {
        "1" => health.found(
            "innodb_flush_log_at_trx_commit",
            Verdict::Pass,
            "1: a commit is on the disk before it is answered",
        ),
        "" => health.found(
            "innodb_flush_log_at_trx_commit",
            Verdict::Unknown,
            "not shown",
        ),
        other => health.may_forget(
            "innodb_flush_log_at_trx_commit",
            Verdict::Fail,
            format!(
                "{other}: a power cut or crash may take back granted locks and their tokens; \
                set it to 1"
            ),
        ),
    }
    if on(get(variables, "log_bin")) {
        match get(variables, "sync_binlog") {
            "1" => health.found("sync_binlog", Verdict::Pass, "1"),
            other => health.may_forget(
                "sync_binlog",
                // A server that recovers rolls back what its binary log lacks.
                Verdict::Fail,
                format!(
                    "{other}: a power cut may take back granted locks and their tokens, here and \
                     on replicas; set it to 1"
                ),
            ),
        }
        let format = get(variables, "binlog_format");
        if format.eq_ignore_ascii_case("statement") {
            health.found(
                "binlog_format",
                Verdict::Fail,
                "STATEMENT: refuses READ COMMITTED; set it to ROW or MIXED",
            );
        }
    }
    if !on(get(variables, "innodb_doublewrite")) && !get(variables, "innodb_doublewrite").is_empty()
    {
        health.found(
            "innodb_doublewrite",
            Verdict::Fail,
            "off: a power cut may damage a page that holds locks; set it to ON",
        );
    }
}

fn topology(health: &mut Health, variables: &HashMap<String, String>) {
    if on(get(variables, "read_only")) || on(get(variables, "super_read_only")) {
        health.found(
            "read_only",
            Verdict::Fail,
            "on: this is a replica, or a primary that was set aside; no lock can be taken here",
        );
    } else {
        health.found("read_only", Verdict::Pass, "off");
    }
    if on(get(variables, "wsrep_on")) {
        health.found(
            "wsrep_on",
            Verdict::Warn,
            "a Galera cluster: point every client at one node, because reads of another may be \
                stale; all nodes crashing at \
             once may take back granted locks, so fence what the locks protect",
        );
    }
}

/// Checks whether one server of several takes writes. See also [`replication`].
pub(super) async fn servers(health: &mut Health, context: &StoreContext) {
    let (config, clock) = (&context.config, &*context.common.clock);
    if config.hosts.len() > 1 {
        let unresolved = |error| StatementError::mysql(error, Access::Read).into_error();
        let asking = |candidate| async move {
            let opened = open_session(context, candidate).await?;
            Ok(opened.variables.read_only)
        };
        let found = Servers::connect_to_each(config, clock, unresolved, asking).await;
        doctor::report_servers(health, &found);
    }
}

/// Whether a grant is on another server before the client is answered. This matters if the URL
/// names a server to which a failover leads.
fn replication(variables: &HashMap<String, String>) -> Replication {
    let semi = [
        "rpl_semi_sync_master_enabled",
        "rpl_semi_sync_source_enabled",
    ];
    if !get(variables, "group_replication_group_name").is_empty() || on(get(variables, "wsrep_on"))
    {
        Replication::Synchronous
    } else if semi.iter().any(|name| on(get(variables, name))) {
        Replication::UntilTimeout
    } else {
        Replication::Asynchronous("switch semi-synchronous replication on")
    }
}

fn limits(health: &mut Health, variables: &HashMap<String, String>) {
    if on(get(variables, "innodb_rollback_on_timeout")) {
        health.found("innodb_rollback_on_timeout", Verdict::Pass, "on");
    }
    if let Ok(packet) = get(variables, "max_allowed_packet").parse::<u64>()
        && packet < PACKET
    {
        health.found(
            "max_allowed_packet",
            Verdict::Warn,
            format!("{packet}: records may be larger; set it to {PACKET} or more"),
        );
    }
}

/// Checks whether the user has the rights that locks and records need.
async fn rights(
    health: &mut Health,
    open: &mut OpenConnection,
    context: &StoreContext,
) -> Result<(), StatementError> {
    let (mut denied, mut untried) = (Vec::new(), None);
    for (right, statement) in context.statements.rights() {
        match ask(open, context, statement).await {
            Err(failed) if failed.meaning.kind == ErrorKind::AccessDenied => denied.push(right),
            // For example, a read-only server refuses the statement for every user. Such a refusal
            // does not show whether the user has the right.
            Err(failed) => untried = Some(failed),
            Ok(_) => {}
        }
    }
    match untried.filter(|_| denied.is_empty()) {
        Some(failed) => health.found(
            "rights",
            Verdict::Unknown,
            format!("the rights could not be checked: {}", failed.into_error()),
        ),
        None => doctor::report_rights(health, &denied),
    }
    Ok(())
}

async fn ask(
    open: &mut OpenConnection,
    context: &StoreContext,
    question: String,
) -> Result<StatementResults, StatementError> {
    open.send(context, "doctor", question, Access::Read)
        .await
        .map_err(|broken| broken.failed)
}

fn first<T>(found: &StatementResults, index: usize) -> Result<T, StatementError>
where
    T: for<'r> sqlx::Decode<'r, sqlx::MySql>,
{
    let row = found.rows.first();
    let row = row.ok_or_else(|| StatementError::mysql(sqlx::Error::RowNotFound, Access::Read))?;
    rows::column(row, index).map_err(StatementError::corrupt)
}

fn get<'a>(variables: &'a HashMap<String, String>, name: &str) -> &'a str {
    variables.get(name).map_or("", String::as_str)
}

fn on(value: &str) -> bool {
    value == "1" || value.eq_ignore_ascii_case("on")
}
