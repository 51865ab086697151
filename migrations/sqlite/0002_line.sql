-- The store queue: the processes that wait for a lock. The queue only decides which process asks
-- first. Exclusion never depends on the queue. Programs that know only 0001 keep working beside it,
-- so the version in distributed_meta stays 1. The presence of this table shows that 0002 was
-- applied.

CREATE TABLE IF NOT EXISTS distributed_line (
    lock_name  TEXT    NOT NULL,
    waiter     INTEGER NOT NULL,                                     -- one waiting process
    boot_id    BLOB    NOT NULL CHECK (length(boot_id) = 16),          -- of another boot = ended
    ticket     INTEGER NOT NULL,                           -- time of joining; it gives the order
    expires_at INTEGER NOT NULL,                                     -- end of the queue entry
    holder     TEXT    NOT NULL,                                         -- a label for people
    PRIMARY KEY (lock_name, waiter)
) STRICT, WITHOUT ROWID;
