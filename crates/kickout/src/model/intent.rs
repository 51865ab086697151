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
    /// Come back as the same session, unless another device logged in since.
    Resume,
    /// Take over, even if the policy would deny.
    Takeover,
}
