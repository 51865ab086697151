-- Locks, the store queue, records, and the name of their history. Table names are prefixed when
-- `table_prefix` is set. All times are microseconds since 1970, UTC, by the server's clock. Names
-- and owners are binary: the server compares them byte for byte, whatever its collation is.

CREATE TABLE IF NOT EXISTS distributed_lock (
    lock_name    VARBINARY(255) NOT NULL,
    holder_id    BINARY(16),                        -- zeros = free
    token        BIGINT         NOT NULL,
    acquired_at  BIGINT         NOT NULL,
    expires_at   BIGINT         NOT NULL,           -- if free: the time of the release
    holder       VARCHAR(128)   NOT NULL,           -- a label for people; if free: the last one
    meta         TEXT,
    nonce        BINARY(16),                        -- of the holder's ticket
    hint_id      BIGINT         NOT NULL DEFAULT 0, -- of a waiting process; 0 = several
    hint_until   BIGINT         NOT NULL DEFAULT 0,
    expires_minute BIGINT       AS (expires_at DIV 60000000) STORED,
    PRIMARY KEY (lock_name),
    -- For the reaper. An index of expires_at itself would double the time of an acquire.
    KEY distributed_lock_expires_minute (expires_minute)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The store queue: the processes that wait for a lock. The queue only decides which process asks
-- first. Exclusion never depends on it.
CREATE TABLE IF NOT EXISTS distributed_queue (
    lock_name  VARBINARY(255) NOT NULL,
    entry_id   BIGINT         NOT NULL,             -- of one waiting process
    joined_at  BIGINT         NOT NULL,             -- gives the order
    expires_at BIGINT         NOT NULL,             -- end of the queue entry
    holder     VARCHAR(128)   NOT NULL,             -- a label for people
    PRIMARY KEY (lock_name, entry_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS distributed_record (
    record_key VARBINARY(512) NOT NULL,
    version    BIGINT         NOT NULL,
    value      MEDIUMBLOB     NOT NULL,
    deleted    TINYINT        NOT NULL,             -- 1 = tombstone, so that versions rise
    written_at BIGINT         NOT NULL,
    PRIMARY KEY (record_key),
    KEY distributed_record_deleted (deleted, written_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS distributed_meta (
    id             TINYINT     NOT NULL,
    schema_version BIGINT      NOT NULL,
    epoch          VARCHAR(64) NOT NULL,            -- the epoch, as the tables know it
    created_at     BIGINT      NOT NULL,
    reaped_at      BIGINT,
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO distributed_meta (id, schema_version, epoch, created_at)
VALUES (1, 1, REPLACE(UUID(), '-', ''), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));
