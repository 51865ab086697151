//! Opening refuses tables that lack a part that a promise of the locks needs.

use distlock_core::ErrorKind;

use super::*;

/// Changes of the tables with the prefix `p_`; for each change, a part of the error text.
const CHANGES: [(&str, &str); 24] = [
    (
        "ALTER TABLE p_distributed_lock DROP CONSTRAINT p_distributed_lock_name",
        "the unique key of p_distributed_lock is missing instead of lock_name",
    ),
    (
        "ALTER TABLE p_distributed_lock DROP CONSTRAINT p_distributed_lock_name, ADD PRIMARY KEY \
            (lock_name, token)",
        "the unique key of p_distributed_lock is lock_name, token instead of lock_name",
    ),
    (
        "ALTER TABLE p_distributed_lock DROP CONSTRAINT p_distributed_lock_name, ADD UNIQUE \
            (lock_name) DEFERRABLE",
        "the unique key of p_distributed_lock is missing instead of lock_name",
    ),
    (
        "ALTER TABLE p_distributed_lock DROP CONSTRAINT p_distributed_lock_name;
         CREATE UNIQUE INDEX ON p_distributed_lock (lock_name) WHERE holder_id IS NOT NULL",
        "the unique key of p_distributed_lock is missing instead of lock_name",
    ),
    (
        "ALTER TABLE p_distributed_lock DROP CONSTRAINT p_distributed_lock_name;
         CREATE UNIQUE INDEX ON p_distributed_lock (lower(lock_name))",
        "the unique key of p_distributed_lock is missing instead of lock_name",
    ),
    (
        "ALTER TABLE p_distributed_lock SET UNLOGGED",
        "the storage of p_distributed_lock is an ordinary table that is UNLOGGED instead of an \
            ordinary table that survives",
    ),
    (
        "ALTER TABLE p_distributed_lock RENAME TO p_elsewhere; CREATE VIEW p_distributed_lock AS \
            SELECT * FROM p_elsewhere",
        "the storage of p_distributed_lock is of the kind v",
    ),
    (
        "ALTER TABLE p_distributed_lock ALTER lock_name TYPE text COLLATE \"default\"",
        "p_distributed_lock.lock_name is text collate pg_catalog.default not null instead of text \
            collate C not null",
    ),
    (
        "ALTER TABLE p_distributed_lock ALTER lock_name TYPE varchar(64) COLLATE \"C\"",
        "p_distributed_lock.lock_name is character varying(64) collate C not null instead of text",
    ),
    (
        "ALTER TABLE p_distributed_lock ALTER expires_at TYPE timestamptz(0)",
        "p_distributed_lock.expires_at is timestamp(0) with time zone not null instead of \
            timestamp with time zone",
    ),
    (
        "ALTER TABLE p_distributed_lock ALTER hint_id TYPE integer",
        "p_distributed_lock.hint_id is integer not null instead of bigint not null",
    ),
    (
        "ALTER TABLE p_distributed_lock ALTER token DROP NOT NULL",
        "p_distributed_lock.token is bigint with a check of its range instead of bigint not null",
    ),
    (
        "ALTER TABLE p_distributed_lock DROP CONSTRAINT p_distributed_lock_token_check",
        "p_distributed_lock.token is bigint not null instead of bigint not null with a check of \
            its range",
    ),
    (
        "ALTER TABLE p_distributed_lock DROP COLUMN nonce",
        "p_distributed_lock.nonce is missing instead of uuid",
    ),
    (
        "ALTER TABLE p_distributed_queue DROP CONSTRAINT p_distributed_queue_entry",
        "the unique key of p_distributed_queue is missing instead of lock_name, entry_id",
    ),
    (
        "ALTER TABLE p_distributed_queue DROP CONSTRAINT p_distributed_queue_entry;
         CREATE UNIQUE INDEX ON p_distributed_queue (lock_name COLLATE \"default\", entry_id)",
        "the unique key of p_distributed_queue is missing instead of lock_name, entry_id",
    ),
    (
        "ALTER TABLE p_distributed_queue DROP COLUMN joined_at",
        "p_distributed_queue.joined_at is missing instead of timestamp with time zone not null",
    ),
    (
        "ALTER TABLE p_distributed_record DROP CONSTRAINT p_distributed_record_key",
        "the unique key of p_distributed_record is missing instead of record_key",
    ),
    (
        "ALTER TABLE p_distributed_record SET UNLOGGED",
        "the storage of p_distributed_record is an ordinary table that is UNLOGGED",
    ),
    (
        "ALTER TABLE p_distributed_record ALTER record_key TYPE text COLLATE \"und-x-icu\"",
        "p_distributed_record.record_key is text collate pg_catalog.und-x-icu not null instead of",
    ),
    (
        "ALTER TABLE p_distributed_record DROP CONSTRAINT p_distributed_record_version_check",
        "p_distributed_record.version is bigint not null instead of",
    ),
    (
        "ALTER TABLE p_distributed_meta SET UNLOGGED",
        "the storage of p_distributed_meta is an ordinary table that is UNLOGGED",
    ),
    (
        "ALTER TABLE p_distributed_meta DROP CONSTRAINT p_distributed_meta_pkey",
        "the unique key of p_distributed_meta is missing instead of id",
    ),
    (
        "ALTER TABLE p_distributed_meta DROP CONSTRAINT p_distributed_meta_id_check",
        "p_distributed_meta.id is integer not null instead of integer not null with a check of \
            its range",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn tables_without_a_needed_part_are_refused() {
    let server = PostgresServer::start().unwrap();
    for (number, (change, says)) in CHANGES.into_iter().enumerate() {
        let prefix = format!("p{number}_");
        let (change, says) = (change.replace("p_", &prefix), says.replace("p_", &prefix));
        let url = format!("{}?table_prefix={prefix}", server.url());
        // Unchanged tables are accepted each time.
        for _ in 0..2 {
            open(&url).await;
        }
        server.sql(&change).unwrap();
        let clock = || Arc::new(SystemClock);
        for error in [
            try_open(&url).await.map(drop),
            Postgres::migrate(config(&url), clock()).await.map(drop),
        ] {
            let error = error.expect_err(&change);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            let error = open::chain(&error);
            assert!(error.contains(&says), "{error}\nsays not: {says}");
            // The queue alone may be lost.
            let of_queue = says.contains("distributed_queue");
            let dropped = if of_queue { "queue`" } else { "lock, " };
            let what_to_do = format!("run `DROP TABLE {prefix}distributed_{dropped}");
            assert!(error.contains(&what_to_do), "{error}");
        }
    }
}
