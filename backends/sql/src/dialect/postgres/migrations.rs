//! The migrations of Postgres.

use crate::migrate::{Migration, steps};

/// All migrations in order of their versions.
pub(crate) const MIGRATIONS: [Migration; 2] = steps(
    include_str!("../../../migrations/postgres/0001_locks_and_records.sql"),
    include_str!("../../../migrations/postgres/0002_line.sql"),
);
