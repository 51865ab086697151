-- The line of processes that wait for a lock. It only decides who asks first: exclusion never rests
-- on it. Programs that know only 0001 go on working beside it, so the version in distributed_meta
-- stays 1; that this table is there says that 0002 was applied.

CREATE TABLE IF NOT EXISTS distributed_line (
    lock_name  TEXT    NOT NULL,
    waiter     INTEGER NOT NULL,                                       -- one contender of one process
    boot_id    BLOB    NOT NULL CHECK (length(boot_id) = 16),          -- another boot = gone
    ticket     INTEGER NOT NULL,                                       -- when it joined: the order of the line
    expires_at INTEGER NOT NULL,                                       -- when its place lapses unless it is renewed
    PRIMARY KEY (lock_name, waiter)
) STRICT, WITHOUT ROWID;
