//! What a lone operation is sent with, and what takes many locks. Reading a statement's text costs a server as much as
//! carrying it out, so it is made to remember these: once per connection, when each is first needed.

use std::sync::{Arc, OnceLock};

use distlock_core::{AcquireRequest, Lease, LockName, Meta, OwnerId, Ttl};
use sqlx::{AssertSqlSafe, MySql, SqlSafeStr as _, SqlStr, mysql::MySqlArguments, query::Query};

use super::expressions::{NOBODY, NOW, WANTED, unless_held};
use crate::{dialect::mysql::flavour::Flavour, operation::Operation};

/// A statement that the server is to remember, with its values.
pub(crate) type PreparedQuery<'q> = Query<'q, MySql, MySqlArguments>;

/// How many rows a statement that takes many has. A batch goes with the next larger one, and repeats its last row: who has
/// just got a lock gets it again.
const SIZES: [usize; 12] = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// The statements of one table prefix, for one product, that a connection has the server remember, at most.
pub(crate) const MOST: usize = 3 + SIZES.len();

/// The statements of one table prefix, for one product.
#[derive(Debug)]
pub(crate) struct PreparedStatements {
    lock: String,
    flavour: Flavour,
    /// Name, owner, TTL in microseconds, label, meta, mark.
    acquire: SqlStr,
    /// Mark, name, owner, token.
    release: SqlStr,
    /// TTL in microseconds, mark, and owner, label and meta of the next holder; name, owner and token of the present one.
    hand_over: SqlStr,
    /// One for each of the [`SIZES`]: name, owner, TTL in microseconds, label and meta for each row; mark.
    acquire_all: [OnceLock<SqlStr>; SIZES.len()],
}

impl PreparedStatements {
    pub(crate) fn new(lock: &str, flavour: Flavour) -> Self {
        // The new row has the time too, so that it is worked out once.
        let now = &flavour.new_column("acquired_at");
        let (old, new) = (format!("{lock}.holder_id"), flavour.new_column("holder_id"));
        let tokens = [
            &*format!("LAST_INSERT_ID(GREATEST({lock}.token + 1, {now}))"),
            &*format!(
                "IF({old} = {new}, LAST_INSERT_ID({lock}.token), {lock}.token + LAST_INSERT_ID(0))"
            ),
        ];
        let acquire = format!(
            "INSERT INTO {lock} (lock_name, holder_id, token, acquired_at, expires_at, holder, meta) \
             VALUES (?, ?, LAST_INSERT_ID({NOW}), {NOW}, {NOW} + ?, ?, ?){}",
            unless_held(lock, flavour, now, "?", tokens)
        );
        // Assignments are carried out from left to right and see what those before them did: the time is worked out once.
        let release = format!(
            "UPDATE {lock} SET expires_at = {NOW}, \
             token = token + 0 * LAST_INSERT_ID(IF(wanted_until > expires_at AND wanted_by <> ?, 2, 1)), \
             holder_id = {NOBODY}, meta = NULL, nonce = NULL \
             WHERE lock_name = ? AND holder_id = ? AND token = ?"
        );
        let hand_over = format!(
            "UPDATE {lock} SET acquired_at = {NOW}, token = GREATEST(token + 1, acquired_at), \
             expires_at = acquired_at + ? + 0 * LAST_INSERT_ID(token + IF(wanted_until > acquired_at AND wanted_by <> ?, {WANTED}, 0)), \
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

    /// Takes many locks, sorted by name, and says the time, which is the token of each. Where one was refused, held already, or
    /// has another token, it says 1, and the rows must be looked at. `None` for more than fit into one.
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
        // What a row says of itself is what it was given before: the time is worked out once.
        let row = |token: &str| format!("(?, ?, {NOW}, {token}, acquired_at + ?, ?, ?)");
        let first = row("LAST_INSERT_ID(acquired_at)");
        let others = vec![row("acquired_at"); rows - 1].join(", ");
        let now = &flavour.new_column("acquired_at");
        let (old, new) = (format!("{lock}.holder_id"), flavour.new_column("holder_id"));
        // All values of a row come before what is done where there is one already.
        let tokens = [
            &*format!("IF({lock}.token < {now}, {now}, {lock}.token + 1 + 0 * LAST_INSERT_ID(1))"),
            &*format!(
                "{lock}.token + IF({old} = {new} AND {lock}.token = {now}, 0, 0 * LAST_INSERT_ID(1))"
            ),
        ];
        format!(
            "INSERT INTO {lock} (lock_name, holder_id, acquired_at, token, expires_at, holder, meta) \
             VALUES {first}, {others}{}",
            unless_held(lock, *flavour, now, "?", tokens)
        )
    }

    /// The statement for an operation, if there is one.
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

/// Safe: all that varies in these texts is the table prefix, which holds nothing but `[a-z0-9_]`.
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
