//! Opening refuses tables that lack a part that a promise of the locks needs.

use std::sync::Arc;

use distlock_core::{ErrorKind, SystemClock};
use distlock_harness::servers::mysql::Product;
use distlock_sql::{MySql, ServerConfig};

use crate::{mysql, on_both, start};

on_both! {
    tables_without_a_needed_part_are_refused => tables_without_a_needed_part_are_refused;
}

/// Changes of the tables with the prefix `p_`; for each change, a part of the error text.
const CHANGES: [(&str, &str); 22] = [
    (
        "ALTER TABLE p_distributed_lock DROP PRIMARY KEY",
        "the unique key of p_distributed_lock is missing instead of lock_name",
    ),
    (
        "ALTER TABLE p_distributed_lock DROP PRIMARY KEY, ADD PRIMARY KEY (lock_name, token)",
        "the unique key of p_distributed_lock is lock_name, token instead of lock_name",
    ),
    (
        "ALTER TABLE p_distributed_lock DROP PRIMARY KEY, ADD PRIMARY KEY (lock_name(10))",
        "the unique key of p_distributed_lock is lock_name(10) instead of lock_name",
    ),
    (
        "ALTER TABLE p_distributed_lock ADD UNIQUE (hint_until)",
        "the unique key of p_distributed_lock is hint_until and lock_name instead of lock_name",
    ),
    (
        "ALTER TABLE p_distributed_lock ENGINE = MyISAM",
        "the storage of p_distributed_lock is base table in myisam instead of base table in innodb",
    ),
    (
        "RENAME TABLE p_distributed_lock TO p_elsewhere; CREATE VIEW p_distributed_lock AS SELECT \
            * FROM p_elsewhere",
        "the storage of p_distributed_lock is view in nothing instead of base table in innodb",
    ),
    (
        "ALTER TABLE p_distributed_lock MODIFY lock_name VARCHAR(255) CHARACTER SET utf8mb4 NOT \
            NULL",
        "p_distributed_lock.lock_name is varchar(255) character set utf8mb4 not null instead of \
            varbinary(255) not null",
    ),
    (
        "ALTER TABLE p_distributed_lock MODIFY holder_id VARBINARY(16)",
        "p_distributed_lock.holder_id is varbinary(16) instead of binary(16)",
    ),
    (
        "ALTER TABLE p_distributed_lock MODIFY token INT NOT NULL",
        "p_distributed_lock.token is int",
    ),
    (
        "ALTER TABLE p_distributed_lock MODIFY token BIGINT UNSIGNED NOT NULL",
        "p_distributed_lock.token is bigint unsigned not null instead of bigint not null",
    ),
    (
        "ALTER TABLE p_distributed_lock MODIFY hint_until BIGINT",
        "p_distributed_lock.hint_until is bigint instead of bigint not null",
    ),
    (
        "ALTER TABLE p_distributed_lock MODIFY holder VARCHAR(128) CHARACTER SET latin1 NOT NULL",
        "p_distributed_lock.holder is varchar(128) character set latin1 not null instead of",
    ),
    (
        "ALTER TABLE p_distributed_lock MODIFY expires_minute BIGINT",
        "p_distributed_lock.expires_minute is bigint instead of bigint as expires_at div 60000000",
    ),
    (
        "ALTER TABLE p_distributed_lock DROP KEY p_distributed_lock_expires_minute, DROP COLUMN \
            expires_minute",
        "p_distributed_lock.expires_minute is missing instead of bigint as expires_at div 60000000",
    ),
    (
        "ALTER TABLE p_distributed_queue DROP PRIMARY KEY",
        "the unique key of p_distributed_queue is missing instead of lock_name, entry_id",
    ),
    (
        "ALTER TABLE p_distributed_queue MODIFY joined_at INT NOT NULL",
        "p_distributed_queue.joined_at is int",
    ),
    (
        "ALTER TABLE p_distributed_record DROP PRIMARY KEY",
        "the unique key of p_distributed_record is missing instead of record_key",
    ),
    (
        "ALTER TABLE p_distributed_record MODIFY value BLOB NOT NULL",
        "p_distributed_record.value is blob not null instead of mediumblob not null",
    ),
    (
        "ALTER TABLE p_distributed_record ENGINE = MyISAM",
        "the storage of p_distributed_record is base table in myisam",
    ),
    (
        "ALTER TABLE p_distributed_meta ENGINE = MEMORY",
        "the storage of p_distributed_meta is base table in memory instead of base table in innodb",
    ),
    (
        "ALTER TABLE p_distributed_meta DROP PRIMARY KEY",
        "the unique key of p_distributed_meta is missing instead of id",
    ),
    (
        "ALTER TABLE p_distributed_meta DROP COLUMN reaped_at",
        "p_distributed_meta.reaped_at is missing instead of bigint",
    ),
];

async fn tables_without_a_needed_part_are_refused(product: Product) {
    let server = start(product);
    for (number, (change, says)) in CHANGES.into_iter().enumerate() {
        let prefix = format!("p{number}_");
        let (change, says) = (change.replace("p_", &prefix), says.replace("p_", &prefix));
        let url = format!("{}&table_prefix={prefix}", server.url());
        // Unchanged tables are accepted each time.
        for _ in 0..2 {
            mysql(&url).await.unwrap();
        }
        server.sql(&change).unwrap();
        let config = ServerConfig::from_url(&url).unwrap();
        let clock = || Arc::new(SystemClock);
        for error in [
            mysql(&url).await.map(drop),
            MySql::migrate(config, clock()).await.map(drop),
        ] {
            let error = error.expect_err(&change);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            let error = error.to_string();
            assert!(error.contains(&says), "{error}\nsays not: {says}");
            // The queue alone may be lost.
            let of_queue = says.contains("distributed_queue");
            let dropped = if of_queue { "queue`" } else { "lock, " };
            let what_to_do = format!("run `DROP TABLE {prefix}distributed_{dropped}");
            assert!(error.contains(&what_to_do), "{error}");
        }
    }
}
