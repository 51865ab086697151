//! The intent of a login.

use serde::{Deserialize, Serialize};

/// What a client wants from a login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Intent {
    /// Log in by the rules of the policy.
    #[default]
    Login,
    /// Come back as the session it was, unless somebody else logged in since.
    Resume,
    /// Take over, also under a policy that would deny.
    Takeover,
}
