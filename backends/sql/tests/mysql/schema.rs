//! Opening refuses tables that lack a part that a promise of the locks needs.

use std::sync::Arc;

use distlock_core::{ErrorKind, SystemClock};
use distlock_harness::servers::mysql::Product;
use distlock_sql::{MySql, ServerConfig};

use crate::{
    locker, mysql, on_both,
    servers::{LONG, hold},
    start,
};

on_both! {
    tables_without_a_needed_part_are_refused => tables_without_a_needed_part_are_refused;
    tables_of_a_former_version_are_repaired => tables_of_a_former_version_are_repaired;
}

/// Changes of the tables with the prefix `p_`; for each change, a part of the error text.
const CHANGES: [(&str, &str); 19] = [
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
        "ALTER TABLE p_distributed_lock ADD UNIQUE (wanted_until)",
        "the unique key of p_distributed_lock is lock_name and wanted_until instead of lock_name",
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
        "ALTER TABLE p_distributed_lock MODIFY wanted_until BIGINT",
        "p_distributed_lock.wanted_until is bigint instead of bigint not null",
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
            MySql::status(config.clone(), clock()).await.map(drop),
            MySql::migrate(config, clock()).await.map(drop),
        ] {
            let error = error.expect_err(&change);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            let error = error.to_string();
            assert!(error.contains(&says), "{error}\nsays not: {says}");
            let what_to_do = format!("run `DROP TABLE {prefix}distributed_lock, ");
            assert!(error.contains(&what_to_do), "{error}");
        }
    }
}

/// The lock table of the first version has no column `expires_minute`; a migration adds it.
async fn tables_of_a_former_version_are_repaired(product: Product) {
    let server = start(product);
    for (number, undo) in [
        // The table in the form that the first version created.
        "DROP KEY distributed_lock_expires_minute, DROP COLUMN expires_minute, ADD KEY \
            distributed_lock_expires_at (expires_at)",
        // The same table without the old index.
        "DROP KEY distributed_lock_expires_minute, DROP COLUMN expires_minute",
    ]
    .into_iter()
    .enumerate()
    {
        let prefix = format!("p{number}_");
        let url = format!("{}&table_prefix={prefix}", server.url());
        let guard = hold(&locker(&url).await, "kept", LONG).await;
        let token = guard.token();
        assert!(guard.release().await.is_clean());
        let undo = undo.replace("distributed_", &format!("{prefix}distributed_"));
        server
            .sql(&format!("ALTER TABLE {prefix}distributed_lock {undo}"))
            .unwrap();
        let error = mysql(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let error = error.to_string();
        assert!(
            error.contains("run `distlock migrate --backend '"),
            "{error}"
        );
        assert!(error.contains("expires_minute is missing"), "{error}");
        assert!(!error.contains("DROP TABLE"), "{error}");

        let config = ServerConfig::from_url(&url).unwrap();
        let clock = || Arc::new(SystemClock);
        let status = MySql::status(config.clone(), clock()).await.unwrap();
        assert_eq!((status.version, status.migrations.len()), (2, 1));
        let migrated = MySql::migrate(config.clone(), clock()).await.unwrap();
        assert_eq!(migrated, status);
        let again = MySql::migrate(config, clock()).await.unwrap();
        assert_eq!((again.version, again.migrations.len()), (2, 0));
        let indexes = format!("SHOW INDEX FROM {prefix}distributed_lock");
        let indexes = server.sql(&indexes).unwrap();
        assert!(indexes.contains("expires_minute"), "{indexes}");
        assert!(!indexes.contains("expires_at"), "{indexes}");
        // The rows of the old table still exist.
        let guard = hold(&locker(&url).await, "kept", LONG).await;
        assert!(guard.token() > token);
        assert!(guard.release().await.is_clean());
    }
}
