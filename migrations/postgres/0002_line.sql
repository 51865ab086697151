-- The queue of processes that wait for a lock. It only decides which of them asks first. Exclusion
-- never depends on it, so it need not survive a crash (UNLOGGED). Programs that know only 0001 keep
-- working beside it, so the version in distributed_meta stays 1. The presence of this table shows
-- that 0002 was applied.

CREATE UNLOGGED TABLE IF NOT EXISTS distributed_line (
    lock_name  text        COLLATE "C" NOT NULL,
    waiter     bigint      NOT NULL,                                 -- one waiting process
    ticket     timestamptz NOT NULL,                       -- time of joining; it gives the order
    expires_at timestamptz NOT NULL,                                 -- end of the queue entry
    holder     text        NOT NULL,                                     -- a label for people
    CONSTRAINT distributed_line_place PRIMARY KEY (lock_name, waiter)
) WITH (fillfactor = 50);
