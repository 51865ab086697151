//! The meaning of Postgres' SQLSTATE codes.
//!
//! An unknown code counts as an unknown outcome for a write.

use distlock_core::{ErrorKind, threads::NO_THREAD};
use sqlx::postgres::PgDatabaseError;

use crate::statement_error::{
    Access, ErrorMeaning, StatementError, TlsTrouble, no_thread, tls_trouble,
};

impl StatementError {
    /// The meaning of a server's or driver's error.
    pub(crate) fn postgres(source: sqlx::Error, access: Access) -> Self {
        Self {
            meaning: postgres(&source, access),
            // The server's own text is used, because the driver's text adds a line number of the
            // server's source code.
            said: said(&source),
            source,
        }
    }

    /// The error for an answer that did not come within the statement timeout.
    pub(crate) fn postgres_timed_out(access: Access) -> Self {
        let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
        Self::postgres(sqlx::Error::Io(source), access)
    }
}

/// The server's error text with its SQLSTATE code. The manual of Postgres lists these codes.
fn said(error: &sqlx::Error) -> Option<String> {
    let error = error
        .as_database_error()?
        .try_downcast_ref::<PgDatabaseError>()?;
    Some(format!("{} (SQLSTATE {})", error.message(), error.code()))
}

/// The text for an answer that does not follow the protocol of Postgres.
const NOT_POSTGRES: &str =
    "the server speaks something else than Postgres, or its answer was damaged on the way";

fn postgres(error: &sqlx::Error, access: Access) -> ErrorMeaning {
    use ErrorKind::{Corrupt, OutcomeUnknown, Unavailable};
    let unknown_if_write = match access {
        Access::Read => Unavailable,
        Access::Write => OutcomeUnknown,
    };
    if let Some(trouble) = tls_trouble(error, access) {
        return of_tls(trouble).reconnect();
    }
    match error {
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default();
            by_state(&code, unknown_if_write)
        }
        sqlx::Error::Io(error) if no_thread(error, access) => {
            ErrorMeaning::server_limit(NO_THREAD).reconnect()
        }
        sqlx::Error::Io(_) => {
            ErrorMeaning::of(unknown_if_write, "the connection to the server failed").reconnect()
        }
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. } => {
            ErrorMeaning::of(Corrupt, "a row cannot be read").one_row()
        }
        // The driver did not expect the packet, for example an unknown method of authentication.
        _ => ErrorMeaning::of(unknown_if_write, NOT_POSTGRES).reconnect(),
    }
}

fn of_tls(trouble: TlsTrouble) -> ErrorMeaning {
    match trouble {
        TlsTrouble::Absent => ErrorMeaning::of(
            ErrorKind::Unavailable,
            "the server offers no TLS, which `sslmode` demands",
        ),
        TlsTrouble::Options => ErrorMeaning::of(
            ErrorKind::InvalidConfig,
            "the driver cannot use what `sslrootcert`, `sslcert` and `sslkey` name, or the host's \
                name",
        ),
        TlsTrouble::Certificate => ErrorMeaning::of(
            ErrorKind::Unavailable,
            "the server's certificate is not trusted, or not for this host: `sslrootcert` names \
                the file with the authority \
             to trust",
        ),
        TlsTrouble::Refused => ErrorMeaning::of(
            ErrorKind::AccessDenied,
            "the server broke TLS off: it may accept only clients with a certificate (`sslcert` \
                and `sslkey`)",
        ),
        TlsTrouble::Protocol => ErrorMeaning::of(
            ErrorKind::Unavailable,
            "the TLS connection that `sslmode` demands could not be made",
        ),
    }
}

/// The meaning of a code. A statement that the server refuses has changed nothing. So the outcome
/// of a write is unknown only if the connection ends or the code is not known.
fn by_state(state: &str, unknown_if_write: ErrorKind) -> ErrorMeaning {
    use ErrorKind::{AccessDenied, Corrupt, InvalidConfig, LimitExceeded};
    if let Some(meaning) = by_whole_state(state) {
        return meaning;
    }
    match state.get(..2).unwrap_or_default() {
        "08" | "57" => {
            ErrorMeaning::of(unknown_if_write, "the server ended the connection").reconnect()
        }
        "22" => ErrorMeaning::of(InvalidConfig, "the database cannot hold a value").one_row(),
        "23" => ErrorMeaning::of(Corrupt, "a row breaks the rules of its table").one_row(),
        "28" => ErrorMeaning::of(AccessDenied, "the server refused the user or the password")
            .reconnect(),
        "3D" => ErrorMeaning::of(InvalidConfig, "there is no such database").reconnect(),
        "3F" | "42" => ErrorMeaning::of(InvalidConfig, "the tables are not as expected"),
        "53" => ErrorMeaning::server_limit("the server is out of disk space or memory"),
        "54" => ErrorMeaning::of(LimitExceeded, "a value is too large").one_row(),
        "58" => ErrorMeaning::of(unknown_if_write, "the server's disk failed").reconnect(),
        "XX" => ErrorMeaning::of(Corrupt, "the server found its data damaged").reconnect(),
        _ => ErrorMeaning::of(
            unknown_if_write,
            "the server answered with an error that is not known here; its log may say more",
        )
        .reconnect(),
    }
}

/// The meaning of a code whose meaning differs from the other codes of its class.
fn by_whole_state(state: &str) -> Option<ErrorMeaning> {
    use ErrorKind::{AccessDenied, InvalidConfig, Unavailable};
    Some(match state {
        // For example for an `INSERT` with a conflict clause on a table with rules.
        "0A000" => ErrorMeaning::of(
            InvalidConfig,
            "the server cannot do this to the tables as they are: they must have no rules and \
                 no triggers",
        )
        .reconnect(),
        "P0001" => ErrorMeaning::of(
            InvalidConfig,
            "a trigger or function of the database refuses it: the tables must have none",
        )
        .reconnect(),
        "25006" => ErrorMeaning::of(
            Unavailable,
            "the server takes no writes: it is a standby or read-only",
        )
        .reconnect(),
        "40001" | "40P01" => ErrorMeaning::of(Unavailable, "other transactions were in the way")
            .one_row()
            .retry(),
        "42501" => ErrorMeaning::of(AccessDenied, "access was refused"),
        "53300" => {
            ErrorMeaning::of(Unavailable, "the server has no connection to spare").reconnect()
        }
        // For example for rows that are published to other servers without a replica identity.
        "55000" => ErrorMeaning::of(InvalidConfig, "a table cannot be changed as it is").one_row(),
        "55P03" => {
            ErrorMeaning::of(Unavailable, "another transaction keeps the row locked").one_row()
        }
        "57014" => ErrorMeaning::of(Unavailable, "the statement took too long"),
        "57P03" => ErrorMeaning::of(Unavailable, "the server is starting or stopping").reconnect(),
        // A pooler in transaction mode gives one session to several clients in turn. So a prepared
        // statement is missing in this session, or another client has made one with its name.
        "26000" | "42P05" => ErrorMeaning::of(
            InvalidConfig,
            "another program uses the same session: set the pooler in between to session mode",
        )
        .reconnect(),
        "57P04" => ErrorMeaning::of(InvalidConfig, "the database was dropped").reconnect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use distlock_backend_kit::batch::Failure;

    use super::*;
    use crate::statement_error::tests::{Coded, may_pass};

    /// Each entry: the code, the kind for a read, the kind for a write, whether one row may be the
    /// cause, whether a new connection is needed, and whether the statement is sent again.
    const TABLE: &[(&str, ErrorKind, ErrorKind, bool, bool, bool)] = {
        use ErrorKind::{
            AccessDenied as Denied, Corrupt, InvalidConfig as Config, LimitExceeded as Limit,
            OutcomeUnknown as Unknown, Unavailable as Down,
        };
        &[
            ("08006", Down, Unknown, false, true, false),
            ("22021", Config, Config, true, false, false),
            ("23514", Corrupt, Corrupt, true, false, false),
            ("25006", Down, Down, false, true, false),
            ("26000", Config, Config, false, true, false),
            ("28P01", Denied, Denied, false, true, false),
            ("28000", Denied, Denied, false, true, false),
            ("3D000", Config, Config, false, true, false),
            ("40001", Down, Down, true, false, true),
            ("40P01", Down, Down, true, false, true),
            ("42501", Denied, Denied, false, false, false),
            ("42703", Config, Config, false, false, false),
            ("42P01", Config, Config, false, false, false),
            ("42P05", Config, Config, false, true, false),
            ("53100", Limit, Limit, false, false, false),
            ("53300", Down, Down, false, true, false),
            ("54000", Limit, Limit, true, false, false),
            ("55000", Config, Config, true, false, false),
            ("55P03", Down, Down, true, false, false),
            ("57014", Down, Down, false, false, false),
            ("57P01", Down, Unknown, false, true, false),
            ("57P02", Down, Unknown, false, true, false),
            ("57P03", Down, Down, false, true, false),
            ("58030", Down, Unknown, false, true, false),
            ("XX001", Corrupt, Corrupt, false, true, false),
            ("0A000", Config, Config, false, true, false),
            ("P0001", Config, Config, false, true, false),
            ("ZZ999", Down, Unknown, false, true, false),
            ("", Down, Unknown, false, true, false),
        ]
    };

    #[test]
    fn each_sqlstate_has_its_kind_for_reads_and_for_writes() {
        for &(state, read, write, one_row, reconnect, retry) in TABLE {
            for (access, kind) in [(Access::Read, read), (Access::Write, write)] {
                let error = sqlx::Error::Database(Box::new(Coded(state.to_owned())));
                let failed = StatementError::postgres(error, access);
                assert_eq!(failed.meaning.kind, kind, "{state} on {access:?}");
                assert_eq!(failed.meaning.one_row, one_row, "{state}");
                assert_eq!(failed.meaning.reconnect, reconnect, "{state}");
                let passes = failed.meaning.error().is_retryable();
                assert_eq!(passes, may_pass(kind, one_row), "{state}");
                assert_eq!(failed.meaning.retry, retry, "{state}");
                let split = matches!(failed.into_failure(), Failure::Split(_));
                assert_eq!(split, one_row, "{state}");
            }
        }
    }

    #[test]
    fn after_a_timeout_the_outcome_of_a_write_is_unknown() {
        assert_eq!(
            StatementError::postgres_timed_out(Access::Write)
                .meaning
                .kind,
            ErrorKind::OutcomeUnknown
        );
        assert_eq!(
            StatementError::postgres_timed_out(Access::Read)
                .meaning
                .kind,
            ErrorKind::Unavailable
        );
    }
}
