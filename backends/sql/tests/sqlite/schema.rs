//! Opening refuses tables that lack a part that a promise of the locks needs.

use distlock_core::ErrorKind;

use super::*;

/// Each entry: a text in the statements that create the tables, the text that replaces it, and a
/// part of the error.
const CHANGES: [(&str, &str, &str); 12] = [
    (
        "lock_name    TEXT    NOT NULL PRIMARY KEY, ",
        "x INTEGER PRIMARY KEY, lock_name    TEXT    NOT NULL, ",
        "distributed_lock.lock_name is text not null instead of text not null primary key",
    ),
    (
        "lock_name    TEXT    NOT NULL PRIMARY KEY, ",
        "lock_name    TEXT    COLLATE NOCASE NOT NULL PRIMARY KEY, ",
        "distributed_lock.lock_name is text collate nocase not null primary key instead of",
    ),
    (
        ") STRICT, WITHOUT ROWID",
        ") WITHOUT ROWID",
        "the storage of distributed_lock is table without rowid instead of table strict, without \
            rowid",
    ),
    (
        "token        INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991)",
        "token        INTEGER NOT NULL",
        "distributed_lock.token is integer not null instead of integer not null check (token \
            between",
    ),
    (
        "holder_id    BLOB    CHECK (length(holder_id) = 16)",
        "holder_id    TEXT",
        "distributed_lock.holder_id is text instead of blob check",
    ),
    (
        "    meta         TEXT,\n",
        "",
        "distributed_lock.meta is missing instead of text",
    ),
    (
        "    PRIMARY KEY (lock_name, entry_id)\n",
        "    PRIMARY KEY (lock_name)\n",
        "distributed_queue.primary is key (lock_name) instead of key (lock_name, entry_id)",
    ),
    (
        "record_key TEXT    NOT NULL PRIMARY KEY",
        "record_key TEXT    NOT NULL",
        "distributed_record.record_key is text not null instead of text not null primary key",
    ),
    (
        "record_key TEXT    NOT NULL PRIMARY KEY",
        "record_key TEXT    NOT NULL PRIMARY KEY ON CONFLICT REPLACE",
        "distributed_record.record_key is text not null primary key on conflict replace instead of",
    ),
    (
        "version    INTEGER NOT NULL CHECK",
        "version    REAL    NOT NULL CHECK",
        "distributed_record.version is real not null check",
    ),
    (
        "id             INTEGER NOT NULL PRIMARY KEY CHECK (id = 1)",
        "id             INTEGER NOT NULL",
        "distributed_meta.id is integer not null instead of integer not null primary key check \
            (id = 1)",
    ),
    (
        "schema_version INTEGER NOT NULL",
        "schema_version INTEGER",
        "distributed_meta.schema_version is integer instead of integer not null",
    ),
];

#[tokio::test]
async fn tables_without_a_needed_part_are_refused() {
    let script = include_str!("../../migrations/sqlite/0001_tables.sql");
    for (part, instead, says) in CHANGES {
        let place = Place::new();
        close(&place.open().await).await;
        // Unchanged tables are accepted each time.
        close(&place.open().await).await;
        let changed = script.replacen(part, instead, 1);
        assert_ne!(changed, script, "{part}");
        let drop_all = "DROP TABLE distributed_lock; DROP TABLE distributed_queue; \
            DROP TABLE distributed_record; DROP TABLE distributed_meta;";
        // `OR IGNORE` has no effect on a table without its unique key.
        let changed = changed.replace("INSERT OR IGNORE", "INSERT");
        place.sql(&format!("{drop_all}{changed}")).await;
        is_refused(&place, says).await;
    }
    let place = Place::new();
    close(&place.open().await).await;
    place
        .sql(
            "ALTER TABLE distributed_lock RENAME TO other; CREATE VIEW distributed_lock AS \
            SELECT * FROM other",
        )
        .await;
    is_refused(&place, "the storage of distributed_lock is create view").await;
}

async fn is_refused(place: &Place, says: &str) {
    let clock = || Arc::new(SystemClock);
    for error in [
        Sqlite::open(place.config(), clock()).await.map(drop),
        Sqlite::migrate(place.config(), clock()).await.map(drop),
    ] {
        let error = error.expect_err(says);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let error = error.to_string();
        assert!(error.contains(says), "{error}\nsays not: {says}");
        let what_to_do = "run `DROP TABLE distributed_lock; DROP TABLE distributed_queue; ";
        assert!(error.contains(what_to_do), "{error}");
    }
}
