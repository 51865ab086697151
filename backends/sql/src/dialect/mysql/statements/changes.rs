//! Statements that change the row of one operation.

use distlock_core::{AcquireRequest, Lease, Meta, RecordKey, Renewal, TicketStep};

use super::{
    expressions::{NOBODY, ROW_NOW, WANTED, free_condition, lease_end, micros, owned_row},
    literals::{hex, optional_text, text},
    set::Statements,
};
use crate::{
    dialect::{FORCED, Reaped, mysql::flavour::Flavour},
    operation::Operation,
};

impl Statements {
    /// The statement that changes the row of one operation if the row's state allows it; `now` is
    /// [`NOW`](super::expressions::NOW) or [`BATCH_NOW`](super::expressions::BATCH_NOW).
    pub(crate) fn write(
        &self,
        op: &Operation,
        hint_id: i64,
        flavour: Flavour,
        now: &str,
    ) -> String {
        let lock = &self.lock;
        match op {
            Operation::Acquire(request) => self.acquire(request, hint_id, now),
            Operation::Renew(lease, renewal) => self.renew(lease, renewal),
            // It reports 2 when another process waits, else 1. Assignments are carried out from
            // left to right and see the values of those before them, so that the time is computed
            // once.
            Operation::Release(lease) => format!(
                "UPDATE {lock} SET expires_at = {now}, \
                 token = token + 0 * LAST_INSERT_ID(IF(wanted_until > expires_at AND wanted_by <> \
                 {hint_id}, 2, 1)), \
                 holder_id = {NOBODY}, meta = NULL, nonce = NULL WHERE {}",
                owned_row(lease)
            ),
            // It reports the token, plus [`WANTED`] when another process waits.
            Operation::HandOver(lease, next) => format!(
                "UPDATE {lock} SET acquired_at = {now}, token = GREATEST(token + 1, acquired_at), \
                 expires_at = acquired_at + {} + 0 * LAST_INSERT_ID(token + IF(wanted_until > \
                 acquired_at AND wanted_by <> {hint_id}, {WANTED}, 0)), \
                 holder_id = {}, holder = {}, meta = {}, nonce = NULL WHERE {} AND expires_at > \
                 {now}",
                next.ttl.as_millis() * 1000,
                hex(next.owner.as_uuid().as_bytes()),
                text(next.holder.as_str()),
                optional_text(next.meta.as_ref().map(Meta::as_str)),
                owned_row(lease)
            ),
            Operation::Force(name, token) => format!(
                "UPDATE {lock} SET holder_id = {NOBODY}, expires_at = {now}, meta = {}, nonce = \
                    NULL \
                 WHERE lock_name = {} AND token = {} AND holder_id <> {NOBODY} AND expires_at > \
                 {now}",
                text(FORCED),
                hex(name.as_str().as_bytes()),
                token.get()
            ),
            Operation::Create(key, value) => self.create(key, value, flavour, now),
            Operation::Replace(key, value, version) => format!(
                "UPDATE {} SET version = LAST_INSERT_ID(GREATEST(version + 1, {now})), value = \
                    {}, written_at = {now} \
                 WHERE record_key = {} AND version = {} AND deleted = 0",
                self.record,
                hex(value),
                hex(key.as_str().as_bytes()),
                version.get()
            ),
            // The row stays as a tombstone until it is reaped.
            Operation::Delete(key, version) => format!(
                "UPDATE {} SET value = '', deleted = 1, written_at = {now} \
                 WHERE record_key = {} AND version = {} AND deleted = 0",
                self.record,
                hex(key.as_str().as_bytes()),
                version.get()
            ),
        }
    }

    /// Extends a lease that is not over, and changes its ticket. The end of the lease counts from
    /// the moment when the row is at hand.
    fn renew(&self, lease: &Lease, renewal: &Renewal) -> String {
        let ttl = micros(*renewal);
        let (set, condition) = match renewal.ticket {
            TicketStep::Keep => (String::new(), String::new()),
            TicketStep::Issue(nonce) => (
                format!(", nonce = {}", hex(nonce.as_bytes())),
                String::new(),
            ),
            TicketStep::Redeem(nonce) => (
                ", nonce = NULL".to_owned(),
                format!(" AND nonce = {}", hex(nonce.as_bytes())),
            ),
        };
        format!(
            "UPDATE {} SET token = LAST_INSERT_ID(token), expires_at = {ROW_NOW} + \
                {ttl}{set} \
             WHERE {} AND expires_at > {ROW_NOW}{condition}",
            self.lock,
            owned_row(lease)
        )
    }

    /// Takes a missing, free or expired row, or one that is ours already, and reports its token; 0
    /// for a row that is held.
    ///
    /// The values of the insert are evaluated first in any case, so the branch that refuses must
    /// report 0 itself. Assignments are carried out from left to right and see the values of those
    /// before them, so that owner and end of the lease come last.
    fn acquire(&self, request: &AcquireRequest, hint_id: i64, now: &str) -> String {
        let owner = hex(request.owner.as_uuid().as_bytes());
        let until = format!("{now} + {}", request.ttl.as_millis() * 1000);
        let holder = text(request.holder.as_str());
        let meta = optional_text(request.meta.as_ref().map(Meta::as_str));
        let free = free_condition("", now);
        let ours = format!("({free} OR holder_id = {owner})");
        format!(
            "INSERT INTO {} (lock_name, holder_id, token, acquired_at, expires_at, holder, meta) \
             VALUES ({}, {owner}, LAST_INSERT_ID({now}), {now}, {until}, {holder}, {meta}) \
             ON DUPLICATE KEY UPDATE \
             token = CASE WHEN {free} THEN LAST_INSERT_ID(GREATEST(token + 1, {now})) \
             WHEN holder_id = {owner} THEN LAST_INSERT_ID(token) ELSE token + LAST_INSERT_ID(0) \
             END, \
             acquired_at = IF({free}, {now}, acquired_at), \
             nonce = IF({free}, NULL, nonce), \
             wanted_until = IF({ours} AND wanted_by = {hint_id}, 0, wanted_until), \
             holder = IF({ours}, {holder}, holder), \
             meta = IF({ours}, {meta}, meta), \
             holder_id = IF({ours}, {owner}, holder_id), \
             expires_at = IF(holder_id = {owner}, {}, expires_at)",
            self.lock,
            hex(request.name.as_str().as_bytes()),
            lease_end("", now, &until),
        )
    }

    /// Reports the version, or 0 when the record exists. A tombstone's version is exceeded, never
    /// repeated.
    fn create(&self, key: &RecordKey, value: &[u8], flavour: Flavour, now: &str) -> String {
        let record = &self.record;
        let (alias, new) = (flavour.new_row(), flavour.new_column("value"));
        format!(
            "INSERT INTO {record} (record_key, version, value, deleted, written_at) \
             VALUES ({}, LAST_INSERT_ID({now}), {}, 0, {now}){alias} \
             ON DUPLICATE KEY UPDATE \
             version = IF({record}.deleted = 1, LAST_INSERT_ID(GREATEST({record}.version + 1, \
             {now})), \
             {record}.version + LAST_INSERT_ID(0)), \
             value = IF({record}.deleted = 1, {new}, {record}.value), \
             written_at = IF({record}.deleted = 1, {now}, {record}.written_at), \
             deleted = 0",
            hex(key.as_str().as_bytes()),
            hex(value),
        )
    }

    /// Fails at once when another transaction has locked the operation's row.
    /// An operation whose row was found locked before sends this first, so that it does not delay
    /// others.
    pub(crate) fn probe(&self, op: &Operation) -> String {
        let (table, column) = self.table(match op.lock() {
            Some(_) => Reaped::Locks,
            None => Reaped::Records,
        });
        format!(
            "SELECT {column} FROM {table} WHERE {column} = {} FOR UPDATE NOWAIT",
            hex(op.key().as_bytes())
        )
    }
}
