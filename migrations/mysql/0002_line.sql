-- The queue of processes that wait for a lock. It only decides which of them asks first. Exclusion
-- never depends on it. Programs that know only 0001 keep working beside it, so the
-- version in distributed_meta stays 1. The presence of this table shows that 0002 was applied.

CREATE TABLE IF NOT EXISTS distributed_line (
    lock_name  VARBINARY(255) NOT NULL,
    waiter     BIGINT         NOT NULL,             -- one contender of one process
    ticket     BIGINT         NOT NULL,             -- when it joined: the order of the queue
    expires_at BIGINT         NOT NULL,             -- the end of its entry's lease
    PRIMARY KEY (lock_name, waiter)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
