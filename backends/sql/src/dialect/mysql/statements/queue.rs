//! Statements of the store queue.

use std::time::Duration;

use distlock_backend_kit::queue_entry::{ENTRY_LEASE, SHOWN_ENTRIES};
use distlock_core::LockName;

use super::{
    expressions::{NOW, ROW_NOW},
    literals::{hex, list, push_text},
    reaping::PAGE,
    set::Statements,
};
use crate::dialect::QueueEntry;

impl Statements {
    /// Takes or renews queue entries. Reports for each entry the lock's name, the number of entries
    /// ahead in the same queue, and the time until all of those have ended. An entry that ends
    /// later than a whole lease from now was written before the server's clock went back, and its
    /// contender may be dead. Such an entry counts again as soon as its contender has renewed it.
    pub(crate) fn renew_queue_entries(&self, entries: &[QueueEntry], lease: Duration) -> String {
        let queue = &self.queue;
        let rows = |write: &dyn Fn(&QueueEntry, String) -> String| {
            let rows = entries.iter();
            let rows = rows.map(|it| write(it, hex(it.name.as_str().as_bytes())));
            rows.collect::<Vec<_>>().join(",")
        };
        let lease = lease.as_micros();
        let until = format!("{NOW} + {lease}");
        let new = rows(&|it, name| {
            let mut row = format!("({name},{},{NOW},{until},", it.id);
            push_text(&mut row, it.holder.as_str());
            row + ")"
        });
        let mine = rows(&|it, name| format!("({name},{})", it.id));
        // `NOW` would be too early for the end of the longest lease: an entry may have been renewed
        // after this statement began and before it reads the entry.
        format!(
            "INSERT INTO {queue} (lock_name, entry_id, joined_at, expires_at, holder) VALUES {new} \
             ON DUPLICATE KEY UPDATE expires_at = {until}; \
             SELECT m.lock_name, COUNT(o.entry_id), COALESCE(MAX(o.expires_at) - {NOW}, 0) \
             FROM {queue} m LEFT JOIN {queue} o ON o.lock_name = m.lock_name \
             AND o.expires_at > {NOW} AND o.expires_at <= {ROW_NOW} + {lease} \
             AND (o.joined_at, o.entry_id) < (m.joined_at, m.entry_id) \
             WHERE (m.lock_name, m.entry_id) IN ({mine}) GROUP BY m.lock_name, m.entry_id"
        )
    }

    /// The queue of a lock. Each row has the number of living entries and the label of one of them,
    /// in the order of the queue.
    pub(crate) fn read_queue(&self, name: &LockName) -> String {
        let lease = ENTRY_LEASE.as_micros();
        format!(
            "SELECT COUNT(*) OVER (), holder FROM {} WHERE lock_name = {} AND expires_at > {NOW} \
             AND expires_at <= {ROW_NOW} + {lease} ORDER BY joined_at, entry_id LIMIT \
             {SHOWN_ENTRIES}",
            self.queue,
            hex(name.as_str().as_bytes())
        )
    }

    /// Gives up queue entries, and removes the expired entries of the same queues.
    pub(crate) fn leave_queues(&self, entries: &[QueueEntry]) -> String {
        let ids: Vec<_> = entries.iter().map(|it| it.id.to_string()).collect();
        format!(
            "DELETE FROM {} WHERE lock_name IN ({}) AND (entry_id IN ({}) OR expires_at <= {NOW})",
            self.queue,
            list(entries.iter().map(|it| it.name.as_str().as_bytes())),
            ids.join(",")
        )
    }

    /// Removes the expired entries of every queue, at most [`PAGE`] of them.
    pub(crate) fn remove_expired_entries(&self) -> String {
        format!(
            "DELETE FROM {} WHERE expires_at <= {NOW} LIMIT {PAGE}",
            self.queue
        )
    }
}
