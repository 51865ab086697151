//! Statements that change rows, one for each kind of operation.
//!
//! A lone operation and a batch use the same text: the statements of acquires, releases and
//! renewals accept any number of rows. Each statement reports one number: its `LAST_INSERT_ID`.

use distlock_backend_kit::operation::Operation;
use distlock_core::{AcquireRequest, FencingToken, Lease, Renewal, TicketStep};
use uuid::Uuid;

use super::set::{
    NOBODY, NOW, ROW_NOW, Statement, Statements, Value, WANTED, free_condition, hex, list,
};
use crate::{
    dialect::{Reaped, mysql::flavour::Flavour},
    rows::FORCED,
};

/// The report of an acquire after which the rows must be read, because at least one lock has
/// another result than a grant with the present time as its token. Such a lock was refused, or its
/// owner held the lock already, or its new token is higher than the time.
pub(crate) const READ_THE_ROWS: u64 = 1;

/// The numbers of rows for which an acquire is prepared. A batch of another size uses the next
/// larger number and repeats its last row. The repetition is harmless, because an owner that holds
/// a lock gets the same grant again.
const SIZES: [usize; 13] = [1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// The largest number of statements that a connection prepares: one acquire for each size, release
/// and hand-over, each with and without a token, and release by ticket.
pub(crate) const MOST: usize = SIZES.len() + 5;

impl Statements {
    /// The statement of one operation. The statement changes nothing if the row's state does not
    /// allow the operation.
    pub(crate) fn of_one<'a>(
        &self,
        op: &'a Operation,
        hint_id: i64,
        flavour: Flavour,
    ) -> Statement<'a> {
        match op {
            Operation::Acquire(request) => self.acquire(&[request], hint_id, flavour),
            Operation::Renew(lease, renewal) => self.renew(&[lease], renewal),
            Operation::Release(lease) => self.release(&[lease], hint_id),
            Operation::HandOver(lease, next) => self.hand_over(lease, next, hint_id),
            Operation::ForceRelease(name, token) => Statement::new(
                format!(
                    "UPDATE {} SET holder_id = {NOBODY}, expires_at = {NOW}, meta = ?, nonce = \
                        NULL \
                     WHERE lock_name = ? AND token = ? AND holder_id <> {NOBODY} AND expires_at > \
                        {NOW}",
                    self.lock
                ),
                vec![Value::Text(Some(FORCED)), name.into(), token.get().into()],
            ),
            Operation::Create(key, value) => self.create(key.as_str(), value, flavour),
            Operation::Replace(key, value, version) => Statement::new(
                format!(
                    "UPDATE {} SET version = LAST_INSERT_ID(GREATEST(version + 1, {NOW})), \
                     value = ?, written_at = {NOW} \
                     WHERE record_key = ? AND version = ? AND deleted = 0",
                    self.record
                ),
                vec![
                    bytes(value),
                    bytes(key.as_str().as_bytes()),
                    version.get().into(),
                ],
            ),
            // The row stays as a tombstone until it is reaped.
            Operation::Delete(key, version) => Statement::new(
                format!(
                    "UPDATE {} SET value = '', deleted = 1, written_at = {NOW} \
                     WHERE record_key = ? AND version = ? AND deleted = 0",
                    self.record
                ),
                vec![bytes(key.as_str().as_bytes()), version.get().into()],
            ),
        }
    }

    /// Grants each lock whose row is missing, free, expired or already held by the same owner. The
    /// requests are sorted by name. The statement reports the present time, which is the token of
    /// every grant; or [`READ_THE_ROWS`].
    ///
    /// The order of the columns matters. Within `VALUES`, an expression can use an earlier column
    /// of the same row: the time is computed once, in `acquired_at`. The server evaluates `VALUES`
    /// before the assignments of `ON DUPLICATE KEY UPDATE`. These assignments run from left to
    /// right, and a later assignment sees the results of the earlier assignments. The conditions
    /// read the owner and the end of the lease, so that these two columns are assigned last.
    pub(crate) fn acquire<'a>(
        &self,
        requests: &[&'a AcquireRequest],
        hint_id: i64,
        flavour: Flavour,
    ) -> Statement<'a> {
        let lock = &self.lock;
        let size = SIZES.iter().find(|size| **size >= requests.len());
        let size = size.copied().unwrap_or(requests.len());
        let last = requests.last().copied();
        let rows = requests
            .iter()
            .copied()
            .chain(std::iter::repeat_n(last, size.saturating_sub(requests.len())).flatten());
        let mut values = Vec::with_capacity(size * 5 + 1);
        for request in rows {
            values.extend([
                Value::from(&request.name),
                Value::from(&request.owner),
                Value::from(request.ttl),
                Value::Text(Some(request.holder.as_str())),
                Value::from(&request.meta),
            ]);
        }
        values.push(Value::Number(hint_id));

        let row = |token: &str| format!("(?, ?, {NOW}, {token}, acquired_at + ?, ?, ?)");
        let first = row("LAST_INSERT_ID(acquired_at)");
        let others = format!(", {}", row("acquired_at")).repeat(size.saturating_sub(1));

        let text = format!(
            "INSERT INTO {lock} \
             (lock_name, holder_id, acquired_at, token, expires_at, holder, meta) \
             VALUES {first}{others}{} ON DUPLICATE KEY UPDATE {}",
            flavour.new_row(),
            self.unless_held(flavour)
        );
        Statement::new(text, values).frequent()
    }

    /// The assignments of an acquire to a row that exists. The only `?` stands for this process's
    /// hint id.
    fn unless_held(&self, flavour: Flavour) -> String {
        let lock = &self.lock;
        let new = |column: &str| flavour.new_column(column);
        let old = |column: &str| format!("{lock}.{column}");
        let (now, owner, new_end) = (new("acquired_at"), new("holder_id"), new("expires_at"));
        let (token, held_by) = (old("token"), old("holder_id"));
        let free = free_condition(&format!("{lock}."), &now);
        let ours = format!("({free} OR {held_by} = {owner})");
        let set = |column: &str, condition: &str, value: &str| {
            format!("{column} = IF({condition}, {value}, {})", old(column))
        };
        let report = format!("0 * LAST_INSERT_ID({READ_THE_ROWS})");
        [
            format!(
                "token = IF({free}, IF({token} < {now}, {now}, {token} + 1 + {report}), \
                 {token} + IF({held_by} = {owner} AND {token} = {now}, 0, {report}))"
            ),
            set("acquired_at", &free, &now),
            set("nonce", &free, "NULL"),
            set(
                "hint_until",
                &format!("{ours} AND {} = ?", old("hint_id")),
                "0",
            ),
            set("holder", &ours, &new("holder")),
            set("meta", &ours, &new("meta")),
            set("holder_id", &ours, &owner),
            // The owner is the new owner by now. If `acquired_at` is not the present time, this
            // owner held the lock before the statement; then the later end of the lease is kept.
            set(
                "expires_at",
                &format!("{held_by} = {owner}"),
                &format!(
                    "IF({} = {now}, {new_end}, GREATEST({}, {new_end}))",
                    old("acquired_at"),
                    old("expires_at")
                ),
            ),
        ]
        .join(", ")
    }

    /// Frees the rows of these leases. Reports 1 when another process waits for at least one of
    /// these locks. A ticket ends with its lease, so only a guard also releases a lease that has
    /// expired and is still in its row.
    pub(crate) fn release<'a>(&self, leases: &[&'a Lease], hint_id: i64) -> Statement<'a> {
        // Assignments run from left to right: the condition below reads the new `expires_at`, which
        // is the present time.
        let set = format!(
            "expires_at = {NOW}, \
             token = token + IF(hint_until > expires_at AND hint_id <> ?, 0 * \
             LAST_INSERT_ID(1), 0), \
             holder_id = {NOBODY}, meta = NULL, nonce = NULL"
        );
        let by_ticket = leases.iter().any(|lease| lease.nonce.is_some());
        let condition = match by_ticket {
            true => format!(" AND expires_at > {ROW_NOW}"),
            false => String::new(),
        };
        self.update(&set, vec![Value::Number(hint_id)], leases, &condition)
            .frequent()
    }

    /// Extends leases that have not ended, raises their tokens, and changes their tickets. Reports
    /// a token. The new end of a lease counts from the time when the statement has locked the row.
    ///
    /// The row keeps a raised token after a release and after the end of the lease, and the reaper
    /// leaves the row until the server's clock is above the token. So the next grant is above the
    /// floor.
    pub(crate) fn renew<'a>(&self, leases: &[&'a Lease], renewal: &Renewal) -> Statement<'a> {
        let (set, issued) = match renewal.ticket {
            TicketStep::Keep => ("", None),
            TicketStep::Issue(issued) => (", nonce = ?", Some(nonce(issued))),
            TicketStep::Redeem => (", nonce = NULL", None),
        };
        let (token, floor) = match renewal.token_floor {
            Some(floor) => ("GREATEST(token, ?)", Some(Value::from(floor.get()))),
            None => ("token", None),
        };
        let set = format!("token = LAST_INSERT_ID({token}), expires_at = {ROW_NOW} + ?{set}");
        let values = [floor, Some(Value::from(renewal.ttl)), issued];
        let condition = format!(" AND expires_at > {ROW_NOW}");
        let values = values.into_iter().flatten().collect();
        self.update(&set, values, leases, &condition)
    }

    /// Grants the row of a lease that has not ended to another owner. Reports the new token, plus
    /// [`WANTED`] when another process waits.
    fn hand_over<'a>(
        &self,
        lease: &'a Lease,
        next: &'a AcquireRequest,
        hint_id: i64,
    ) -> Statement<'a> {
        let set = format!(
            "acquired_at = {NOW}, token = GREATEST(token + 1, acquired_at), \
             expires_at = acquired_at + ? + 0 * LAST_INSERT_ID(token + IF(hint_until > \
             acquired_at AND hint_id <> ?, {WANTED}, 0)), \
             holder_id = ?, holder = ?, meta = ?, nonce = NULL"
        );
        let values = vec![
            next.ttl.into(),
            Value::Number(hint_id),
            (&next.owner).into(),
            Value::Text(Some(next.holder.as_str())),
            (&next.meta).into(),
        ];
        let condition = format!(" AND expires_at > {NOW}");
        self.update(&set, values, &[lease], &condition).frequent()
    }

    /// Changes the rows of these leases, if the row still has the lease's owner and token.
    ///
    /// The condition joins owner, token and name of a lease to one value. The reason is speed: the
    /// servers search a single value in a sorted list, but compare tuples of values with each entry
    /// of a list. The joined value is unambiguous, because the owner has 16 bytes and a `/` ends
    /// the token. Only a lone lease may have no token, or a ticket.
    fn update<'a>(
        &self,
        set: &str,
        mut values: Vec<Value<'a>>,
        leases: &[&'a Lease],
        condition: &str,
    ) -> Statement<'a> {
        let with_token = leases.iter().all(|lease| lease.token.is_some());
        let token_column = if with_token { "token, " } else { "" };
        let places = vec!["?"; leases.len()].join(",");
        values.extend(leases.iter().map(|lease| Value::from(&lease.name)));
        values.extend(leases.iter().map(|lease| {
            let mut value = lease.owner.as_uuid().as_bytes().to_vec();
            if let Some(token) = lease.token.map(FencingToken::get) {
                value.extend_from_slice(token.to_string().as_bytes());
            }
            value.push(b'/');
            value.extend_from_slice(lease.name.as_str().as_bytes());
            Value::Bytes(value.into())
        }));
        let tickets: Vec<_> = leases.iter().filter_map(|lease| lease.nonce).collect();
        let of_ticket = " AND nonce = ?".repeat(tickets.len());
        values.extend(tickets.into_iter().map(nonce));
        let text = format!(
            "UPDATE {} FORCE INDEX (PRIMARY) SET {set} WHERE lock_name IN ({places}) AND \
             CONCAT(holder_id, {token_column}'/', lock_name) IN ({places}){of_ticket}{condition}",
            self.lock
        );
        Statement::new(text, values)
    }

    /// Creates a record. Reports its version, or 0 when the record exists. In the place of a
    /// tombstone, the new version is higher than the tombstone's version.
    fn create<'a>(&self, key: &'a str, value: &'a [u8], flavour: Flavour) -> Statement<'a> {
        let record = &self.record;
        let (alias, new) = (flavour.new_row(), flavour.new_column("value"));
        let text = format!(
            "INSERT INTO {record} (record_key, version, value, deleted, written_at) \
             VALUES (?, LAST_INSERT_ID({NOW}), ?, 0, {NOW}){alias} \
             ON DUPLICATE KEY UPDATE \
             version = IF({record}.deleted = 1, LAST_INSERT_ID(GREATEST({record}.version + 1, \
             {NOW})), {record}.version + LAST_INSERT_ID(0)), \
             value = IF({record}.deleted = 1, {new}, {record}.value), \
             written_at = IF({record}.deleted = 1, {NOW}, {record}.written_at), \
             deleted = 0"
        );
        Statement::new(text, vec![bytes(key.as_bytes()), bytes(value)])
    }

    /// A transaction around `change`, in which `change` changes the rows of all `leases` or of
    /// none. If `change` matches too few rows, the transaction fails with the error
    /// `MySqlTrouble::NotAll` before its commit. If `waits` is false, the transaction fails at once
    /// when another transaction has locked one of the rows.
    pub(crate) fn all_or_none(
        &self,
        change: &Statement<'_>,
        leases: &[&Lease],
        waits: bool,
    ) -> Vec<String> {
        let mut statements = vec!["START TRANSACTION".to_owned()];
        if !waits {
            let names = leases.iter().map(|lease| lease.name.as_str().as_bytes());
            statements.push(format!(
                "SELECT COUNT(lock_name) FROM {} FORCE INDEX (PRIMARY) WHERE lock_name IN ({}) \
                 FOR UPDATE NOWAIT",
                self.lock,
                list(names)
            ));
        }
        statements.push(change.to_text());
        // `EXP(710)` overflows, and the overflow is the error. `EXP(0)` is no error. MySQL has no
        // other way to raise an error outside a stored program.
        statements.push(format!(
            "SET @distlock_all = EXP(710 * (ROW_COUNT() <> {}))",
            leases.len()
        ));
        statements.push("COMMIT".to_owned());
        statements
    }

    /// Fails at once when another transaction has locked the operation's row. This statement is
    /// sent before an operation whose row was locked recently: otherwise the operation would wait
    /// for the row and keep a connection busy.
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

fn nonce<'a>(nonce: Uuid) -> Value<'a> {
    Value::Bytes(nonce.as_bytes().to_vec().into())
}

fn bytes(bytes: &[u8]) -> Value<'_> {
    Value::Bytes(bytes.into())
}
