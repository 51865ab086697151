//! Expressions that several statements share.

use distlock_core::{Lease, Renewal};

use super::literals::hex;
use crate::dialect::{Reaped, mysql::flavour::Flavour};

/// Microseconds since 1970. It does not depend on the session's time zone.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// The same time for all statements of a batch, once [`SET_BATCH_NOW`] was sent.
pub(crate) const BATCH_NOW: &str = "@distlock_now";

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

pub(crate) const SET_BATCH_NOW: &str =
    "SET @distlock_now = TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// The conflict clause of an insert: takes the row when it is free, expired or ours already. The
/// tokens are those of a row that is taken, and of a row that is not.
///
/// Assignments are carried out from left to right and see the values of those before them, so that
/// owner and end of the lease come last.
pub(crate) fn unless_held(
    lock: &str,
    flavour: Flavour,
    now: &str,
    hint_id: &str,
    [taken, kept]: [&str; 2],
) -> String {
    let new = |column: &str| flavour.new_column(column);
    let old = |column: &str| format!("{lock}.{column}");
    let held_by = old("holder_id");
    let free = free_condition(&format!("{lock}."), now);
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
            &format!("{ours} AND {} = {hint_id}", old("wanted_by")),
            "0",
        ),
        set("holder", &ours, &new("holder")),
        set("meta", &ours, &new("meta")),
        set("holder_id", &ours, &new("holder_id")),
        set(
            "expires_at",
            &format!("{held_by} = {}", new("holder_id")),
            &lease_end(&format!("{lock}."), now, &new("expires_at")),
        ),
    ];
    format!(
        "{} ON DUPLICATE KEY UPDATE {}",
        flavour.new_row(),
        assignments.join(", ")
    )
}

/// The end of the lease of a row that is taken `until` then. A row that was its owner's already
/// keeps a later end; such a row shows by its time of acquiring.
pub(super) fn lease_end(table: &str, now: &str, until: &str) -> String {
    format!("IF({table}acquired_at = {now}, {until}, GREATEST({table}expires_at, {until}))")
}

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

/// The condition for the row of a lease that is still its owner's.
pub(super) fn owned_row(lease: &Lease) -> String {
    let name = hex(lease.name.as_str().as_bytes());
    let owner = hex(lease.owner.as_uuid().as_bytes());
    let token = lease
        .token
        .map_or_else(String::new, |token| format!(" AND token = {}", token.get()));
    format!("lock_name = {name} AND holder_id = {owner}{token}")
}

pub(super) fn micros(renewal: Renewal) -> u64 {
    renewal.ttl.as_millis() * 1000
}
