//! Every statement that is sent in normal operation.
//!
//! Statements are text without parameters, except those that are [`prepared`](super::prepared): all values are numbers or
//! hexadecimal literals (see [`literals`](super::literals)), so that no mode, quoting style or character set of the server
//! changes their meaning, and several statements travel in one round trip. Each answers for itself: how many rows it matched, and what it gave to `LAST_INSERT_ID`, which comes back
//! in the same packet.
//!
//! Now is the server's UTC clock as it was when the statement began, so a lease that was waited for counts from before. A
//! statement that nobody waits for any more may still stand before a row that somebody has locked, and come to it with a time
//! that has long passed: it must not cut what its lock's holder was told since. So who takes a lock that is its own already
//! only ever adds to the lease, and a renewal, which may be meant to shorten it, counts from when it has the row.

use std::{fmt::Write as _, time::Duration};

use distlock_core::{
    AcquireRequest, FencingToken, Lease, LockName, Meta, RecordKey, Renewal, TicketStep, Ttl,
};

use super::{
    dialect::PAGE,
    literals::{hex, list, opaque, push_hex, push_text, text},
    prepared::Prepared,
    server::Flavour,
};
use crate::{
    dialect::{FORCED, Place, Reaped},
    op::Op,
    wait::{RENEW_WANTED, SEVERAL},
};

/// Microseconds since 1970. No session's time zone has a part in it.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// The same for all statements of a batch, once [`SET_BATCH_NOW`] was sent.
pub(super) const BATCH_NOW: &str = "@distlock_now";

/// The same as it is when the row is at hand, after others who had it locked. `SYSDATE` has no form that is at UTC whatever the
/// session's time zone: so it only says how much later it is.
const ROW_NOW: &str = "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) \
    + TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6)))";

/// Who stands in a row that was freed: nobody. As long as an identity, because a row that keeps its length is changed where it
/// is, which takes a server much less than making room for another; `NULL`, as others may have written, means the same.
pub(super) const NOBODY: &str = "x'00000000000000000000000000000000'";

/// What is added to the token that a hand-over says when another process waits: tokens are far below.
pub(super) const WANTED: u64 = 1 << 60;

pub(super) const SET_BATCH_NOW: &str =
    "SET @distlock_now = TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// The statements of one table prefix.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) prefix: String,
    pub(super) lock: String,
    pub(super) record: String,
    pub(super) meta: String,
    pub(super) line: String,
    /// For MariaDB and for MySQL.
    prepared: [Prepared; 2],
}

impl Statements {
    /// `prefix` was checked by [`ServerConfig::check`](crate::ServerConfig::check).
    pub(super) fn new(prefix: &str) -> Self {
        let table = |name: &str| format!("{prefix}distributed_{name}");
        let prepared = |flavour| Prepared::new(&table("lock"), flavour);
        Self {
            prefix: prefix.to_owned(),
            prepared: [prepared(Flavour::MariaDb), prepared(Flavour::MySql)],
            lock: table("lock"),
            record: table("record"),
            meta: table("meta"),
            line: table("line"),
        }
    }

    /// The statements that this product is to remember.
    pub(super) const fn prepared(&self, flavour: Flavour) -> &Prepared {
        let [mariadb, mysql] = &self.prepared;
        match flavour {
            Flavour::MariaDb => mariadb,
            Flavour::MySql => mysql,
        }
    }

    /// What changes the row of one operation, if it is as it must be; `now` is [`NOW`] or [`BATCH_NOW`].
    pub(super) fn write(&self, op: &Op, mark: i64, flavour: Flavour, now: &str) -> String {
        let lock = &self.lock;
        match op {
            Op::Acquire(request) => self.acquire(request, mark, now),
            Op::Renew(lease, renewal) => {
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
                    "UPDATE {lock} SET token = LAST_INSERT_ID(token), expires_at = {ROW_NOW} + {ttl}{set} \
                     WHERE {} AND expires_at > {ROW_NOW}{condition}",
                    of(lease)
                )
            }
            // Says 2 when another process waits, else 1. Assignments are carried out from left to right and see what those
            // before them did, so that the time is worked out once.
            Op::Release(lease) => format!(
                "UPDATE {lock} SET expires_at = {now}, \
                 token = token + 0 * LAST_INSERT_ID(IF(wanted_until > expires_at AND wanted_by <> {mark}, 2, 1)), \
                 holder_id = {NOBODY}, meta = NULL, nonce = NULL WHERE {}",
                of(lease)
            ),
            // Says the token, and [`WANTED`] beside it when another process waits.
            Op::HandOver(lease, next) => format!(
                "UPDATE {lock} SET acquired_at = {now}, token = GREATEST(token + 1, acquired_at), \
                 expires_at = acquired_at + {} + 0 * LAST_INSERT_ID(token + IF(wanted_until > acquired_at AND wanted_by <> {mark}, {WANTED}, 0)), \
                 holder_id = {}, holder = {}, meta = {}, nonce = NULL WHERE {} AND expires_at > {now}",
                next.ttl.as_millis() * 1000,
                hex(next.owner.as_uuid().as_bytes()),
                text(next.holder.as_str()),
                opaque(next.meta.as_ref().map(Meta::as_str)),
                of(lease)
            ),
            Op::Force(name, token) => format!(
                "UPDATE {lock} SET holder_id = {NOBODY}, expires_at = {now}, meta = {}, nonce = NULL \
                 WHERE lock_name = {} AND token = {} AND holder_id <> {NOBODY} AND expires_at > {now}",
                text(FORCED),
                hex(name.as_str().as_bytes()),
                token.get()
            ),
            Op::Create(key, value) => self.create(key, value, flavour, now),
            Op::Replace(key, value, version) => format!(
                "UPDATE {} SET version = LAST_INSERT_ID(GREATEST(version + 1, {now})), value = {}, written_at = {now} \
                 WHERE record_key = {} AND version = {} AND deleted = 0",
                self.record,
                hex(value),
                hex(key.as_str().as_bytes()),
                version.get()
            ),
            // The row stays as a tombstone until it is reaped.
            Op::Delete(key, version) => format!(
                "UPDATE {} SET value = '', deleted = 1, written_at = {now} \
                 WHERE record_key = {} AND version = {} AND deleted = 0",
                self.record,
                hex(key.as_str().as_bytes()),
                version.get()
            ),
        }
    }

    /// Takes a missing, free or stale row, or one that is ours already, and says its token; 0 for one that is held.
    ///
    /// The values of the insert are evaluated first in any case, so the branch that refuses must say 0 itself. Assignments
    /// are carried out from left to right and see what those before them did: who holds it and until when come last.
    fn acquire(&self, request: &AcquireRequest, mark: i64, now: &str) -> String {
        let owner = hex(request.owner.as_uuid().as_bytes());
        let until = format!("{now} + {}", request.ttl.as_millis() * 1000);
        let holder = text(request.holder.as_str());
        let meta = opaque(request.meta.as_ref().map(Meta::as_str));
        let free = free("", now);
        let ours = format!("({free} OR holder_id = {owner})");
        format!(
            "INSERT INTO {} (lock_name, holder_id, token, acquired_at, expires_at, holder, meta) \
             VALUES ({}, {owner}, LAST_INSERT_ID({now}), {now}, {until}, {holder}, {meta}) \
             ON DUPLICATE KEY UPDATE \
             token = CASE WHEN {free} THEN LAST_INSERT_ID(GREATEST(token + 1, {now})) \
             WHEN holder_id = {owner} THEN LAST_INSERT_ID(token) ELSE token + LAST_INSERT_ID(0) END, \
             acquired_at = IF({free}, {now}, acquired_at), \
             nonce = IF({free}, NULL, nonce), \
             wanted_until = IF({ours} AND wanted_by = {mark}, 0, wanted_until), \
             holder = IF({ours}, {holder}, holder), \
             meta = IF({ours}, {meta}, meta), \
             holder_id = IF({ours}, {owner}, holder_id), \
             expires_at = IF(holder_id = {owner}, {}, expires_at)",
            self.lock,
            hex(request.name.as_str().as_bytes()),
            lasting("", now, &until),
        )
    }

    /// As [`Self::acquire`] for many names, sorted, and then the time, which is the token of each. Where one was refused, held
    /// already, or has another token, the insert says so by 1 as its `LAST_INSERT_ID`, and the rows must be looked at.
    pub(super) fn acquire_all(
        &self,
        requests: &[&AcquireRequest],
        mark: i64,
        flavour: Flavour,
    ) -> String {
        let now = BATCH_NOW;
        let lock = &self.lock;
        let mut sql = String::with_capacity(1200 + requests.len() * 320);
        let _ = write!(
            sql,
            "{SET_BATCH_NOW}; \
             INSERT INTO {lock} (lock_name, holder_id, token, acquired_at, expires_at, holder, meta) VALUES "
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
            &mark.to_string(),
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

    /// Frees the leases, all of which have tokens; or none of them, where one is not its owner's any more. The `LAST_INSERT_ID`
    /// of the update is 1 when another process waits for one of them.
    pub(super) fn release_all(&self, leases: &[&Lease], mark: i64) -> String {
        let now = BATCH_NOW;
        self.change_all(
            leases,
            &format!(
                "token = token + IF(wanted_until > {now} AND wanted_by <> {mark}, 0 * LAST_INSERT_ID(1), 0), \
                 holder_id = {NOBODY}, expires_at = {now}, meta = NULL, nonce = NULL"
            ),
            "",
            true,
        )
    }

    /// Renews the leases, all of which have tokens; or none of them, where one is over or not its owner's any more. Unless it
    /// `waits`, it fails at once where somebody else has locked one.
    pub(super) fn renew_all(&self, leases: &[&Lease], ttl: Ttl, waits: bool) -> String {
        self.change_all(
            leases,
            &format!("expires_at = {ROW_NOW} + {}", ttl.as_millis() * 1000),
            &format!(" AND expires_at > {ROW_NOW}"),
            waits,
        )
    }

    /// Changes the rows of all of these leases, or fails with an error of its own, [`MySqlTrouble::NotAll`], before anything is
    /// committed.
    ///
    /// [`MySqlTrouble::NotAll`]: super::errors::MySqlTrouble::NotAll
    fn change_all(&self, leases: &[&Lease], set: &str, condition: &str, waits: bool) -> String {
        let lock = &self.lock;
        let mut sql = String::with_capacity(600 + leases.len() * 200);
        let _ = write!(sql, "{SET_BATCH_NOW}; START TRANSACTION; ");
        if !waits {
            let names = leases.iter().map(|lease| lease.name.as_str().as_bytes());
            let _ = write!(
                sql,
                "SELECT COUNT(lock_name) FROM {lock} FORCE INDEX (PRIMARY) WHERE lock_name IN ({}) FOR UPDATE NOWAIT; ",
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
        push_owned(&mut sql, leases);
        // Too large a number, where the update has found fewer rows.
        let _ = write!(
            sql,
            "; SET @distlock_all = EXP(710 * (ROW_COUNT() <> {})); COMMIT",
            leases.len()
        );
        sql
    }

    /// Says the version, or 0 when there is such a record. A tombstone's version is passed, never repeated.
    fn create(&self, key: &RecordKey, value: &[u8], flavour: Flavour, now: &str) -> String {
        let record = &self.record;
        let (alias, new) = (flavour.new_row(), flavour.new_column("value"));
        format!(
            "INSERT INTO {record} (record_key, version, value, deleted, written_at) \
             VALUES ({}, LAST_INSERT_ID({now}), {}, 0, {now}){alias} \
             ON DUPLICATE KEY UPDATE \
             version = IF({record}.deleted = 1, LAST_INSERT_ID(GREATEST({record}.version + 1, {now})), \
             {record}.version + LAST_INSERT_ID(0)), \
             value = IF({record}.deleted = 1, {new}, {record}.value), \
             written_at = IF({record}.deleted = 1, {now}, {record}.written_at), \
             deleted = 0",
            hex(key.as_str().as_bytes()),
            hex(value),
        )
    }

    /// Answers with an error at once when the operation's row is locked by another transaction.
    pub(super) fn probe(&self, op: &Op) -> String {
        let (table, column) = self.table(match op.lock() {
            Some(_) => Reaped::Locks,
            None => Reaped::Records,
        });
        format!(
            "SELECT {column} FROM {table} WHERE {column} = {} FOR UPDATE NOWAIT",
            hex(op.key().as_bytes())
        )
    }

    pub(super) fn look<'a>(&self, names: impl Iterator<Item = &'a LockName>) -> String {
        format!(
            "SELECT {} FROM {} WHERE lock_name IN ({})",
            lock_columns(),
            self.lock,
            list(names.map(|name| name.as_str().as_bytes()))
        )
    }

    /// Which of the rows are there, and which of them nobody has locked: 0 or 1, and the key.
    pub(super) fn there_and_unlocked(&self, table: Reaped, keys: &[&[u8]]) -> String {
        let (name, column) = self.table(table);
        let keys = list(keys.iter().copied());
        let rows = format!("{column} FROM {name} FORCE INDEX (PRIMARY) WHERE {column} IN ({keys})");
        format!("SELECT 0, {rows}; SELECT 1, {rows} FOR UPDATE SKIP LOCKED")
    }

    /// Those of the rows that nobody has locked.
    pub(super) fn unlocked<'a>(
        &self,
        table: Reaped,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> String {
        let (table, column) = self.table(table);
        // Without being forced to, the optimiser may well read, and lock, all of a small table.
        format!(
            "SELECT {column} FROM {table} FORCE INDEX (PRIMARY) WHERE {column} IN ({}) FOR UPDATE SKIP LOCKED",
            list(keys)
        )
    }

    fn table(&self, table: Reaped) -> (&str, &'static str) {
        match table {
            Reaped::Locks => (&self.lock, "lock_name"),
            Reaped::Records => (&self.record, "record_key"),
        }
    }

    /// Where the mark of another process stands, it becomes that of several.
    pub(super) fn want(&self, names: &[Vec<u8>], mark: i64, time: Duration) -> String {
        let (micros, renew) = (time.as_micros(), RENEW_WANTED.as_micros());
        format!(
            "UPDATE {} FORCE INDEX (PRIMARY) \
             SET wanted_by = IF(wanted_until > {NOW} + {renew}, {SEVERAL}, {mark}), wanted_until = {NOW} + {micros} \
             WHERE lock_name IN ({}) AND holder_id <> {NOBODY} \
             AND (wanted_by NOT IN ({mark}, {SEVERAL}) OR wanted_until <= {NOW} + {renew})",
            self.lock,
            list(names.iter().map(Vec::as_slice))
        )
    }

    /// Takes places in lines, or renews them, and says for each its name and how many are ahead.
    pub(super) fn keep_places(&self, places: &[Place], lease: Duration) -> String {
        let line = &self.line;
        let rows = |write: &dyn Fn(&Place, String) -> String| {
            let rows = places.iter();
            let rows = rows.map(|it| write(it, hex(it.name.as_str().as_bytes())));
            rows.collect::<Vec<_>>().join(",")
        };
        let until = format!("{NOW} + {}", lease.as_micros());
        let new = rows(&|it, name| format!("({name},{},{NOW},{until})", it.waiter));
        let mine = rows(&|it, name| format!("({name},{})", it.waiter));
        format!(
            "INSERT INTO {line} (lock_name, waiter, ticket, expires_at) VALUES {new} \
             ON DUPLICATE KEY UPDATE expires_at = {until}; \
             SELECT m.lock_name, (SELECT COUNT(*) FROM {line} o WHERE o.lock_name = m.lock_name \
             AND o.expires_at > {NOW} AND (o.ticket, o.waiter) < (m.ticket, m.waiter)) \
             FROM {line} m WHERE (m.lock_name, m.waiter) IN ({mine})"
        )
    }

    /// Gives places up, and removes those of their lines that have lapsed.
    pub(super) fn leave_lines(&self, places: &[Place]) -> String {
        let waiters: Vec<_> = places.iter().map(|it| it.waiter.to_string()).collect();
        format!(
            "DELETE FROM {} WHERE lock_name IN ({}) AND (waiter IN ({}) OR expires_at <= {NOW})",
            self.line,
            list(places.iter().map(|it| it.name.as_str().as_bytes())),
            waiters.join(",")
        )
    }

    /// Removes lapsed places.
    pub(super) fn clear_lines(&self) -> String {
        format!(
            "DELETE FROM {} WHERE expires_at <= {NOW} LIMIT {PAGE}",
            self.line
        )
    }

    /// Held locks from `from` on, below `below`, but not `not`.
    pub(super) fn list(&self, range: &Range<'_>) -> String {
        format!(
            "SELECT {} FROM {} WHERE {} AND holder_id <> {NOBODY} AND expires_at > {NOW} \
             ORDER BY lock_name LIMIT {}",
            lock_columns(),
            self.lock,
            range.condition("lock_name"),
            range.limit
        )
    }

    pub(super) fn get(&self, keys: &[RecordKey]) -> String {
        format!(
            "SELECT record_key, version, value, written_at, {NOW} FROM {} WHERE record_key IN ({}) AND deleted = 0",
            self.record,
            list(keys.iter().map(|key| key.as_str().as_bytes()))
        )
    }

    pub(super) fn scan(&self, range: &Range<'_>) -> String {
        format!(
            "SELECT record_key, version, value, written_at, {NOW} FROM {} WHERE {} AND deleted = 0 \
             ORDER BY record_key LIMIT {}",
            self.record,
            range.condition("record_key"),
            range.limit
        )
    }

    /// A turn that lies ahead was had when the clock was wrong.
    pub(super) fn claim_reaping(&self, every: u128) -> String {
        format!(
            "UPDATE {} SET reaped_at = {NOW} \
             WHERE id = 1 AND (reaped_at IS NULL OR reaped_at <= {NOW} - {every} OR reaped_at > {NOW})",
            self.meta
        )
    }

    /// Some idle rows. One whose token is not below the clock stays: a new row's would not be higher.
    pub(super) fn idle(&self, table: Reaped, reap_after: u128) -> String {
        let (name, column) = self.table(table);
        let condition = idle(table, reap_after);
        format!("SELECT {column} FROM {name} WHERE {condition} LIMIT {PAGE}")
    }

    pub(super) fn reap(&self, table: Reaped, keys: &[Vec<u8>], reap_after: u128) -> String {
        let (name, column) = self.table(table);
        let condition = idle(table, reap_after);
        // The form for several tables, because in the other no index can be forced.
        format!(
            "DELETE idle FROM {name} AS idle FORCE INDEX (PRIMARY) WHERE {column} IN ({}) AND {condition}",
            list(keys.iter().map(Vec::as_slice))
        )
    }
}

/// What the insert of a row does where there is one: takes it when it is free, stale or ours already. The tokens are those
/// of a row that is taken, and of one that is not.
///
/// Assignments are carried out from left to right and see what those before them did: who holds it and until when come last.
pub(super) fn unless_held(
    lock: &str,
    flavour: Flavour,
    now: &str,
    mark: &str,
    [taken, kept]: [&str; 2],
) -> String {
    let new = |column: &str| flavour.new_column(column);
    let old = |column: &str| format!("{lock}.{column}");
    let held_by = old("holder_id");
    let free = free(&format!("{lock}."), now);
    let ours = format!("({free} OR {held_by} = {})", new("holder_id"));
    let set = |column: &str, condition: &str, value: &str| {
        format!("{column} = IF({condition}, {value}, {})", old(column))
    };
    let assignments = [
        format!("token = IF({free}, {taken}, {kept})"),
        set("acquired_at", &free, now),
        set("nonce", &free, "NULL"),
        set(
            "wanted_until",
            &format!("{ours} AND {} = {mark}", old("wanted_by")),
            "0",
        ),
        set("holder", &ours, &new("holder")),
        set("meta", &ours, &new("meta")),
        set("holder_id", &ours, &new("holder_id")),
        set(
            "expires_at",
            &format!("{held_by} = {}", new("holder_id")),
            &lasting(&format!("{lock}."), now, &new("expires_at")),
        ),
    ];
    format!(
        "{} ON DUPLICATE KEY UPDATE {}",
        flavour.new_row(),
        assignments.join(", ")
    )
}

/// How long a lease lasts whose row is taken `until` then: longer, where the row was its owner's already and lasts longer, which
/// shows by when it was acquired.
fn lasting(table: &str, now: &str, until: &str) -> String {
    format!("IF({table}acquired_at = {now}, {until}, GREATEST({table}expires_at, {until}))")
}

/// Whether nobody stands in a row, or somebody whose lease is over. `table` is what its columns are named after.
fn free(table: &str, now: &str) -> String {
    format!(
        "({table}expires_at <= {now} OR {table}holder_id = {NOBODY} OR {table}holder_id IS NULL)"
    )
}

/// Part of a table, in byte order.
pub(super) struct Range<'a> {
    pub(super) from: &'a str,
    pub(super) after: Option<&'a str>,
    pub(super) below: Option<String>,
    pub(super) limit: u32,
}

impl Range<'_> {
    fn condition(&self, column: &str) -> String {
        let mut condition = format!("{column} >= {}", hex(self.from.as_bytes()));
        if let Some(after) = self.after {
            condition += &format!(" AND {column} > {}", hex(after.as_bytes()));
        }
        if let Some(below) = &self.below {
            condition += &format!(" AND {column} < {}", hex(below.as_bytes()));
        }
        condition
    }
}

fn idle(table: Reaped, reap_after: u128) -> String {
    match table {
        // The minutes are what the index leads by.
        Reaped::Locks => format!(
            "expires_minute <= ({NOW} - {reap_after}) DIV 60000000 AND expires_at <= {NOW} - {reap_after} AND token < {NOW}"
        ),
        Reaped::Records => {
            format!("deleted = 1 AND written_at <= {NOW} - {reap_after} AND version < {NOW}")
        }
    }
}

fn lock_columns() -> String {
    format!(
        "lock_name, holder_id, token, expires_at, acquired_at, holder, meta, wanted_by, wanted_until, {NOW}"
    )
}

/// The row of a lease that is still its owner's.
fn of(lease: &Lease) -> String {
    let name = hex(lease.name.as_str().as_bytes());
    let owner = hex(lease.owner.as_uuid().as_bytes());
    let token = lease
        .token
        .map_or_else(String::new, |token| format!(" AND token = {}", token.get()));
    format!("lock_name = {name} AND holder_id = {owner}{token}")
}

/// Whether a row is one of the leases'. One value for each, because servers look a value up in a list, but compare rows of
/// values one by one; unmistakable, because the holder has 16 bytes and the token ends where the name begins.
fn push_owned(sql: &mut String, leases: &[&Lease]) {
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

fn micros(renewal: Renewal) -> u64 {
    renewal.ttl.as_millis() * 1000
}
