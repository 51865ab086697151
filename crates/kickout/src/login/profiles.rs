//! The embedder's check of an account before its login.

use std::fmt;

use async_trait::async_trait;
use distlock_core::Result;

use crate::model::login::{Denied, Login};

/// Checks an account before its login: its profile, its subscription, its location.
///
/// The check runs before the login enters the login queue and before it takes the account's lock,
/// so a slow check delays no other login. A slow check does not make a login older: the order of
/// the writes decides.
#[async_trait]
pub trait Profiles: fmt::Debug + Send + Sync + 'static {
    /// Decides whether this login may continue.
    ///
    /// # Errors
    /// Any failure of the check. The login then returns this error, and nothing was changed.
    ///
    /// # Cancel safety
    /// The future is dropped when the login's caller drops the login.
    async fn load(&self, login: &Login) -> Result<Allowed>;
}

/// Whether a login may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allowed {
    /// The login may continue; the policy decides next.
    Yes,
    /// The login is denied with this answer.
    No(Denied),
}
