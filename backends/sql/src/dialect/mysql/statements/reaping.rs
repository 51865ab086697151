//! Statements of the reaper.

use super::{
    expressions::{NOW, idle_condition},
    literals::list,
    set::Statements,
};
use crate::dialect::Reaped;

/// The number of rows that one step of the reaper removes.
pub(crate) const PAGE: usize = 500;

impl Statements {
    /// Claims a run of the reaper, unless a process has claimed a run within `every` microseconds.
    /// An earlier claim with a time in the future does not count: the clock was wrong at that time.
    pub(crate) fn claim_reaping(&self, every: u128) -> String {
        format!(
            "UPDATE {} SET reaped_at = {NOW} \
             WHERE id = 1 AND (reaped_at IS NULL OR reaped_at <= {NOW} - {every} OR reaped_at > \
             {NOW})",
            self.meta
        )
    }

    /// The keys of up to [`PAGE`] idle rows. A row is not idle if its token is not below the
    /// present time: the next grant would create a new row, whose token is the time, and that token
    /// would not be higher.
    pub(crate) fn idle(&self, table: Reaped, reap_after: u128) -> String {
        let (name, column) = self.table(table);
        let condition = idle_condition(table, reap_after);
        format!("SELECT {column} FROM {name} WHERE {condition} LIMIT {PAGE}")
    }

    pub(crate) fn reap(&self, table: Reaped, keys: &[Vec<u8>], reap_after: u128) -> String {
        let (name, column) = self.table(table);
        let condition = idle_condition(table, reap_after);
        // This is the form of `DELETE` for several tables. The form for one table has no `FORCE
        // INDEX`.
        format!(
            "DELETE idle FROM {name} AS idle FORCE INDEX (PRIMARY) WHERE {column} IN ({}) AND \
                {condition}",
            list(keys.iter().map(Vec::as_slice))
        )
    }
}
