-- Locks, the store queue, records, and the name of their history. Table names are prefixed when
-- `table_prefix` is set. Times called unix are microseconds since 1970, for display and tokens; all
-- others are microseconds since boot, and count only together with the boot's id.

CREATE TABLE IF NOT EXISTS distributed_lock (
    lock_name    TEXT    NOT NULL PRIMARY KEY,                         -- compared byte for byte
    holder_id    BLOB    CHECK (length(holder_id) = 16),               -- NULL = free
    token        INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    boot_id      BLOB    NOT NULL CHECK (length(boot_id) = 16),        -- of another boot = free
    expires_at   INTEGER NOT NULL,                            -- if free: the time of the release
    acquired_at  INTEGER NOT NULL,                                     -- unix
    holder       TEXT    NOT NULL,                                     -- a label for people
    meta         TEXT,
    nonce        BLOB,                                                 -- of the holder's ticket
    hint_id      INTEGER NOT NULL DEFAULT 0,            -- of a waiting process; 0 = several
    hint_until   INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
-- There is no second index: the reaper finds idle rows by walking the primary key page by page,
-- which is cheaper than updating an index of times at every acquire and release.

-- The store queue: the processes that wait for a lock. The queue only decides which process asks
-- first. Exclusion never depends on it.
CREATE TABLE IF NOT EXISTS distributed_queue (
    lock_name  TEXT    NOT NULL,
    entry_id   INTEGER NOT NULL,                                     -- of one waiting process
    boot_id    BLOB    NOT NULL CHECK (length(boot_id) = 16),        -- of another boot = ended
    joined_at  INTEGER NOT NULL,                                     -- gives the order
    expires_at INTEGER NOT NULL,                                     -- end of the queue entry
    holder     TEXT    NOT NULL,                                     -- a label for people
    PRIMARY KEY (lock_name, entry_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS distributed_record (
    record_key TEXT    NOT NULL PRIMARY KEY,                           -- compared byte for byte
    version    INTEGER NOT NULL CHECK (version BETWEEN 1 AND 9007199254740991),
    value      BLOB    NOT NULL,
    deleted    INTEGER NOT NULL CHECK (deleted IN (0, 1)),   -- 1 = tombstone, so that versions rise
    boot_id    BLOB    NOT NULL CHECK (length(boot_id) = 16),
    written_at INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS distributed_meta (
    id             INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    schema_version INTEGER NOT NULL,
    epoch          TEXT    NOT NULL,                              -- the epoch, as the file knows it
    created_at     INTEGER NOT NULL,                                   -- unix
    reaped_boot    BLOB,
    reaped_at      INTEGER
) STRICT;

INSERT OR IGNORE INTO distributed_meta (id, schema_version, epoch, created_at)
VALUES (1, 1, lower(hex(randomblob(16))), CAST(unixepoch('subsec') * 1000000 AS INTEGER));
