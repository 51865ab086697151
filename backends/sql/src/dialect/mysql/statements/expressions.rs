//! Expressions that several statements share.

use crate::dialect::Reaped;

/// The time when the statement began, in microseconds since 1970, UTC. The value does not depend on
/// the session's time zone.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// The time when the statement has locked the row, after any wait for other transactions. Only
/// `SYSDATE` returns this time, but `SYSDATE` has no form in UTC. So the expression adds the
/// difference between `SYSDATE` and `NOW` to the UTC time when the statement began.
pub(super) const ROW_NOW: &str = "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) \
    + TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6)))";

/// The owner in a free row. The value has the length of an owner id, because a server changes a row
/// in place if its length stays the same, and that is much cheaper than moving the row. `NULL`
/// means a free row too; a change by hand may have written `NULL`.
pub(crate) const NOBODY: &str = "x'00000000000000000000000000000000'";

/// A hand-over adds this number to the token in its report when another process waits. Tokens are
/// far smaller than this number.
pub(crate) const WANTED: u64 = 1 << 60;

/// The condition that a row is free or its lease has expired. `table` is the text before each
/// column: a table's name with a dot, or empty.
pub(super) fn free_condition(table: &str, now: &str) -> String {
    format!(
        "({table}expires_at <= {now} OR {table}holder_id = {NOBODY} OR {table}holder_id IS NULL)"
    )
}

pub(super) fn idle_condition(table: Reaped, reap_after: u128) -> String {
    match table {
        // The first condition lets the server use the index on `expires_minute`.
        Reaped::Locks => format!(
            "expires_minute <= ({NOW} - {reap_after}) DIV 60000000 AND expires_at <= {NOW} - \
                {reap_after} AND token < {NOW}"
        ),
        Reaped::Records => {
            format!("deleted = 1 AND written_at <= {NOW} - {reap_after} AND version < {NOW}")
        }
    }
}
