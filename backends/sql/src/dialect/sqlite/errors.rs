//! The meaning of SQLite's result codes.
//!
//! An unknown code counts as an unknown outcome for a write.

use distlock_core::{ErrorKind, threads::NO_THREAD};

use crate::statement_error::{Access, ErrorMeaning, StatementError, no_thread};

impl StatementError {
    /// The meaning of an error of SQLite or of the driver.
    pub(crate) fn sqlite(source: sqlx::Error, access: Access) -> Self {
        Self {
            meaning: sqlite(&source, access),
            source,
            said: None,
        }
    }
}

/// The result code of SQLite; `None` for an error of the driver.
pub(crate) fn sqlite_code(error: &sqlx::Error) -> Option<i32> {
    match error {
        sqlx::Error::Database(database) => database.code()?.parse().ok(),
        _ => None,
    }
}

fn sqlite(error: &sqlx::Error, access: Access) -> ErrorMeaning {
    let unknown_if_write = match access {
        Access::Read => ErrorKind::Unavailable,
        Access::Write => ErrorKind::OutcomeUnknown,
    };
    if let Some(code) = sqlite_code(error) {
        return sqlite_meaning(code, unknown_if_write);
    }
    match error {
        sqlx::Error::WorkerCrashed => ErrorMeaning::of(
            unknown_if_write,
            "the connection's thread ended before the answer came",
        )
        .reconnect(),
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. } => {
            ErrorMeaning::of(ErrorKind::Corrupt, "a row cannot be read").one_row()
        }
        // The driver needs a new thread for each connection.
        sqlx::Error::Io(error) if no_thread(error, Access::Read) => {
            ErrorMeaning::server_limit(NO_THREAD)
        }
        sqlx::Error::Io(_) => ErrorMeaning::of(ErrorKind::Unavailable, "the file cannot be opened"),
        _ => ErrorMeaning::of(
            unknown_if_write,
            "the driver failed in a way that is not known here",
        )
        .reconnect(),
    }
}

/// The meaning of a result code. A few extended codes have their own meaning. For all other codes,
/// the primary code in the low byte counts.
fn sqlite_meaning(code: i32, unknown_if_write: ErrorKind) -> ErrorMeaning {
    use ErrorKind::{AccessDenied, Corrupt, Internal, InvalidConfig, LimitExceeded, Unavailable};
    match code {
        // SQLITE_READONLY_DBMOVED
        1032 => {
            return ErrorMeaning::of(Unavailable, "the file was moved or replaced").reconnect();
        }
        // SQLITE_READONLY_RECOVERY, _CANTLOCK: this process cannot open the write-ahead log.
        264 | 520 => return ErrorMeaning::of(Unavailable, "the write-ahead log cannot be used"),
        // SQLITE_IOERR_NOMEM
        3082 => return ErrorMeaning::server_limit("out of memory").reconnect(),
        _ => {}
    }
    match code & 0xff {
        // SQLITE_ERROR: SQLite refuses the statement. The cause is a missing table, or a table of
        // another program.
        1 => ErrorMeaning::of(InvalidConfig, "the tables are not as expected"),
        3 | 23 => ErrorMeaning::of(AccessDenied, "access was refused"),
        5 => ErrorMeaning::of(
            Unavailable,
            "another process is writing to the file for too long",
        )
        .retry(),
        6 => ErrorMeaning::of(Unavailable, "a table of the file is locked"),
        7 => ErrorMeaning::server_limit("out of memory").reconnect(),
        8 => ErrorMeaning::of(AccessDenied, "the file is read-only"),
        9 => ErrorMeaning::of(Unavailable, "the statement was interrupted"),
        10 => ErrorMeaning::of(unknown_if_write, "the disk failed").reconnect(),
        11 => ErrorMeaning::of(Corrupt, "the file is damaged")
            .one_row()
            .reconnect(),
        13 => ErrorMeaning::server_limit("the disk is full"),
        14 => ErrorMeaning::of(Unavailable, "the file cannot be opened").reconnect(),
        15 => ErrorMeaning::of(Unavailable, "the file's locks are contended").reconnect(),
        17 => ErrorMeaning::of(Unavailable, "the tables were changed meanwhile").reconnect(),
        18 => ErrorMeaning::of(LimitExceeded, "a value is too large").one_row(),
        19 | 20 => ErrorMeaning::of(Corrupt, "a row breaks the rules of its table").one_row(),
        26 => ErrorMeaning::of(InvalidConfig, "the file is not a SQLite database").reconnect(),
        // SQLITE_MISUSE, SQLITE_RANGE: the caller used SQLite wrongly.
        21 | 25 => ErrorMeaning::of(Internal, "SQLite was called wrongly: a bug").reconnect(),
        _ => ErrorMeaning::of(
            unknown_if_write,
            "the database failed in a way that is not known here",
        )
        .reconnect(),
    }
}

#[cfg(test)]
mod tests {
    use distlock_backend_kit::batch::Failure;

    use super::*;
    use crate::statement_error::tests::{Coded, may_pass};

    /// Each entry: the name, the code, the kind for a read, the kind for a write, whether one row
    /// may be the cause, and whether a new connection is needed.
    const TABLE: &[(&str, i32, ErrorKind, ErrorKind, bool, bool)] = {
        use ErrorKind::{
            AccessDenied as Denied, Corrupt, Internal, InvalidConfig as Config,
            LimitExceeded as Limit, OutcomeUnknown as Unknown, Unavailable as Down,
        };
        &[
            ("ERROR", 1, Config, Config, false, false),
            ("INTERNAL", 2, Down, Unknown, false, true),
            ("PERM", 3, Denied, Denied, false, false),
            ("BUSY", 5, Down, Down, false, false),
            ("BUSY_RECOVERY", 261, Down, Down, false, false),
            ("BUSY_SNAPSHOT", 517, Down, Down, false, false),
            ("BUSY_TIMEOUT", 773, Down, Down, false, false),
            ("LOCKED", 6, Down, Down, false, false),
            ("LOCKED_SHAREDCACHE", 262, Down, Down, false, false),
            ("NOMEM", 7, Limit, Limit, false, true),
            ("READONLY", 8, Denied, Denied, false, false),
            ("READONLY_RECOVERY", 264, Down, Down, false, false),
            ("READONLY_CANTLOCK", 520, Down, Down, false, false),
            ("READONLY_DBMOVED", 1032, Down, Down, false, true),
            ("READONLY_DIRECTORY", 1544, Denied, Denied, false, false),
            ("INTERRUPT", 9, Down, Down, false, false),
            ("IOERR", 10, Down, Unknown, false, true),
            ("IOERR_READ", 266, Down, Unknown, false, true),
            ("IOERR_WRITE", 778, Down, Unknown, false, true),
            ("IOERR_FSYNC", 1034, Down, Unknown, false, true),
            ("IOERR_NOMEM", 3082, Limit, Limit, false, true),
            ("CORRUPT", 11, Corrupt, Corrupt, true, true),
            ("FULL", 13, Limit, Limit, false, false),
            ("CANTOPEN", 14, Down, Down, false, true),
            ("PROTOCOL", 15, Down, Down, false, true),
            ("SCHEMA", 17, Down, Down, false, true),
            ("TOOBIG", 18, Limit, Limit, true, false),
            ("CONSTRAINT", 19, Corrupt, Corrupt, true, false),
            ("CONSTRAINT_CHECK", 275, Corrupt, Corrupt, true, false),
            ("CONSTRAINT_DATATYPE", 3091, Corrupt, Corrupt, true, false),
            ("CONSTRAINT_TRIGGER", 1811, Corrupt, Corrupt, true, false),
            ("MISMATCH", 20, Corrupt, Corrupt, true, false),
            ("MISUSE", 21, Internal, Internal, false, true),
            ("NOLFS", 22, Down, Unknown, false, true),
            ("AUTH", 23, Denied, Denied, false, false),
            ("NOTADB", 26, Config, Config, false, true),
        ]
    };

    #[test]
    fn each_result_code_has_its_kind_for_reads_and_for_writes() {
        for &(name, code, read, write, one_row, reconnect) in TABLE {
            for (access, kind) in [(Access::Read, read), (Access::Write, write)] {
                let error = sqlx::Error::Database(Box::new(Coded(code.to_string())));
                let failed = StatementError::sqlite(error, access);
                assert_eq!(failed.meaning.kind, kind, "{name} on {access:?}");
                assert_eq!(failed.meaning.one_row, one_row, "{name}");
                assert_eq!(failed.meaning.reconnect, reconnect, "{name}");
                let passes = failed.meaning.error().is_retryable();
                assert_eq!(passes, may_pass(kind, one_row), "{name}");
                let split = matches!(failed.into_failure(), Failure::Split(_));
                assert_eq!(split, one_row, "{name}");
            }
        }
    }

    #[test]
    fn after_a_crash_of_the_drivers_thread_the_outcome_of_a_write_is_unknown() {
        let meaning = |access| StatementError::sqlite(sqlx::Error::WorkerCrashed, access).meaning;
        assert_eq!(meaning(Access::Write).kind, ErrorKind::OutcomeUnknown);
        assert_eq!(meaning(Access::Read).kind, ErrorKind::Unavailable);
        assert!(meaning(Access::Read).reconnect);
    }

    #[test]
    fn after_an_unexpected_error_of_the_driver_the_outcome_of_a_write_is_unknown() {
        for (access, kind) in [
            (Access::Write, ErrorKind::OutcomeUnknown),
            (Access::Read, ErrorKind::Unavailable),
        ] {
            let failed = StatementError::sqlite(sqlx::Error::RowNotFound, access);
            assert_eq!(failed.meaning.kind, kind);
            assert!(failed.meaning.reconnect);
        }
    }

    #[test]
    fn a_row_that_cannot_be_decoded_is_corrupt() {
        let error = sqlx::Error::Decode("not a number".into());
        assert_eq!(
            StatementError::sqlite(error, Access::Read).meaning.kind,
            ErrorKind::Corrupt
        );
    }
}
