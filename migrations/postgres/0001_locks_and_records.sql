-- Locks, records, and the history they belong to. Table names are prefixed when `table_prefix` is set.
-- All times are the database server's own (clock_timestamp()), to the microsecond; a session's time zone changes nothing.
-- Primary keys, because a server that publishes all its tables to others refuses to change rows that have none.

CREATE TABLE IF NOT EXISTS distributed_lock (
    lock_name    text        COLLATE "C" NOT NULL,                     -- compared byte for byte
    holder_id    uuid,                                                 -- NULL = free: the row stays and keeps its token
    token        bigint      NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    expires_at   timestamptz NOT NULL,                                 -- when free: since when
    acquired_at  timestamptz NOT NULL,
    holder       text        NOT NULL,                                 -- the label people see
    meta         text,
    nonce        uuid,                                                 -- of the ticket that stands for the holder
    wanted_by    bigint      NOT NULL DEFAULT 0,                       -- a process that waits, or waited lately
    wanted_until timestamptz NOT NULL DEFAULT 'epoch',
    CONSTRAINT distributed_lock_name PRIMARY KEY (lock_name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
-- No second index: no column that changes is in an index, so that an update stays within its page, which is where the
-- free half of each page goes. Idle rows are found by walking the names in pages now and then.

CREATE TABLE IF NOT EXISTS distributed_record (
    record_key text        COLLATE "C" NOT NULL,                       -- compared byte for byte
    version    bigint      NOT NULL CHECK (version BETWEEN 1 AND 9007199254740991),
    value      bytea       NOT NULL,
    deleted    boolean     NOT NULL,                                   -- true = kept only so that versions go on rising
    written_at timestamptz NOT NULL,
    CONSTRAINT distributed_record_key PRIMARY KEY (record_key)
);

CREATE TABLE IF NOT EXISTS distributed_meta (
    id             integer     NOT NULL PRIMARY KEY CHECK (id = 1),
    schema_version bigint      NOT NULL,
    epoch          text        NOT NULL,                               -- names these tables' history
    created_at     timestamptz NOT NULL,
    reaped_at      timestamptz
);

INSERT INTO distributed_meta (id, schema_version, epoch, created_at)
VALUES (1, 1, md5(random()::text || clock_timestamp()::text), clock_timestamp())
ON CONFLICT (id) DO NOTHING;
