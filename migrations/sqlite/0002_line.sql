-- The queue of processes that wait for a lock. It only decides which of them asks first. Exclusion
-- never depends on it. Programs that know only 0001 keep working beside it, so the
-- version in distributed_meta stays 1. The presence of this table shows that 0002 was applied.

CREATE TABLE IF NOT EXISTS distributed_line (
    lock_name  TEXT    NOT NULL,
    waiter     INTEGER NOT NULL,                                     -- one contender of one process
    boot_id    BLOB    NOT NULL CHECK (length(boot_id) = 16),          -- another boot = gone
    ticket     INTEGER NOT NULL,                           -- when it joined: the order of the queue
    expires_at INTEGER NOT NULL,                                     -- the end of its entry's lease
    PRIMARY KEY (lock_name, waiter)
) STRICT, WITHOUT ROWID;
