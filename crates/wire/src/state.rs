//! The state of locks, and of the store behind a server.

use std::time::{Duration, SystemTime};

use distlock_core::{
    Epoch, Error, FencingToken, Health, HolderInfo, LockInfo, LockName, Result, Verdict, micros,
};

use crate::{
    v1::{self, finding},
    value::token,
};

/// The name of a check whose own name came over the wire.
const CHECK: &str = "at the server";

impl v1::Holder {
    /// The message of a holder. `wall` is the wall clock, from which the age of the hold is
    /// computed.
    #[must_use]
    pub fn new(info: &HolderInfo, wall: SystemTime) -> Self {
        let held_for = info.acquired_at.map(|at| wall.duration_since(at));
        Self {
            holder: info.holder.clone(),
            meta: info.meta.clone(),
            token: info.token.map(FencingToken::get),
            held_for_us: held_for.map(|it| micros(it.unwrap_or_default())),
            expires_in_us: info.expires_in.map(micros),
        }
    }

    /// The holder of this message.
    ///
    /// # Errors
    /// [`InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) for a token that is none.
    pub fn read(self, wall: SystemTime) -> Result<HolderInfo> {
        let mut info = HolderInfo::new(self.holder);
        info.meta = self.meta;
        info.token = token(self.token)?;
        let held_for = self.held_for_us.map(Duration::from_micros);
        info.acquired_at = held_for.and_then(|it| wall.checked_sub(it));
        info.expires_in = self.expires_in_us.map(Duration::from_micros);
        Ok(info)
    }
}

impl v1::LockState {
    /// The message of a lock's state.
    #[must_use]
    pub fn new(info: &LockInfo, wall: SystemTime) -> Self {
        let holder = |it| v1::Holder::new(it, wall);
        Self {
            name: info.name.as_str().to_owned(),
            held: info.held.as_ref().map(holder),
            last_token: info.last_token.map(FencingToken::get),
            epoch: info.epoch.as_ref().map(|it| it.as_str().to_owned()),
            waiters: info.waiters,
            queue: info.queue.iter().map(holder).collect(),
        }
    }

    /// The state of this message.
    ///
    /// # Errors
    /// [`InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) and
    /// [`InvalidName`](distlock_core::ErrorKind::InvalidName).
    pub fn read(self, wall: SystemTime) -> Result<LockInfo> {
        let mut info = LockInfo::free(LockName::new(self.name)?);
        info.held = self.held.map(|it| it.read(wall)).transpose()?;
        info.last_token = token(self.last_token)?;
        info.epoch = self.epoch.map(Epoch::new);
        info.waiters = self.waiters;
        let queue = self.queue.into_iter().map(|it| it.read(wall));
        info.queue = queue.collect::<Result<_>>()?;
        Ok(info)
    }
}

impl From<&Health> for v1::HealthReport {
    fn from(health: &Health) -> Self {
        let findings = health.findings.iter().map(|it| v1::Finding {
            check: it.check.to_owned(),
            verdict: finding::Verdict::from(it.verdict).into(),
            detail: it.detail.clone(),
        });
        Self {
            server: health.server.clone(),
            epoch: health.epoch.as_ref().map(|it| it.as_str().to_owned()),
            findings: findings.collect(),
        }
    }
}

impl From<v1::HealthReport> for Health {
    fn from(wire: v1::HealthReport) -> Self {
        let mut health = Self::new(wire.server);
        health.epoch = wire.epoch.map(Epoch::new);
        for finding in wire.findings {
            let verdict = finding.verdict().into();
            let detail = format!("{}: {}", finding.check, finding.detail);
            health.found(CHECK, verdict, detail);
        }
        health
    }
}

impl From<Verdict> for finding::Verdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Pass => Self::Pass,
            Verdict::Unknown => Self::Unknown,
            Verdict::Warn => Self::Warn,
            Verdict::Fail => Self::Fail,
        }
    }
}

impl From<finding::Verdict> for Verdict {
    fn from(verdict: finding::Verdict) -> Self {
        match verdict {
            finding::Verdict::Pass => Self::Pass,
            finding::Verdict::Unspecified | finding::Verdict::Unknown => Self::Unknown,
            finding::Verdict::Warn => Self::Warn,
            finding::Verdict::Fail => Self::Fail,
        }
    }
}

impl v1::InspectLock {
    /// The lock of this message.
    ///
    /// # Errors
    /// [`InvalidName`](distlock_core::ErrorKind::InvalidName).
    pub fn read(self) -> Result<LockName> {
        LockName::new(self.name)
    }
}

impl v1::ForceReleaseLock {
    /// The lock of this message, and the token that it must have.
    ///
    /// # Errors
    /// [`InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) and
    /// [`InvalidName`](distlock_core::ErrorKind::InvalidName).
    pub fn read(self) -> Result<(LockName, FencingToken), Error> {
        Ok((LockName::new(self.name)?, FencingToken::new(self.token)?))
    }
}
