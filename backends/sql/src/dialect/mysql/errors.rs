//! The meaning of MySQL's and MariaDB's error numbers.
//!
//! An unknown number counts as an unknown outcome for a write.

use distlock_core::{ErrorKind, threads::NO_THREAD};
use sqlx::mysql::MySqlDatabaseError;

use crate::statement_error::{
    Access, ErrorMeaning, StatementError, TlsTrouble, no_thread, tls_trouble,
};

/// Errors after which a batch can succeed in another form: sent again, without some rows, with a
/// statement for each row, or as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MySqlTrouble {
    /// The server rolled the transaction back, so that another transaction could continue.
    Deadlock,
    /// Another transaction has the row locked.
    Locked,
    /// At least one row of a batch is not in the state that the change needs. No row was changed.
    NotAll,
    /// The server does not have the prepared statement. Nothing was done.
    NotPrepared,
}

impl StatementError {
    /// The meaning of a server's or driver's error.
    pub(crate) fn mysql(source: sqlx::Error, access: Access) -> Self {
        Self {
            meaning: mysql(&source, access),
            source,
            said: None,
        }
    }

    /// The error for an answer that did not come within the statement timeout.
    pub(crate) fn mysql_timed_out(access: Access) -> Self {
        let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
        Self {
            meaning: ErrorMeaning::of(
                unknown_if_write(access),
                "the server did not answer in time",
            )
            .reconnect(),
            source: sqlx::Error::Io(source),
            said: None,
        }
    }

    /// The error for a statement that was not sent, because an earlier answer on the connection was
    /// not read to its end.
    pub(crate) fn mysql_not_sent() -> Self {
        let source = std::io::Error::from(std::io::ErrorKind::NotConnected);
        Self::mysql(sqlx::Error::Io(source), Access::Read)
    }

    /// The error for a statement that was not sent, because its size exceeds `packet`, the server's
    /// `max_allowed_packet`.
    pub(crate) fn mysql_too_large(bytes: usize, packet: usize) -> Self {
        let problem = format!("the statement has {bytes} bytes, and the limit is {packet}");
        Self {
            meaning: too_large(),
            source: sqlx::Error::Io(std::io::Error::other(problem)),
            said: None,
        }
    }

    /// Whether the error is the server's own and not the driver's.
    pub(crate) fn is_of_mysql(&self) -> bool {
        mysql_number(&self.source).is_some()
    }

    pub(crate) fn mysql_trouble(&self) -> Option<MySqlTrouble> {
        match mysql_number(&self.source)? {
            // Deadlock; changed since it was read; not certified by the group, before or at the
            // commit.
            1213 | 1020 | 3100 | 3101 => Some(MySqlTrouble::Deadlock),
            // Lock wait timeout; `NOWAIT` met a lock.
            1205 | 3572 => Some(MySqlTrouble::Locked),
            // `Statements::all_or_none` causes this overflow on purpose when its update has matched
            // too few rows.
            1690 => Some(MySqlTrouble::NotAll),
            // The server holds too many prepared statements; the server or a proxy does not know
            // this prepared statement; the server cannot prepare statements of this kind.
            1461 | 1243 | 1295 => Some(MySqlTrouble::NotPrepared),
            _ => None,
        }
    }
}

fn mysql_number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

fn unknown_if_write(access: Access) -> ErrorKind {
    match access {
        Access::Read => ErrorKind::Unavailable,
        Access::Write => ErrorKind::OutcomeUnknown,
    }
}

fn mysql(error: &sqlx::Error, access: Access) -> ErrorMeaning {
    let unknown = unknown_if_write(access);
    if let Some(number) = mysql_number(error) {
        return mysql_meaning(number, unknown);
    }
    if let Some(trouble) = tls_trouble(error, access) {
        return of_tls(trouble).reconnect();
    }
    match error {
        sqlx::Error::Io(error) if no_thread(error, access) => {
            ErrorMeaning::server_limit(NO_THREAD).reconnect()
        }
        sqlx::Error::Io(_) => ErrorMeaning::of(unknown, "the connection broke").reconnect(),
        sqlx::Error::Configuration(problem) if problem.to_string().contains("RSA") => {
            ErrorMeaning::of(
                ErrorKind::AccessDenied,
                "the server takes this password over TLS or a Unix socket only: set `ssl-mode` or \
                `socket`",
            )
            .reconnect()
        }
        sqlx::Error::Configuration(_) => {
            ErrorMeaning::of(ErrorKind::InvalidConfig, "a file or option cannot be used")
                .reconnect()
        }
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. } => {
            ErrorMeaning::of(ErrorKind::Corrupt, "a row cannot be read").one_row()
        }
        // The other end is not a MySQL server, or an answer was cut off in the middle.
        _ => ErrorMeaning::of(
            unknown,
            "the server speaks something else than MySQL, or its answer was damaged on the way",
        )
        .reconnect(),
    }
}

fn of_tls(trouble: TlsTrouble) -> ErrorMeaning {
    match trouble {
        TlsTrouble::Absent => ErrorMeaning::of(
            ErrorKind::Unavailable,
            "the server offers no TLS, which `ssl-mode` demands",
        ),
        TlsTrouble::Options => ErrorMeaning::of(
            ErrorKind::InvalidConfig,
            "the driver cannot use what `ssl-ca`, `ssl-cert` and `ssl-key` name, or the host's \
                name",
        ),
        TlsTrouble::Certificate => ErrorMeaning::of(
            ErrorKind::Unavailable,
            "the server's certificate is not trusted, or not for this host: `ssl-ca` names the \
                file with the authority \
             to trust",
        ),
        TlsTrouble::Refused => ErrorMeaning::of(
            ErrorKind::AccessDenied,
            "the server broke TLS off: it may accept only clients with a certificate (`ssl-cert` \
                and `ssl-key`)",
        ),
        TlsTrouble::Protocol => ErrorMeaning::of(
            ErrorKind::Unavailable,
            "the TLS connection that `ssl-mode` demands could not be made",
        ),
    }
}

const fn too_large() -> ErrorMeaning {
    ErrorMeaning::of(
        ErrorKind::LimitExceeded,
        "the value is larger than the server's max_allowed_packet allows",
    )
    .one_row()
}

/// The meaning of an error number. An error of the server means that the statement was not carried
/// out, except for the numbers with the kind `unknown_if_write` or `OutcomeUnknown` below.
fn mysql_meaning(number: u16, unknown_if_write: ErrorKind) -> ErrorMeaning {
    if let Some(meaning) = server_unavailable(number).or_else(|| access_or_tables(number)) {
        return meaning;
    }
    match number {
        // An administrator or the idle timeout closed the connection. The number does not show
        // whether the server carried the statement out before.
        1152 | 1158..=1161 | 1184 | 1927 | 4031 => {
            ErrorMeaning::of(unknown_if_write, "the server closed the connection").reconnect()
        }
        1180 => ErrorMeaning::of(ErrorKind::OutcomeUnknown, "the commit failed").reconnect(),
        1021 | 1114 => ErrorMeaning::server_limit("the disk or the table is full"),
        1037 | 1038 | 1041 | 1206 => ErrorMeaning::server_limit("the server is out of memory"),
        1153 => too_large().reconnect(),
        // A proxy may answer with such a number although the server carried the statement out.
        _ => ErrorMeaning::of(
            unknown_if_write,
            "the server answered with an error that is not known here; its log may say more",
        )
        .reconnect(),
    }
}

/// The meaning of a number that reports the server or the row as temporarily unavailable.
fn server_unavailable(number: u16) -> Option<ErrorMeaning> {
    use ErrorKind::Unavailable;
    Some(match number {
        1205 | 3572 => {
            ErrorMeaning::of(Unavailable, "another transaction has the row locked").one_row()
        }
        // MariaDB with `innodb_snapshot_isolation` (on by default from 11.6).
        1020 => ErrorMeaning::of(
            Unavailable,
            "another transaction changed the row after this transaction's first read: roll back, \
             and begin the transaction again",
        ),
        1213 | 3100 | 3101 => ErrorMeaning::of(
            Unavailable,
            "the server preferred other transactions each time",
        ),
        1412 | 1615 => {
            ErrorMeaning::of(Unavailable, "the tables were changed meanwhile").reconnect()
        }
        1040 | 1129 | 1203 | 1226 => {
            ErrorMeaning::of(Unavailable, "the server has too many connections").reconnect()
        }
        1290 | 1792 | 1836 | 1874 => {
            ErrorMeaning::of(Unavailable, "the server is read-only").reconnect()
        }
        1047 => ErrorMeaning::of(Unavailable, "the node is not part of its cluster").reconnect(),
        1053 | 1077 | 1079 | 1080 => {
            ErrorMeaning::of(Unavailable, "the server is shutting down").reconnect()
        }
        // For example during a failover to another server.
        3032 | 3168 => {
            ErrorMeaning::of(Unavailable, "the server was taken out of service").reconnect()
        }
        1317 | 1969 | 3024 => {
            ErrorMeaning::of(Unavailable, "the statement was stopped by the server")
        }
        _ => return None,
    })
}

/// The meaning of a number that names the user's rights, the tables or a row as the cause.
fn access_or_tables(number: u16) -> Option<ErrorMeaning> {
    use ErrorKind::{AccessDenied, Corrupt, InvalidConfig};
    Some(match number {
        1044 | 1045 | 1130 | 1142 | 1143 | 1227 | 1251 | 1370 | 1524 | 1698 | 1820 | 1862
        | 3118 | 3159 | 4151 => ErrorMeaning::of(AccessDenied, "access was refused").reconnect(),
        1049 => ErrorMeaning::of(InvalidConfig, "there is no such database").reconnect(),
        1054 | 1064 | 1136 | 1146 | 1356 | 1364 => {
            ErrorMeaning::of(InvalidConfig, "the tables are not as expected").reconnect()
        }
        1665 => ErrorMeaning::of(
            InvalidConfig,
            "the server's binlog_format must be ROW or MIXED",
        ),
        1264..=1266 | 1366 | 1406 => ErrorMeaning::of(
            InvalidConfig,
            "a value does not fit its column, so the tables were changed by hand: run `distlock \
                doctor`",
        )
        .one_row(),
        1690 => ErrorMeaning::of(
            Corrupt,
            "a number in a row is out of range, so the row was changed by hand: run `distlock \
                doctor`",
        )
        .one_row(),
        1442 | 1644 => ErrorMeaning::of(
            InvalidConfig,
            "a trigger of the tables refuses it: they must have none",
        ),
        1048 | 3819 | 4025 => {
            ErrorMeaning::of(Corrupt, "a row breaks the rules of its table").one_row()
        }
        1034 | 1035 | 1194 | 1195 | 1712 => ErrorMeaning::of(Corrupt, "a table is damaged"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement_error::tests::may_pass;

    /// Each entry: the number, the kind for a read, the kind for a write, whether one row may be
    /// the cause, and whether a new connection is needed.
    const TABLE: &[(u16, ErrorKind, ErrorKind, bool, bool)] = {
        use ErrorKind::{
            AccessDenied as Denied, Corrupt, InvalidConfig as Config, LimitExceeded as Limit,
            OutcomeUnknown as Unknown, Unavailable as Down,
        };
        &[
            (1020, Down, Down, false, false),
            (1021, Limit, Limit, false, false),
            (1034, Corrupt, Corrupt, false, false),
            (1040, Down, Down, false, true),
            (1045, Denied, Denied, false, true),
            (1047, Down, Down, false, true),
            (1048, Corrupt, Corrupt, true, false),
            (1049, Config, Config, false, true),
            (3032, Down, Down, false, true),
            (3168, Down, Down, false, true),
            (1053, Down, Down, false, true),
            (1105, Down, Unknown, false, true),
            (1644, Config, Config, false, false),
            (9999, Down, Unknown, false, true),
            (1142, Denied, Denied, false, true),
            (1146, Config, Config, false, true),
            (1153, Limit, Limit, true, true),
            (1180, Unknown, Unknown, false, true),
            (1205, Down, Down, true, false),
            (1213, Down, Down, false, false),
            (1290, Down, Down, false, true),
            (1317, Down, Down, false, false),
            (3101, Down, Down, false, false),
            (1406, Config, Config, true, false),
            (1665, Config, Config, false, false),
            (1690, Corrupt, Corrupt, true, false),
            (1927, Down, Unknown, false, true),
            (3572, Down, Down, true, false),
            (4031, Down, Unknown, false, true),
        ]
    };

    #[test]
    fn each_error_number_has_its_kind_for_reads_and_for_writes() {
        for &(number, read, write, one_row, reconnect) in TABLE {
            for (access, kind) in [(Access::Read, read), (Access::Write, write)] {
                let meaning = mysql_meaning(number, unknown_if_write(access));
                assert_eq!(meaning.kind, kind, "{number} on {access:?}");
                assert_eq!(meaning.one_row, one_row, "{number}");
                assert_eq!(meaning.reconnect, reconnect, "{number}");
                let passes = meaning.error().is_retryable();
                assert_eq!(passes, may_pass(kind, one_row), "{number}");
            }
        }
    }

    #[test]
    fn after_a_lost_connection_the_outcome_of_a_write_is_unknown() {
        for (access, kind) in [
            (Access::Write, ErrorKind::OutcomeUnknown),
            (Access::Read, ErrorKind::Unavailable),
        ] {
            let broke = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
            let failed = StatementError::mysql(sqlx::Error::Io(broke), access);
            assert_eq!(failed.meaning.kind, kind);
            assert!(failed.meaning.reconnect);
            assert_eq!(StatementError::mysql_timed_out(access).meaning.kind, kind);
        }
    }
}
