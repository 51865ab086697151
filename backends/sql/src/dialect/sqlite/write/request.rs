//! Binds the values of a batch to its statement.

use distlock_backend_kit::operation::{Operation, OperationKind};
use distlock_core::{AcquireRequest, FencingToken, Lease, Meta, TicketStep};
use sqlx::{Sqlite, query::Query, sqlite::SqliteArguments};
use uuid::Uuid;

use crate::dialect::sqlite::{
    context::{ClockReadings, StoreContext},
    rows::{ValueBlob, id_blob, json},
    statements::Sql,
};

type Statement = Query<'static, Sqlite, SqliteArguments>;

/// The locks that one statement acquires or releases, or that one transaction acquires and
/// releases.
#[derive(Clone, Copy)]
pub(super) struct LockChanges<'a> {
    pub(super) requests: &'a [&'a AcquireRequest],
    /// The token of the acquired locks.
    pub(super) token: u64,
    pub(super) leases: &'a [&'a Lease],
    /// Whether a lock is released even if another process waits for it.
    pub(super) even_wanted: bool,
}

/// The statement that acquires and releases, with all its values.
pub(super) fn bind_lock_changes(
    changes: LockChanges<'_>,
    context: &StoreContext,
    now: ClockReadings,
) -> Statement {
    let LockChanges {
        requests, leases, ..
    } = changes;
    let statements = &context.statements;
    let sql = match (requests, leases) {
        (_, []) => &statements.acquire,
        ([], _) => &statements.release,
        _ => &statements.acquire_and_release,
    };
    let acquired: Vec<_> = requests.iter().copied().map(columns).collect();
    let released: Vec<_> = leases
        .iter()
        .map(|it| (it.name.as_str(), token(it), nonce(it)))
        .collect();
    let next_owners = requests.iter().map(|request| request.owner.as_uuid());
    bind_first(sql, json(&acquired), id_blob(next_owners), context, now)
        .bind(context.common.wait_group.hint_id())
        .bind(changes.token.cast_signed())
        .bind(json(&released))
        .bind(id_blob(leases.iter().map(|lease| lease.owner.as_uuid())))
        .bind(changes.even_wanted)
}

/// The statement of a batch of another kind, with all its values.
pub(super) fn bind_batch(
    kind: OperationKind,
    ops: &[Operation],
    context: &StoreContext,
    now: ClockReadings,
) -> Statement {
    let statements = &context.statements;
    let leases = || ops.iter().filter_map(Operation::lease);
    let owners = || id_blob(leases().map(|lease| lease.owner.as_uuid()));
    let bind = |sql, rows, bytes| bind_first(sql, rows, bytes, context, now);
    match kind {
        OperationKind::Renew => {
            let (mut rows, mut issued_nonces) = (Vec::new(), Vec::new());
            for op in ops {
                let Operation::Renew(lease, renewal) = op else {
                    continue;
                };
                let (step, issued) = match renewal.ticket {
                    TicketStep::Keep => (0, Uuid::nil()),
                    TicketStep::Issue(issued) => (1, issued),
                    TicketStep::Redeem => (2, Uuid::nil()),
                };
                let ttl = renewal.ttl.as_millis() * 1000;
                let floor = renewal.token_floor.map_or(0, FencingToken::get);
                let (name, token, nonce) = (lease.name.as_str(), token(lease), nonce(lease));
                rows.push((name, ttl, token, nonce, step, floor));
                issued_nonces.push(issued);
            }
            bind(&statements.renew, json(&rows), owners()).bind(id_blob(issued_nonces.iter()))
        }
        OperationKind::HandOver => {
            let requests = || ops.iter().filter_map(Operation::request);
            let rows = leases().zip(requests()).map(|(lease, next)| {
                let (name, ttl, holder, meta) = columns(next);
                (name, ttl, holder, meta, token(lease))
            });
            let rows = json(&rows.collect::<Vec<_>>());
            let next_owners = id_blob(requests().map(|request| request.owner.as_uuid()));
            bind(&statements.hand_over, rows, owners()).bind(next_owners)
        }
        OperationKind::Create | OperationKind::Replace => {
            let mut values = ValueBlob::default();
            let rows = ops.iter().filter_map(|op| {
                let (value, version) = match op {
                    Operation::Create(_, value) => (value, None),
                    Operation::Replace(_, value, version) => (value, Some(version.get())),
                    _ => return None,
                };
                let (start, length) = values.push(value);
                Some((op.key(), start, length, version))
            });
            let rows = json(&rows.collect::<Vec<_>>());
            let sql = match kind {
                OperationKind::Create => &statements.create,
                _ => &statements.replace,
            };
            bind(sql, rows, values.into_bytes())
        }
        kind => {
            let rows = ops.iter().filter_map(|op| match op {
                Operation::ForceRelease(name, token) => Some((name.as_str(), token.get())),
                Operation::Delete(key, version) => Some((key.as_str(), version.get())),
                _ => None,
            });
            let rows = json(&rows.collect::<Vec<_>>());
            let sql = match kind {
                OperationKind::ForceRelease => &statements.force,
                _ => &statements.delete,
            };
            bind(sql, rows, Vec::new())
        }
    }
}

/// The statement with the parameters that all statements share.
fn bind_first(
    sql: &Sql,
    rows: String,
    bytes: Vec<u8>,
    context: &StoreContext,
    now: ClockReadings,
) -> Statement {
    sqlx::query(sql.text())
        .bind(rows)
        .bind(bytes)
        .bind(context.boot.to_vec())
        .bind(now.boot)
        .bind(now.wall)
}

/// The columns of an acquire: name, TTL in microseconds, label, meta.
fn columns(request: &AcquireRequest) -> (&str, u64, &str, Option<&str>) {
    (
        request.name.as_str(),
        request.ttl.as_millis() * 1000,
        request.holder.as_str(),
        request.meta.as_ref().map(Meta::as_str),
    )
}

fn token(lease: &Lease) -> Option<u64> {
    lease.token.map(FencingToken::get)
}

/// The nonce of the lease's ticket, in the form of SQLite's function `hex`.
fn nonce(lease: &Lease) -> Option<String> {
    lease.nonce.map(|nonce| format!("{:X}", nonce.as_simple()))
}
