//! The intent of a login.

use serde::{Deserialize, Serialize};

/// The wish of a client at a login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Intent {
    /// Log in by the rules of the policy.
    #[default]
    Login,
    /// Continue the client's last session. The login is denied if another device has logged in
    /// meanwhile.
    Resume,
    /// Log in, even if the policy would deny the login.
    Takeover,
}
