//! The prepared statements: for a lone operation, and for taking many locks.
//!
//! Parsing a statement costs a server as much as carrying it out, so that these are prepared once
//! for each connection, when each is first needed.

use std::sync::{Arc, OnceLock};

use distlock_core::{AcquireRequest, Lease, LockName, Meta, OwnerId, Ttl};
use sqlx::{AssertSqlSafe, MySql, SqlSafeStr as _, SqlStr, mysql::MySqlArguments, query::Query};

use super::expressions::{NOBODY, NOW, WANTED, unless_held};
use crate::{dialect::mysql::flavour::Flavour, operation::Operation};

/// A prepared statement with its values.
pub(crate) type PreparedQuery<'q> = Query<'q, MySql, MySqlArguments>;

/// The numbers of rows of the statements that take many locks. A batch uses the next larger one and
/// repeats its last row: an owner that has just got a lock gets it again.
const SIZES: [usize; 12] = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// The largest number of statements that a connection prepares.
pub(crate) const MOST: usize = 3 + SIZES.len();

/// The prepared statements of one table prefix, for one product.
#[derive(Debug)]
pub(crate) struct PreparedStatements {
    lock: String,
    flavour: Flavour,
    /// Name, owner, TTL in microseconds, label, meta, hint id.
    acquire: SqlStr,
    /// Hint id, name, owner, token.
    release: SqlStr,
    /// TTL in microseconds, hint id, and owner, label and meta of the next holder; name, owner and
    /// token of the present one.
    hand_over: SqlStr,
    /// One for each of the [`SIZES`]: name, owner, TTL in microseconds, label and meta for each
    /// row; hint id.
    acquire_all: [OnceLock<SqlStr>; SIZES.len()],
}

impl PreparedStatements {
    pub(crate) fn new(lock: &str, flavour: Flavour) -> Self {
        // The new row has the time too, so that it is computed once.
        let now = &flavour.new_column("acquired_at");
        let (old, new) = (format!("{lock}.holder_id"), flavour.new_column("holder_id"));
        let tokens = [
            &*format!("LAST_INSERT_ID(GREATEST({lock}.token + 1, {now}))"),
            &*format!(
                "IF({old} = {new}, LAST_INSERT_ID({lock}.token), {lock}.token + LAST_INSERT_ID(0))"
            ),
        ];
        let acquire = format!(
            "INSERT INTO {lock} (lock_name, holder_id, token, acquired_at, expires_at, holder, \
                meta) \
             VALUES (?, ?, LAST_INSERT_ID({NOW}), {NOW}, {NOW} + ?, ?, ?){}",
            unless_held(lock, flavour, now, "?", tokens)
        );
        // Assignments are carried out from left to right and see the values of those before them:
        // the time is computed once.
        let release = format!(
            "UPDATE {lock} SET expires_at = {NOW}, \
             token = token + 0 * LAST_INSERT_ID(IF(wanted_until > expires_at AND wanted_by <> ?, \
             2, 1)), \
             holder_id = {NOBODY}, meta = NULL, nonce = NULL \
             WHERE lock_name = ? AND holder_id = ? AND token = ?"
        );
        let hand_over = format!(
            "UPDATE {lock} SET acquired_at = {NOW}, token = GREATEST(token + 1, acquired_at), \
             expires_at = acquired_at + ? + 0 * LAST_INSERT_ID(token + IF(wanted_until > \
             acquired_at AND wanted_by <> ?, {WANTED}, 0)), \
             holder_id = ?, holder = ?, meta = ?, nonce = NULL \
             WHERE lock_name = ? AND holder_id = ? AND token = ? AND expires_at > {NOW}"
        );
        Self {
            acquire: sql(acquire),
            release: sql(release),
            hand_over: sql(hand_over),
            acquire_all: Default::default(),
            lock: lock.to_owned(),
            flavour,
        }
    }

    /// Takes many locks, sorted by name, and reports the time, which is the token of each. If a
    /// lock was refused, was held by the same owner already, or got another token, it reports 1,
    /// and the rows must be read. `None` for more than fit into one statement.
    pub(crate) fn acquire_all<'q>(
        &self,
        requests: &[&'q AcquireRequest],
        hint_id: i64,
    ) -> Option<PreparedQuery<'q>> {
        let at = SIZES.partition_point(|size| *size < requests.len());
        let (size, text) = (*SIZES.get(at)?, self.acquire_all.get(at)?);
        let text = text.get_or_init(|| sql(self.take_all(size)));
        let last = std::iter::repeat(*requests.last()?);
        let rows = requests.iter().copied().chain(last).take(size);
        let query = rows.fold(sqlx::query(text.clone()), bind_request);
        Some(query.bind(hint_id))
    }

    fn take_all(&self, rows: usize) -> String {
        let Self { lock, flavour, .. } = self;
        // A value may refer to an earlier value of the same row: the time is computed once.
        let row = |token: &str| format!("(?, ?, {NOW}, {token}, acquired_at + ?, ?, ?)");
        let first = row("LAST_INSERT_ID(acquired_at)");
        let others = vec![row("acquired_at"); rows - 1].join(", ");
        let now = &flavour.new_column("acquired_at");
        let (old, new) = (format!("{lock}.holder_id"), flavour.new_column("holder_id"));
        // All values of a row are evaluated before its conflict clause.
        let tokens = [
            &*format!("IF({lock}.token < {now}, {now}, {lock}.token + 1 + 0 * LAST_INSERT_ID(1))"),
            &*format!(
                "{lock}.token + IF({old} = {new} AND {lock}.token = {now}, 0, 0 * \
                    LAST_INSERT_ID(1))"
            ),
        ];
        format!(
            "INSERT INTO {lock} (lock_name, holder_id, acquired_at, token, expires_at, holder, \
                meta) \
             VALUES {first}, {others}{}",
            unless_held(lock, *flavour, now, "?", tokens)
        )
    }

    /// The prepared statement of an operation, if it has one.
    pub(crate) fn query<'q>(&self, op: &'q Operation, hint_id: i64) -> Option<PreparedQuery<'q>> {
        let token = |lease: &Lease| Some(lease.token?.get().cast_signed());
        Some(match op {
            Operation::Acquire(request) => {
                bind_request(sqlx::query(self.acquire.clone()), request).bind(hint_id)
            }
            Operation::Release(lease) => sqlx::query(self.release.clone())
                .bind(hint_id)
                .bind(name(&lease.name))
                .bind(owner(&lease.owner))
                .bind(token(lease)?),
            Operation::HandOver(lease, next) => sqlx::query(self.hand_over.clone())
                .bind(micros(next.ttl))
                .bind(hint_id)
                .bind(owner(&next.owner))
                .bind(next.holder.as_str())
                .bind(next.meta.as_ref().map(Meta::as_str))
                .bind(name(&lease.name))
                .bind(owner(&lease.owner))
                .bind(token(lease)?),
            _ => return None,
        })
    }
}

/// Safe: only the table prefix varies in these texts, and it holds nothing but `[a-z0-9_]`.
fn sql(text: String) -> SqlStr {
    AssertSqlSafe(Arc::<str>::from(text)).into_sql_str()
}

fn bind_request<'q>(query: PreparedQuery<'q>, request: &'q AcquireRequest) -> PreparedQuery<'q> {
    query
        .bind(name(&request.name))
        .bind(owner(&request.owner))
        .bind(micros(request.ttl))
        .bind(request.holder.as_str())
        .bind(request.meta.as_ref().map(Meta::as_str))
}

fn name(name: &LockName) -> &[u8] {
    name.as_str().as_bytes()
}

fn owner(owner: &OwnerId) -> &[u8] {
    owner.as_uuid().as_bytes()
}

fn micros(ttl: Ttl) -> i64 {
    (ttl.as_millis() * 1000).cast_signed()
}
