-- Locks, records, and the history they belong to. Table names are prefixed when `table_prefix` is set.
-- Times called unix are microseconds since 1970, for display and tokens; all others are microseconds since boot, and mean
-- something only together with the boot's id.

CREATE TABLE IF NOT EXISTS distributed_lock (
    lock_name    TEXT    NOT NULL PRIMARY KEY,                         -- compared byte for byte
    holder_id    BLOB    CHECK (length(holder_id) = 16),               -- NULL = free: the row stays and keeps its token
    token        INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    boot_id      BLOB    NOT NULL CHECK (length(boot_id) = 16),        -- another boot = free
    expires_at   INTEGER NOT NULL,                                     -- when free: since when
    acquired_at  INTEGER NOT NULL,                                     -- unix
    holder       TEXT    NOT NULL,                                     -- the label people see
    meta         TEXT,
    nonce        BLOB,                                                 -- of the ticket that stands for the holder
    wanted_by    INTEGER NOT NULL DEFAULT 0,                           -- a process that waits, or waited lately
    wanted_until INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
-- No second index: idle rows are found by walking the primary key in pages now and then, which is cheaper than keeping an
-- index of times up to date on every acquisition and release.

CREATE TABLE IF NOT EXISTS distributed_record (
    record_key TEXT    NOT NULL PRIMARY KEY,                           -- compared byte for byte
    version    INTEGER NOT NULL CHECK (version BETWEEN 1 AND 9007199254740991),
    value      BLOB    NOT NULL,
    deleted    INTEGER NOT NULL CHECK (deleted IN (0, 1)),             -- 1 = kept only so that versions go on rising
    boot_id    BLOB    NOT NULL CHECK (length(boot_id) = 16),
    written_at INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS distributed_meta (
    id             INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    schema_version INTEGER NOT NULL,
    epoch          TEXT    NOT NULL,                                   -- names this file's history
    created_at     INTEGER NOT NULL,                                   -- unix
    reaped_boot    BLOB,
    reaped_at      INTEGER
) STRICT;

INSERT OR IGNORE INTO distributed_meta (id, schema_version, epoch, created_at)
VALUES (1, 1, lower(hex(randomblob(16))), CAST(unixepoch('subsec') * 1000000 AS INTEGER));
