-- The line of processes that wait for a lock. It only decides who asks first: exclusion never rests
-- on it. Programs that know only 0001 go on working beside it, so the version in distributed_meta
-- stays 1; that this table is there says that 0002 was applied.

CREATE TABLE IF NOT EXISTS distributed_line (
    lock_name  VARBINARY(255) NOT NULL,
    waiter     BIGINT         NOT NULL,             -- one contender of one process
    ticket     BIGINT         NOT NULL,             -- when it joined: the order of the line
    expires_at BIGINT         NOT NULL,             -- when its place lapses unless it is renewed
    PRIMARY KEY (lock_name, waiter)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
