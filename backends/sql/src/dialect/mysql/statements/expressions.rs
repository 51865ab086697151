//! Expressions that several statements share.

use crate::dialect::Reaped;

/// Microseconds since 1970. It does not depend on the session's time zone.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// The time when the row is at hand, after waiting for others who had it locked. `SYSDATE` has no
/// form in UTC: so it only adds how much later it is than `NOW`.
pub(super) const ROW_NOW: &str = "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) \
    + TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6)))";

/// The owner in a free row. It is as long as an owner id, because a server changes a row of the
/// same length in place, at much less cost than it makes room for another. `NULL`, which others may
/// have written, means the same.
pub(crate) const NOBODY: &str = "x'00000000000000000000000000000000'";

/// Added to the token that a hand-over reports when another process waits: tokens are far below.
pub(crate) const WANTED: u64 = 1 << 60;

/// The condition that nobody holds a row, or that its lease is over. `table` stands before its
/// columns.
pub(super) fn free_condition(table: &str, now: &str) -> String {
    format!(
        "({table}expires_at <= {now} OR {table}holder_id = {NOBODY} OR {table}holder_id IS NULL)"
    )
}

pub(super) fn idle_condition(table: Reaped, reap_after: u128) -> String {
    match table {
        // The index leads by minutes.
        Reaped::Locks => format!(
            "expires_minute <= ({NOW} - {reap_after}) DIV 60000000 AND expires_at <= {NOW} - \
                {reap_after} AND token < {NOW}"
        ),
        Reaped::Records => {
            format!("deleted = 1 AND written_at <= {NOW} - {reap_after} AND version < {NOW}")
        }
    }
}
