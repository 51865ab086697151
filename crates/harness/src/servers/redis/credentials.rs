//! Passwords in settings and URLs.

use crate::servers::isolation::Password;

/// How a server is told its password, and how a test chooses one.
pub(super) const PASSWORD: &str = "requirepass ";

/// What stands before the address in a URL.
pub(super) fn credentials(password: Option<&Password>) -> String {
    password.map_or_else(String::new, |it| format!(":{}@", it.expose()))
}

pub(super) fn password_setting(password: &Password) -> String {
    format!("{PASSWORD}{}", password.expose())
}
