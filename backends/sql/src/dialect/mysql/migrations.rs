//! The migrations of MySQL and MariaDB.

use crate::migrate::{Migration, steps};

/// All migrations in order of their versions.
pub(crate) const MIGRATIONS: [Migration; 2] = steps(
    include_str!("../../../migrations/mysql/0001_locks_and_records.sql"),
    include_str!("../../../migrations/mysql/0002_line.sql"),
);
