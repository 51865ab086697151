//! The options of a lock, their defaults, and their check before any I/O.
//!
//! This module owns the defaults. Invariant: a request that leaves this module is valid for its
//! store. The module itself never waits: `take` calls the engine, which does.

use std::{sync::Arc, time::Duration};

use crate::{
    client::{guard::Guard, scope::Scope},
    contract::AcquireRequest,
    engine::{
        acquire, bounded::Wait, lease_state::Renew, parts::LockerParts, wanted::WantedLock,
    },
    types::{
        duration::format_duration,
        error::{Error, ErrorKind, Result},
        ident::{HolderLabel, Meta, OwnerId},
        name::LockName,
        ttl::Ttl,
    },
};

/// The longest wait for a lock of a caller that sets none.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// The options of one lock, or of several that are taken together.
#[derive(Clone, Debug)]
pub(crate) struct LockOptions {
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) holder: Option<String>,
    pub(crate) meta: Option<String>,
    pub(crate) renew: Renew,
    pub(crate) scope: Option<Scope>,
    pub(crate) min_hold: Duration,
    pub(crate) gives_up: bool,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            ttl: None,
            wait: Some(DEFAULT_WAIT),
            holder: None,
            meta: None,
            renew: Renew::Auto,
            scope: None,
            min_hold: Duration::ZERO,
            gives_up: false,
        }
    }
}

/// Takes one lock, within the scope of the options if they have one.
pub(crate) async fn take(
    parts: &Arc<LockerParts>,
    options: &LockOptions,
    wanted: WantedLock,
) -> Result<Guard> {
    if let Some(scope) = &options.scope {
        return scope.enter(parts, wanted, options.min_hold).await;
    }
    let lease_state = acquire::acquire(parts, wanted).await?;
    Ok(Guard::new(parts, lease_state, options.min_hold))
}

impl LockOptions {
    /// Checks all options and builds the request for one lock name.
    pub(crate) fn wanted(&self, parts: &LockerParts, name: LockName) -> Result<WantedLock> {
        let capabilities = parts.backend.capabilities();
        let ttl = parts
            .settings
            .checked_ttl(capabilities, self.ttl.unwrap_or(capabilities.default_ttl))?;
        if self.min_hold > Ttl::MAX.duration() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "min_hold of {} is over 24 h",
                    format_duration(self.min_hold)
                ),
            ));
        }
        let holder = match &self.holder {
            Some(label) => HolderLabel::new(label)?,
            None => parts.settings.default_holder(),
        };
        let mut request = AcquireRequest::new(name, OwnerId::new(), ttl, holder);
        request.meta = self.meta.as_ref().map(Meta::new).transpose()?;
        Ok(WantedLock {
            request,
            wait: Wait::start(self.wait, parts.timing.now()),
            renew: self.renew,
            gives_up: self.gives_up,
        })
    }
}
