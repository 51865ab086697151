//! What must be known of an account before it may log in.

use std::fmt;

use async_trait::async_trait;
use distlock_core::Result;

use crate::model::login::{Denied, Login};

/// Loads what must be known of an account before it may log in: its profile, what it paid for, where it may come from.
///
/// It is asked before a login waits for anything that other logins need, so it may be slow: that costs nobody else anything. A
/// login that took long here is no older than one that did not: what counts is the order of the writes.
#[async_trait]
pub trait Profiles: fmt::Debug + Send + Sync + 'static {
    /// Says whether this login may go on.
    ///
    /// # Errors
    /// Whatever kept it from finding out: the login ends with it, and nothing was changed.
    ///
    /// # Cancel safety
    /// Dropped when the login's caller goes away.
    async fn load(&self, login: &Login) -> Result<Allowed>;
}

/// Whether a login may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allowed {
    /// It may, as far as the policy goes along.
    Yes,
    /// It is answered with this.
    No(Denied),
}
