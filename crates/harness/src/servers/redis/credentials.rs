//! Writes passwords into settings and URLs.

use crate::servers::isolation::Password;

/// The setting that gives a server its password, with which a test can also choose one.
pub(super) const PASSWORD: &str = "requirepass ";

/// The part of a URL before the address.
pub(super) fn url_credentials(password: Option<&Password>) -> String {
    password.map_or_else(String::new, |it| format!(":{}@", it.expose()))
}

pub(super) fn password_setting(password: &Password) -> String {
    format!("{PASSWORD}{}", password.expose())
}
