//! Statements that change the rows of many operations at once.

use std::fmt::Write as _;

use distlock_core::{AcquireRequest, FencingToken, Lease, Ttl};

use super::{
    expressions::{BATCH_NOW, NOBODY, ROW_NOW, SET_BATCH_NOW, unless_held},
    literals::{list, push_hex, push_text},
    set::Statements,
};
use crate::dialect::mysql::flavour::Flavour;

impl Statements {
    /// As [`Self::acquire`] for many names, sorted, and then the time, which is the token of each.
    /// If a lock was refused, was held by the same owner already, or got another token, the insert
    /// reports 1 as its `LAST_INSERT_ID`, and the rows must be read.
    pub(crate) fn acquire_all(
        &self,
        requests: &[&AcquireRequest],
        hint_id: i64,
        flavour: Flavour,
    ) -> String {
        let now = BATCH_NOW;
        let lock = &self.lock;
        let mut sql = String::with_capacity(1200 + requests.len() * 320);
        let _ = write!(
            sql,
            "{SET_BATCH_NOW}; \
             INSERT INTO {lock} (lock_name, holder_id, token, acquired_at, expires_at, holder, \
             meta) VALUES "
        );
        for (at, request) in requests.iter().enumerate() {
            sql.push_str(if at == 0 { "(" } else { ",(" });
            push_hex(&mut sql, request.name.as_str().as_bytes());
            sql.push(',');
            push_hex(&mut sql, request.owner.as_uuid().as_bytes());
            let _ = write!(
                sql,
                ",{now},{now},{now}+{},",
                request.ttl.as_millis() * 1000
            );
            push_text(&mut sql, request.holder.as_str());
            sql.push(',');
            match &request.meta {
                Some(meta) => push_text(&mut sql, meta.as_str()),
                None => sql.push_str("NULL"),
            }
            sql.push(')');
        }
        sql.push_str(&unless_held(
            lock,
            flavour,
            now,
            &hint_id.to_string(),
            [
                &format!(
                    "IF({lock}.token < {now}, {now}, {lock}.token + 1 + 0 * LAST_INSERT_ID(1))"
                ),
                &format!("{lock}.token + 0 * LAST_INSERT_ID(1)"),
            ],
        ));
        let _ = write!(sql, "; SELECT {now}");
        sql
    }

    /// Frees all of the leases, each of which has a token; or none of them, if one has another
    /// owner by now. The `LAST_INSERT_ID` of the update is 1 when another process waits for one of
    /// them.
    pub(crate) fn release_all(&self, leases: &[&Lease], hint_id: i64) -> String {
        let now = BATCH_NOW;
        self.change_all(
            leases,
            &format!(
                "token = token + IF(wanted_until > {now} AND wanted_by <> {hint_id}, 0 * \
                    LAST_INSERT_ID(1), 0), \
                 holder_id = {NOBODY}, expires_at = {now}, meta = NULL, nonce = NULL"
            ),
            "",
            true,
        )
    }

    /// Renews all of the leases, each of which has a token; or none of them, if one is over or has
    /// another owner by now. Unless it `waits`, it fails at once when another transaction has
    /// locked one of the rows.
    pub(crate) fn renew_all(&self, leases: &[&Lease], ttl: Ttl, waits: bool) -> String {
        self.change_all(
            leases,
            &format!("expires_at = {ROW_NOW} + {}", ttl.as_millis() * 1000),
            &format!(" AND expires_at > {ROW_NOW}"),
            waits,
        )
    }

    /// Changes the rows of all of these leases; or fails with an error of its own,
    /// `MySqlTrouble::NotAll`, before anything is committed.
    fn change_all(&self, leases: &[&Lease], set: &str, condition: &str, waits: bool) -> String {
        let lock = &self.lock;
        let mut sql = String::with_capacity(600 + leases.len() * 200);
        let _ = write!(sql, "{SET_BATCH_NOW}; START TRANSACTION; ");
        if !waits {
            let names = leases.iter().map(|lease| lease.name.as_str().as_bytes());
            let _ = write!(
                sql,
                "SELECT COUNT(lock_name) FROM {lock} FORCE INDEX (PRIMARY) WHERE lock_name IN \
                    ({}) FOR UPDATE NOWAIT; ",
                list(names)
            );
        }
        let _ = write!(
            sql,
            "UPDATE {lock} FORCE INDEX (PRIMARY) SET {set} WHERE lock_name IN ("
        );
        for (at, lease) in leases.iter().enumerate() {
            if at > 0 {
                sql.push(',');
            }
            push_hex(&mut sql, lease.name.as_str().as_bytes());
        }
        let _ = write!(sql, "){condition} AND ");
        push_owned_rows(&mut sql, leases);
        // The number is too large when the update has found fewer rows; the overflow is the error.
        let _ = write!(
            sql,
            "; SET @distlock_all = EXP(710 * (ROW_COUNT() <> {})); COMMIT",
            leases.len()
        );
        sql
    }
}

/// The condition for a row of one of the leases. It compares one value for each lease, because
/// servers look a value up in a list, but compare rows of several values one by one. The value is
/// unambiguous: the owner has 16 bytes, and the token ends where the name begins.
fn push_owned_rows(sql: &mut String, leases: &[&Lease]) {
    sql.push_str("CONCAT(holder_id, token, '/', lock_name) IN (");
    let mut value = Vec::with_capacity(300);
    for (at, lease) in leases.iter().enumerate() {
        value.clear();
        value.extend_from_slice(lease.owner.as_uuid().as_bytes());
        let token = lease.token.map_or(0, FencingToken::get);
        value.extend_from_slice(token.to_string().as_bytes());
        value.push(b'/');
        value.extend_from_slice(lease.name.as_str().as_bytes());
        if at > 0 {
            sql.push(',');
        }
        push_hex(sql, &value);
    }
    sql.push(')');
}
