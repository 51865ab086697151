//! The URL of a database: its dialect, and the rule for its password.
//!
//! Invariant: a URL that breaks the password rule is refused before a connection is opened. The URL
//! must never reach an error, because the URL may hold a password.

use distlock_backend_kit::PasswordRule;
use distlock_core::{Error, ErrorKind, Result};
use sqlx::{
    mysql::{MySqlConnectOptions, MySqlSslMode},
    postgres::{PgConnectOptions, PgSslMode},
};

use super::statements::Dialect;

/// Returns the dialect of a URL, and the URL in the form that the driver reads.
pub(super) fn parse_url(url: &str) -> Result<(Dialect, String)> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme {
        "mysql" | "mariadb" => {
            let rest = translate_clear_text_option(rest, "ssl-mode=DISABLED");
            let url = format!("mysql:{rest}");
            check_password_rule(Dialect::MySql, &url)?;
            Ok((Dialect::MySql, url))
        }
        "postgres" | "postgresql" => {
            let url = translate_clear_text_option(url, "sslmode=disable");
            check_password_rule(Dialect::Postgres, &url)?;
            Ok((Dialect::Postgres, url))
        }
        "sqlite" => {
            // The options of the URL are for the lock's store, so they are left out here.
            let file = rest.split('?').next().unwrap_or_default();
            Ok((Dialect::Sqlite, format!("sqlite:{file}?mode=rwc")))
        }
        _ => {
            // The error leaves the URL out, because the URL may hold a password.
            let says = "this is no URL of a database: sqlite:, mysql:, mariadb: and postgres: are";
            Err(Error::new(ErrorKind::InvalidConfig, says))
        }
    }
}

/// The option of a URL that allows a password in clear text. The lock's store has the same option.
const ALLOW_CLEAR_TEXT: &str = "tls=disable";

/// Replaces that option with the driver's own. The same text in a password or in another option
/// stays as it is.
fn translate_clear_text_option(url: &str, drivers_option: &str) -> String {
    let Some((address, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let options = query.split('&').map(|option| match option {
        ALLOW_CLEAR_TEXT => drivers_option,
        option => option,
    });
    format!("{address}?{}", options.collect::<Vec<_>>().join("&"))
}

/// Refuses to send a password in clear text to another machine, unless the user allows it. The
/// lock's store has the same rule.
fn check_password_rule(dialect: Dialect, url: &str) -> Result<()> {
    // A URL that cannot be parsed passes here, because the driver refuses it later.
    let (host, encrypted, clear_allowed, features, remedy) = match dialect {
        Dialect::MySql => {
            let Ok(options) = url.parse::<MySqlConnectOptions>() else {
                return Ok(());
            };
            let mode = options.get_ssl_mode();
            let clear = matches!(mode, MySqlSslMode::Disabled);
            let encrypted = !clear && !matches!(mode, MySqlSslMode::Preferred);
            let host = options.get_host().to_owned();
            let remedy = "set `ssl-mode` to VERIFY_IDENTITY";
            (host, encrypted, clear, "mysql,tls", remedy)
        }
        Dialect::Postgres => {
            let Ok(options) = url.parse::<PgConnectOptions>() else {
                return Ok(());
            };
            let mode = options.get_ssl_mode();
            let clear = matches!(mode, PgSslMode::Disable);
            let encrypted = !clear && !matches!(mode, PgSslMode::Allow | PgSslMode::Prefer);
            let host = options.get_host().to_owned();
            let remedy = "set `sslmode` to verify-full";
            (host, encrypted, clear, "postgres,tls", remedy)
        }
        Dialect::Sqlite => return Ok(()),
    };
    let user = url.rsplit_once('@').map_or("", |(before, _)| before);
    let rule = PasswordRule {
        // The first colon belongs to the scheme. A second one before the `@` separates the user
        // from the password.
        sent: user.matches(':').count() > 1 || url.contains("password="),
        encrypted,
        clear_allowed,
        tls_built: true,
        features,
        remedy,
    };
    if host.starts_with('/') {
        // A socket file is on this machine.
        return Ok(());
    }
    rule.check(&host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_clear_text_to_another_machine_is_refused_unless_allowed() {
        for scheme in ["mysql", "mariadb", "postgres"] {
            let of = |at: &str| parse_url(&format!("{scheme}://{at}"));
            let error = of("bob:hunter2@db.example/d").err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let said = error.to_string();
            assert!(said.contains("`tls` to `disable`"), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
            for fine in [
                "bob:hunter2@localhost/d",
                "bob@db.example/d",
                "bob:hunter2@db.example/d?tls=disable",
            ] {
                of(fine).unwrap();
            }
            assert!(of("bob:tls=disable@db.example/d").is_err());
        }
        parse_url("mysql://bob:hunter2@db.example/d?ssl-mode=REQUIRED").unwrap();
        parse_url("postgres://bob:hunter2@db.example/d?sslmode=require").unwrap();
    }
}
