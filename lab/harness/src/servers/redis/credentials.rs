//! Writes passwords into settings and URLs.

use crate::servers::isolation::Password;

/// The name of the setting for a server's password. A test can choose a password by this setting.
pub(super) const PASSWORD: &str = "requirepass ";

/// Returns the part of a URL before the address, with the password. The text is empty if there is
/// no password.
pub(super) fn url_credentials(password: Option<&Password>) -> String {
    password.map_or_else(String::new, |it| format!(":{}@", it.expose()))
}

/// Returns the setting that gives a server this password.
pub(super) fn password_setting(password: &Password) -> String {
    format!("{PASSWORD}{}", password.expose())
}
