-- The store queue: the processes that wait for a lock. The queue only decides which process asks
-- first. Exclusion never depends on the queue. Programs that know only 0001 keep working beside it,
-- so the version in distributed_meta stays 1. The presence of this table shows that 0002 was
-- applied.

CREATE TABLE IF NOT EXISTS distributed_line (
    lock_name  VARBINARY(255) NOT NULL,
    waiter     BIGINT         NOT NULL,             -- one waiting process
    ticket     BIGINT         NOT NULL,             -- time of joining; it gives the order
    expires_at BIGINT         NOT NULL,             -- end of the queue entry
    holder     VARCHAR(128)   NOT NULL,             -- a label for people
    PRIMARY KEY (lock_name, waiter)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
