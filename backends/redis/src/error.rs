//! Translates the driver's errors into those of the contract. The kind of an error says whether the
//! operation happened, did not happen, or may have happened.
//!
//! Invariant: a missing reply to an operation is always an unknown outcome, and an error while
//! connecting never is.

use distlock_core::{Error, ErrorKind, excerpt};
use redis::{RedisError, ServerError};

pub(crate) const BACKEND: &str = "redis";

/// Returns the error for a wrong option or address.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message).on(BACKEND)
}

/// Returns the error of an operation that was sent. A refused operation did not happen. Without a
/// reply the outcome is unknown.
pub(crate) fn of_operation(error: RedisError, at: &str) -> Error {
    match ServerError::try_from(error) {
        Ok(refusal) => of_reply(&refusal, at),
        Err(error) => {
            let lost = if error.is_timeout() {
                format!("{at} did not answer in time")
            } else {
                format!("the connection to {at} broke before the answer came")
            };
            Error::new(ErrorKind::OutcomeUnknown, lost)
                .on(BACKEND)
                .caused_by(Cause::of(&error))
        }
    }
}

/// Returns the error of an attempt to connect. No operation was sent, so nothing happened.
pub(crate) fn of_connecting(error: &RedisError, at: &str) -> Error {
    use redis::ErrorKind as Driver;
    let message = match error.kind() {
        Driver::AuthenticationFailed => {
            return refused_credentials(at, error.detail().unwrap_or_default());
        }
        Driver::RESP3NotSupported => {
            return Error::new(
                ErrorKind::InvalidConfig,
                format!("{at} does not speak RESP3: Redis 6.2 or newer, or Valkey, is needed"),
            )
            .on(BACKEND);
        }
        Driver::InvalidClientConfig => format!("cannot connect to {at}"),
        Driver::Parse | Driver::UnexpectedReturnType => {
            format!("the server at {at} does not speak the protocol of Redis")
        }
        // The driver replaces the server's refusal by its own words and drops the code.
        _ if error.to_string().contains("refused to switch database") => {
            let detail = excerpt(error.detail().unwrap_or_default());
            return Error::new(
                ErrorKind::InvalidConfig,
                format!("{at} has no such database for this user: {detail}"),
            )
            .on(BACKEND);
        }
        _ if error.is_timeout() => {
            format!(
                "{at} did not answer in time; a server is also silent if only one side uses TLS \
                 (rediss://, or `tls=true`)"
            )
        }
        _ if error.is_connection_dropped() && !error.is_connection_refusal() => {
            format!(
                "{at} closed the connection; a server also does so if only one side uses TLS \
                 (rediss://, or `tls=true`)"
            )
        }
        _ => match ServerError::try_from(error.clone()) {
            Ok(refusal) => return of_question(&refusal, at),
            Err(_) => format!("cannot connect to {at}"),
        },
    };
    Error::new(ErrorKind::Unavailable, message)
        .on(BACKEND)
        .caused_by(Cause::of(error))
}

/// Returns the code and the text of a refusal. All other code reads refusals through this function.
/// Before Redis 7, the refusal of a command in a script is nested in a refusal of the script, with
/// positions in its text. From Redis 7 on, the position follows the text: ` script: SHA, on ..`.
pub(crate) fn code_and_detail(refusal: &ServerError) -> (&str, &str) {
    let (code, detail) = (refusal.code(), refusal.details().unwrap_or_default());
    let (code, detail) = nested_refusal(code, detail).unwrap_or((code, detail));
    match detail.rsplit_once(" script: ") {
        Some((text, place)) if place.contains(", on @") => (code, text),
        _ => (code, detail),
    }
}

/// Reads a nested refusal, as in `ERR Error running script (call to f_SHA): @user_script:9:
/// @user_script: 9: -READONLY You can't write ..`.
fn nested_refusal<'a>(code: &str, detail: &'a str) -> Option<(&'a str, &'a str)> {
    let script = detail.strip_prefix("Error running script (call to ");
    let (_, mut inner) = script.filter(|_| code == "ERR")?.split_once("): ")?;
    while let Some(place) = inner.strip_prefix("@user_script:") {
        (_, inner) = place.split_once(": ")?;
    }
    let (code, detail) = inner.trim_start_matches('-').split_once(' ')?;
    let is_code = code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some((code, detail))
}

/// Returns the error of a refused question. A question, such as one on opening, changes nothing.
pub(crate) fn of_question(refusal: &ServerError, at: &str) -> Error {
    of_reply(refusal, at).of_read()
}

/// Returns the error for a server's refusal.
pub(crate) fn of_reply(refusal: &ServerError, at: &str) -> Error {
    let (code, detail) = code_and_detail(refusal);
    let kind = kind(code, detail);
    let detail = &*excerpt(detail);
    let message = match (kind, code) {
        // The server's own text explains its settings over a whole page.
        (ErrorKind::AccessDenied, "DENIED") => format!(
            "{at} is in protected mode and serves its own machine only: give it a password, or set \
             protected-mode no there"
        ),
        (ErrorKind::AccessDenied, "NOPERM") => {
            format!("{at} does not permit this user a command that locks or records need: {detail}")
        }
        (ErrorKind::AccessDenied, _) => return refused_credentials(at, detail),
        (_, "MOVED" | "ASK") => format!("{at} keeps redirecting: {code} {detail}"),
        (_, "READONLY") => format!("{at} is a replica or was demoted: {detail}"),
        (_, "OOM") => format!("{at} is out of memory: {detail}"),
        (_, "ERR") if is_missing_right(detail) => format!(
            "{at} does not permit this user a command that locks or records need, and may have run \
             the commands before it: {detail}"
        ),
        (_, "CROSSSLOT") => format!(
            "{at} spreads the keys over several servers behind one address: use redis+cluster://, \
             or a server of its own"
        ),
        (ErrorKind::OutcomeUnknown, _) => format!(
            "{at} answered {code} {detail}; this answer is not known here, the server's log or \
             `distlock doctor` may say more"
        ),
        _ => format!("{at} answered {code} {detail}"),
    };
    let error = Error::new(kind, message.trim_end().to_owned()).on(BACKEND);
    match kind {
        // Every limit in this table is a temporary state of the server, such as its memory or its
        // number of clients.
        ErrorKind::LimitExceeded => error.passing(),
        _ => error,
    }
}

/// Returns whether a script of this library was ended because the user may not run one of its
/// commands. Redis 7.0 and older say the first text, newer servers the second.
fn is_missing_right(detail: &str) -> bool {
    detail.contains("The user executing the script can't")
        || detail.contains("ACL failure in script")
}

fn kind(code: &str, detail: &str) -> ErrorKind {
    match code {
        // The server is loading, failing over, read-only, without its disk or its replicas, or busy
        // with another script. In all these cases the server refused the request, and will serve
        // again later.
        "BUSY" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "MISCONF" | "MOVED" | "ASK"
        | "NOREPLICAS" | "NOSCRIPT" | "READONLY" | "TRYAGAIN" => ErrorKind::Unavailable,
        "OOM" => ErrorKind::LimitExceeded,
        "DENIED" | "NOAUTH" | "NOPERM" | "WRONGPASS" => ErrorKind::AccessDenied,
        "WRONGTYPE" => ErrorKind::Corrupt,
        "CROSSSLOT" => ErrorKind::InvalidConfig,
        // The server refused the preamble before it executed the command.
        "ERR" if detail.contains("CLIENT CACHING") => ErrorKind::Unavailable,
        "ERR" if detail.contains("max number of clients") => ErrorKind::LimitExceeded,
        "ERR" if detail.contains("DB index") || detail.contains("database") => {
            ErrorKind::InvalidConfig
        }
        "ERR" if detail.contains("unknown command") => ErrorKind::Unsupported,
        // A script that failed halfway has changed something. A proxy answers for servers that may
        // have done the work. Neither is a bug of this library.
        _ => ErrorKind::OutcomeUnknown,
    }
}

fn refused_credentials(at: &str, detail: &str) -> Error {
    let detail = excerpt(detail);
    // The server names protocol commands, which mean nothing to a user of this library.
    let detail = match detail.trim() {
        none if none.contains("HELLO must be called")
            || none.starts_with("Authentication required") =>
        {
            "it wants a password, and none is given (option `password`, or \
             redis://user:password@host)"
        }
        wrong if wrong.starts_with("invalid username-password pair") => {
            "the user or the password is wrong, or the user is disabled"
        }
        other => other,
    };
    let because = if detail.is_empty() {
        String::new()
    } else {
        format!(": {detail}")
    };
    Error::new(
        ErrorKind::AccessDenied,
        format!("{at} refused the credentials{because}"),
    )
    .on(BACKEND)
}

/// Returns the error of an attempt to connect to a sentinel, like [`of_connecting`].
pub(crate) fn of_connecting_to_sentinel(error: &RedisError, at: &str) -> Error {
    use redis::ErrorKind as Driver;
    match (error.kind(), error.code()) {
        (Driver::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS")) => Error::new(
            ErrorKind::AccessDenied,
            format!(
                "the sentinel at {at} refused the credentials, or wants some (options \
                 `sentinel_user`, `sentinel_password`)"
            ),
        )
        .on(BACKEND),
        _ => of_connecting(error, at),
    }
}

/// The text of a driver's error, on one line, as the cause of this library's error. The driver puts
/// no secrets into the text.
#[derive(Debug)]
struct Cause(String);

impl Cause {
    fn of(error: &RedisError) -> Self {
        // The text of a parser's error has several lines.
        let text = error.to_string();
        let lines: Vec<_> = text.split_terminator('\n').map(str::trim).collect();
        Self(lines.join(", "))
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refusal(text: &str) -> RedisError {
        redis::parse_redis_value(format!("-{text}\r\n").as_bytes())
            .unwrap()
            .extract_error()
            .unwrap_err()
    }

    #[test]
    fn every_refusal_has_its_kind() {
        let table = [
            (
                "LOADING Redis is loading the dataset in memory",
                ErrorKind::Unavailable,
            ),
            (
                "READONLY You can't write against a read only replica.",
                ErrorKind::Unavailable,
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to \
                 persist on disk.",
                ErrorKind::Unavailable,
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                ErrorKind::Unavailable,
            ),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                ErrorKind::Unavailable,
            ),
            ("CLUSTERDOWN The cluster is down", ErrorKind::Unavailable),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                ErrorKind::Unavailable,
            ),
            ("MOVED 3999 127.0.0.1:6381", ErrorKind::Unavailable),
            ("ASK 3999 127.0.0.1:6381", ErrorKind::Unavailable),
            (
                "BUSY Redis is busy running a script.",
                ErrorKind::Unavailable,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                ErrorKind::LimitExceeded,
            ),
            (
                "ERR max number of clients reached",
                ErrorKind::LimitExceeded,
            ),
            ("NOAUTH Authentication required.", ErrorKind::AccessDenied),
            (
                "NOPERM User u has no permissions to run the 'evalsha' command",
                ErrorKind::AccessDenied,
            ),
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                ErrorKind::AccessDenied,
            ),
            (
                "DENIED Redis is running in protected mode because protected mode is enabled and \
                 no password is set for the default user.",
                ErrorKind::AccessDenied,
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                ErrorKind::Corrupt,
            ),
            ("ERR DB index is out of range", ErrorKind::InvalidConfig),
            (
                "ERR unknown command 'EVALSHA', with args beginning with:",
                ErrorKind::Unsupported,
            ),
            (
                "ERR Error running script (call to f_1234): @user_script:1: oops",
                ErrorKind::OutcomeUnknown,
            ),
            (
                "ERR Unknown Redis command called from script script: 1234, on @user_script:7.",
                ErrorKind::OutcomeUnknown,
            ),
            // A missing right may end a script halfway.
            (
                "ERR The user executing the script can't run this command or subcommand script: \
                 1234, on @user_script:55.",
                ErrorKind::OutcomeUnknown,
            ),
            (
                "ERR ACL failure in script: User u has no permissions to run the 'set' command \
                 script: 1234, on @user_script:55.",
                ErrorKind::OutcomeUnknown,
            ),
            // Proxies give these answers.
            ("ERR upstream failure", ErrorKind::OutcomeUnknown),
            ("EXECABORT Transaction discarded", ErrorKind::OutcomeUnknown),
            ("SOMETHING NEW", ErrorKind::OutcomeUnknown),
            (
                "NOSCRIPT No matching script. Please use EVAL.",
                ErrorKind::Unavailable,
            ),
            (
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with \
                 OPTIN or OPTOUT mode enabled",
                ErrorKind::Unavailable,
            ),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                ErrorKind::InvalidConfig,
            ),
            // The same refusals inside a script, in the form before Redis 7.
            (
                "ERR Error running script (call to f_1234): @user_script:9: @user_script: 9: \
                 -READONLY You can't write against a read only replica.",
                ErrorKind::Unavailable,
            ),
            (
                "ERR Error running script (call to f_1234): @user_script:9: @user_script: 9: \
                 -MISCONF Redis is configured to save RDB snapshots, but it is currently not able \
                 to persist on disk.",
                ErrorKind::Unavailable,
            ),
            (
                "ERR Error running script (call to f_1234): @user_script:9: @user_script: 9: \
                 -NOREPLICAS Not enough good replicas to write.",
                ErrorKind::Unavailable,
            ),
            (
                "ERR Error running script (call to f_1234): @user_script:9: @user_script: 9: -OOM \
                 command not allowed when used memory > 'maxmemory'.",
                ErrorKind::LimitExceeded,
            ),
            (
                "ERR Error running script (call to f_1234): @user_script:9: WRONGTYPE Operation \
                 against a key holding the wrong kind of value",
                ErrorKind::Corrupt,
            ),
            (
                "ERR Error running script (call to f_1234): @user_script:9: @user_script: 9: \
                 Unknown Redis command called from Lua script",
                ErrorKind::OutcomeUnknown,
            ),
        ];
        for (text, kind) in table {
            let error = of_operation(refusal(text), "db:6379");
            assert_eq!(error.kind(), kind, "{text}: {error}");
            assert!(error.to_string().contains("db:6379"), "{error}");
            let unknown = kind == ErrorKind::OutcomeUnknown;
            assert_eq!(error.did_not_happen(), !unknown, "{text}");
            // Every limit in this table is a temporary state of the server.
            let passes = matches!(kind, ErrorKind::Unavailable | ErrorKind::LimitExceeded);
            assert_eq!(error.is_retryable(), passes || unknown, "{text}");
            // A question on opening changes nothing, whatever the answer is.
            let opening = of_connecting(&refusal(text), "db:6379");
            let expected = if unknown {
                ErrorKind::Unavailable
            } else {
                kind
            };
            assert_eq!(opening.kind(), expected, "{text}: {opening}");
            assert_ne!(kind, ErrorKind::Internal, "{text}");
            let says = error.to_string();
            assert!(
                !says.contains("on @user_script"),
                "the text ends with a place: {says}"
            );
            let is_right = text.contains("NOPERM") || text.contains("can't run this command");
            if is_right || text.contains("ACL failure") {
                assert!(says.contains("does not permit"), "{text}: {says}");
            }
        }
    }

    #[test]
    fn refused_credentials_are_explained_without_the_protocol() {
        for (text, says) in [
            (
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                 HELLO AUTH <user> <pass> option can be used",
                "db:6379 refused the credentials: it wants a password, and none is given (option \
                 `password`",
            ),
            (
                "NOAUTH Authentication required.",
                "db:6379 refused the credentials: it wants a password",
            ),
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                "db:6379 refused the credentials: the user or the password is wrong",
            ),
        ] {
            let said = of_connecting(&refusal(text), "db:6379").to_string();
            assert!(said.contains(says), "{said}");
            assert!(!said.contains("HELLO"), "{said}");
        }
    }

    #[test]
    fn a_missing_answer_is_unknown_and_a_missing_connection_is_not() {
        for lost in [
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::TimedOut,
            io::ErrorKind::UnexpectedEof,
        ] {
            let error = || RedisError::from(io::Error::from(lost));
            assert_eq!(
                of_operation(error(), "db").kind(),
                ErrorKind::OutcomeUnknown,
                "{lost:?}"
            );
            assert_eq!(
                of_connecting(&error(), "db").kind(),
                ErrorKind::Unavailable,
                "{lost:?}"
            );
        }
        let garbage = redis::parse_redis_value(b"?nonsense\r\n").unwrap_err();
        assert_eq!(
            of_operation(garbage, "db").kind(),
            ErrorKind::OutcomeUnknown
        );
    }
}
