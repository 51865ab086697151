-- Locks, the store queue, records, and the name of their history. Table names are prefixed when
-- `table_prefix` is set. All times are the database server's own (clock_timestamp()), to the
-- microsecond; a session's time zone changes nothing. Every table has a primary key: a server that
-- publishes all its tables refuses to change rows of a table without one.

CREATE TABLE IF NOT EXISTS distributed_lock (
    lock_name    text        COLLATE "C" NOT NULL,                     -- compared byte for byte
    holder_id    uuid,                                                 -- NULL = free
    token        bigint      NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    expires_at   timestamptz NOT NULL,                        -- if free: the time of the release
    acquired_at  timestamptz NOT NULL,
    holder       text        NOT NULL,                                 -- a label for people
    meta         text,
    nonce        uuid,                                                 -- of the holder's ticket
    hint_id      bigint      NOT NULL DEFAULT 0,        -- of a waiting process; 0 = several
    hint_until   timestamptz NOT NULL DEFAULT 'epoch',
    CONSTRAINT distributed_lock_name PRIMARY KEY (lock_name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
-- There is no second index: while no indexed column changes, an update stays within its page, whose
-- free half is kept for that. The reaper finds idle rows by walking the names page by page.

-- The store queue: the processes that wait for a lock. The queue only decides which process asks
-- first. Exclusion never depends on it, so it need not survive a crash (UNLOGGED).
CREATE UNLOGGED TABLE IF NOT EXISTS distributed_queue (
    lock_name  text        COLLATE "C" NOT NULL,
    entry_id   bigint      NOT NULL,                                 -- of one waiting process
    joined_at  timestamptz NOT NULL,                                 -- gives the order
    expires_at timestamptz NOT NULL,                                 -- end of the queue entry
    holder     text        NOT NULL,                                 -- a label for people
    CONSTRAINT distributed_queue_entry PRIMARY KEY (lock_name, entry_id)
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS distributed_record (
    record_key text        COLLATE "C" NOT NULL,                       -- compared byte for byte
    version    bigint      NOT NULL CHECK (version BETWEEN 1 AND 9007199254740991),
    value      bytea       NOT NULL,
    deleted    boolean     NOT NULL,                      -- true = tombstone, so that versions rise
    written_at timestamptz NOT NULL,
    CONSTRAINT distributed_record_key PRIMARY KEY (record_key)
);

CREATE TABLE IF NOT EXISTS distributed_meta (
    id             integer     NOT NULL PRIMARY KEY CHECK (id = 1),
    schema_version bigint      NOT NULL,
    epoch          text        NOT NULL,                         -- the epoch, as the tables know it
    created_at     timestamptz NOT NULL,
    reaped_at      timestamptz
);

INSERT INTO distributed_meta (id, schema_version, epoch, created_at)
VALUES (1, 1, md5(random()::text || clock_timestamp()::text), clock_timestamp())
ON CONFLICT (id) DO NOTHING;
