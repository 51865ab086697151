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
    /// A turn in the future was taken when the clock was wrong, so that it does not count.
    pub(crate) fn claim_reaping(&self, every: u128) -> String {
        format!(
            "UPDATE {} SET reaped_at = {NOW} \
             WHERE id = 1 AND (reaped_at IS NULL OR reaped_at <= {NOW} - {every} OR reaped_at > \
             {NOW})",
            self.meta
        )
    }

    /// Some idle rows. A row whose token is not below the clock stays: a new row's token would not
    /// be higher.
    pub(crate) fn idle(&self, table: Reaped, reap_after: u128) -> String {
        let (name, column) = self.table(table);
        let condition = idle_condition(table, reap_after);
        format!("SELECT {column} FROM {name} WHERE {condition} LIMIT {PAGE}")
    }

    pub(crate) fn reap(&self, table: Reaped, keys: &[Vec<u8>], reap_after: u128) -> String {
        let (name, column) = self.table(table);
        let condition = idle_condition(table, reap_after);
        // The statement uses the form for several tables, because the other form cannot force an
        // index.
        format!(
            "DELETE idle FROM {name} AS idle FORCE INDEX (PRIMARY) WHERE {column} IN ({}) AND \
                {condition}",
            list(keys.iter().map(Vec::as_slice))
        )
    }
}
