//! The migrations of SQLite.

use crate::migrate::{Migration, steps};

/// All migrations in order of their versions.
pub(crate) const MIGRATIONS: [Migration; 2] = steps(
    include_str!("../../../migrations/sqlite/0001_locks_and_records.sql"),
    include_str!("../../../migrations/sqlite/0002_line.sql"),
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::{LATEST, TablesStatus};

    #[test]
    fn the_versions_of_the_migrations_have_no_gaps() {
        for (number, migration) in (1..).zip(&MIGRATIONS) {
            assert_eq!(migration.version, number);
        }
        assert_eq!(i64::try_from(MIGRATIONS.len()).unwrap(), LATEST);
        assert_eq!(
            TablesStatus::at(0, &MIGRATIONS).migrations.len(),
            MIGRATIONS.len()
        );
        assert!(TablesStatus::at(LATEST, &MIGRATIONS).migrations.is_empty());
    }
}
