//! What a lone operation is sent with. Reading a statement's text costs a server as much as carrying it out, so it is made
//! to remember these: once per connection, when each is first needed.

use std::sync::Arc;

use distlock_core::{Lease, LockName, Meta, OwnerId, Ttl};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::{
    link::{self, Flavour},
    statements::{NOBODY, NOW, WANTED, unless_held},
};
use crate::op::Op;

/// The statements of one table prefix, for one product.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Name, owner, TTL in microseconds, label, meta, mark.
    acquire: SqlStr,
    /// Mark, name, owner, token.
    release: SqlStr,
    /// TTL in microseconds, mark, and owner, label and meta of the next holder; name, owner and token of the present one.
    hand_over: SqlStr,
}

impl Prepared {
    pub(super) fn new(lock: &str, flavour: Flavour) -> Self {
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
        // Safe: all that varies in these texts is the table prefix, which holds nothing but `[a-z0-9_]`.
        let sql = |text: String| AssertSqlSafe(Arc::<str>::from(text)).into_sql_str();
        Self {
            acquire: sql(acquire),
            release: sql(release),
            hand_over: sql(hand_over),
        }
    }

    /// The statement for an operation, if there is one.
    pub(super) fn query<'q>(&self, op: &'q Op, mark: i64) -> Option<link::Prepared<'q>> {
        let owner = |owner: &'q OwnerId| owner.as_uuid().as_bytes().as_slice();
        let name = |name: &'q LockName| name.as_str().as_bytes();
        let micros = |ttl: Ttl| (ttl.as_millis() * 1000).cast_signed();
        let token = |lease: &Lease| Some(lease.token?.get().cast_signed());
        Some(match op {
            Op::Acquire(request) => sqlx::query(self.acquire.clone())
                .bind(name(&request.name))
                .bind(owner(&request.owner))
                .bind(micros(request.ttl))
                .bind(request.holder.as_str())
                .bind(request.meta.as_ref().map(Meta::as_str))
                .bind(mark),
            Op::Release(lease) => sqlx::query(self.release.clone())
                .bind(mark)
                .bind(name(&lease.name))
                .bind(owner(&lease.owner))
                .bind(token(lease)?),
            Op::HandOver(lease, next) => sqlx::query(self.hand_over.clone())
                .bind(micros(next.ttl))
                .bind(mark)
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
