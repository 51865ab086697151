//! The builders collect the options of one lock or of several locks, and then take the locks.
//!
//! This module owns the public options with their defaults, and the verbs `acquire`, `try_acquire`
//! and `run`. Invariants: no request is sent before the future of a verb is awaited, and each
//! request is valid for its store. The engine does the work of each verb.

use std::{future::Future, sync::Arc, time::Duration};

use tracing::{
    Instrument as _, debug_span,
    field::{self, Empty},
};

use crate::{
    client::{
        guard::Guard,
        guard_set::{self, GuardSet},
        scope::Scope,
        watch::LockWatch,
    },
    contract::{AcquireRequest, Attempt, capabilities::Fairness},
    engine::{
        acquire::{self, WantedLock},
        bounded::Wait,
        lease_state::Renew,
        parts::LockerParts,
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

/// Describes one wanted lock. Made by [`Locker::lock`](crate::Locker::lock).
///
/// ```
/// use std::time::Duration;
///
/// use distlock::ErrorKind;
///
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// # let locker = distlock::connect("memory:").await?;
/// let wanted = locker
///     .lock("order:2")
///     .ttl(Duration::from_secs(10)) // the lock is free this long after its holder died
///     .wait(Duration::from_millis(100))
///     .holder("billing");
/// let guard = wanted.clone().acquire().await?;
/// let busy = wanted.acquire().await.unwrap_err();
/// assert_eq!(busy.kind(), ErrorKind::Timeout);
/// assert!(busy.to_string().contains("held by billing"));
/// # drop(guard); locker.close().await; Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until `acquire`, `try_acquire` or `run` is awaited"]
pub struct LockBuilder {
    parts: Arc<LockerParts>,
    name: Result<LockName>,
    pub(crate) options: LockOptions,
}

/// Describes several wanted locks. Made by [`Locker::lock_all`](crate::Locker::lock_all).
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until `acquire` is awaited"]
pub struct LockAllBuilder {
    parts: Arc<LockerParts>,
    names: Result<Vec<LockName>>,
    pub(crate) options: LockOptions,
}

/// The methods of a builder that set an option. `$($at).+` is the field with the options.
macro_rules! options {
    ($($at:ident).+) => {
        /// The duration of the lease without a renewal: whole milliseconds, from the backend's
        /// minimum to 24 h. The default is the backend's, 10 s for most backends.
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.$($at).+.ttl = Some(ttl);
            self
        }

        /// The longest wait for the lock. The default is 30 s. With zero, `acquire` makes one
        /// attempt.
        pub fn wait(mut self, wait: Duration) -> Self {
            self.$($at).+.wait = Some(wait);
            self
        }

        /// Waits without end.
        pub fn wait_forever(mut self) -> Self {
            self.$($at).+.wait = None;
            self
        }

        /// Fails after a few attempts while the store is unreachable, instead of waiting until the
        /// store answers again. If connections are refused at once, this takes less than a second.
        /// The error is that of the last attempt, for example [`ErrorKind::Unavailable`].
        pub fn give_up_when_unreachable(mut self) -> Self {
            self.$($at).+.gives_up = true;
            self
        }

        /// The holder's label that other processes see, up to 128 bytes. The default is
        /// `user@host:pid`.
        pub fn holder(mut self, label: impl Into<String>) -> Self {
            self.$($at).+.holder = Some(label.into());
            self
        }

        /// A text that the store keeps beside the held lock, up to 4 KiB.
        pub fn meta(mut self, text: impl Into<String>) -> Self {
            self.$($at).+.meta = Some(text.into());
            self
        }

        /// Sets how the lease is renewed: in the background ([`Renew::Auto`], the default), or only
        /// by [`Guard::extend`] ([`Renew::Manual`]).
        pub fn renew(mut self, renew: Renew) -> Self {
            self.$($at).+.renew = renew;
            self
        }

        /// Makes the lock re-entrant within a scope: all tasks that use the scope count as one
        /// holder.
        pub fn reentrant(mut self, scope: &Scope) -> Self {
            self.$($at).+.scope = Some(scope.clone());
            self
        }

        /// Processes that ask for it get the lock in the order in which they joined the store
        /// queue, one turn each: a fair task gets no lock directly from a task of its own process,
        /// and a fair guard gives none, so the other processes that wait come first. A fair attempt
        /// that does not wait is refused while others wait. Callers that do not ask for it may pass
        /// those that do.
        ///
        /// Each release of a contended lock takes a few requests more than without it. A store
        /// without a queue refuses the option with [`ErrorKind::Unsupported`] (see
        /// [`Capabilities::fairness`](crate::Capabilities::fairness)).
        pub fn fair(mut self) -> Self {
            self.$($at).+.fair = true;
            self
        }

        /// Keeps the lock held at least this long, also when it is released sooner. So another host
        /// whose clock is a little behind does not run a short scheduled job a second time.
        ///
        /// The release itself returns at once, and the store keeps the lock. A lock that ends with
        /// the session of its process (ZooKeeper) is kept by this process instead: it renews the
        /// lock until the end of the hold and then frees it, and
        /// [`Locker::close`](crate::Locker::close) waits for that.
        /// If the process is killed before, the lock ends with its session: within the session
        /// timeout, and so perhaps before the end of the hold.
        pub fn min_hold(mut self, time: Duration) -> Self {
            self.$($at).+.min_hold = time;
            self
        }
    };
}
#[cfg(feature = "blocking")]
pub(crate) use options;

impl LockBuilder {
    pub(crate) fn new(parts: Arc<LockerParts>, name: Result<LockName>) -> Self {
        Self {
            parts,
            name,
            options: LockOptions::default(),
        }
    }

    options!(options);

    /// Takes the lock, and waits until the lock is free or the wait ends. While the store is
    /// unreachable, `acquire` tries again until the wait ends, and logs the reason once. With
    /// [`give_up_when_unreachable`], `acquire` fails instead.
    ///
    /// [`give_up_when_unreachable`]: LockBuilder::give_up_when_unreachable
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when the lock was not free in time; the error names the holder.
    /// [`ErrorKind::Unavailable`] when the store was unreachable at the end of the wait.
    /// [`ErrorKind::InvalidName`] and [`ErrorKind::InvalidArgument`] before any I/O. A permanent
    /// failure, such as [`ErrorKind::AccessDenied`], ends the wait at once. Every error comes at
    /// most 5 s after the end of the wait.
    ///
    /// # Cancel safety
    /// Safe: a drop of the future leaves the queue. A lock that was granted to the dropped future
    /// is released in the background.
    pub async fn acquire(self) -> Result<Guard> {
        let wanted = self.options.wanted(&self.parts, self.name?)?;
        let (lock, backend) = (&wanted.request.name, self.parts.backend_name());
        let (token, outcome) = (Empty, Empty);
        let span = debug_span!("distlock.acquire", ?lock, backend, token, outcome);
        let taken = take(&self.parts, &self.options, wanted)
            .instrument(span.clone())
            .await;
        match &taken {
            Ok(guard) => {
                span.record("token", guard.token().get());
                span.record("outcome", "acquired");
            }
            Err(error) if error.kind() == ErrorKind::Timeout => {
                span.record("outcome", "timeout");
            }
            Err(error) => {
                span.record("outcome", field::display(error));
            }
        }
        taken
    }

    /// Makes one attempt, without waiting.
    ///
    /// On a store that waiters poll, and on SQLite, the attempt gives way to other processes. After
    /// several grants in a row ([`hand_over_limit`](crate::LockerBuilder::hand_over_limit)), or 30
    /// ms of them, during which the store knew of waiters, the answer is [`Attempt::Busy`] until
    /// 0.1 s after the last release, without a request to the store. An `acquire` with a wait of
    /// zero does the same.
    ///
    /// # Errors
    /// As [`LockBuilder::acquire`], without `Timeout`: a busy lock is the answer [`Attempt::Busy`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn try_acquire(self) -> Result<Attempt<Guard>> {
        let Self {
            parts,
            name,
            mut options,
        } = self;
        options.wait = Some(Duration::ZERO);
        let wanted = options.wanted(&parts, name?)?;
        if let Some(scope) = options.scope.clone() {
            return scope.try_enter(&parts, wanted, options.min_hold).await;
        }
        let attempt = acquire::try_acquire(&parts, wanted).await?;
        Ok(attempt.map(|lease_state| Guard::new(&parts, lease_state, options.min_hold)))
    }

    /// Takes the lock, runs `work` under it, and releases it. When the lock is lost, the future of
    /// `work` is dropped at its next await.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> distlock::Result<()> {
    /// # let locker = distlock::connect("memory:").await?;
    /// let work = async |held: distlock::LockWatch| {
    ///     assert!(held.is_valid()); // show `held.fence()` to what the lock protects
    ///     "done"
    /// };
    /// assert_eq!(locker.lock("order:3").run(work).await?, "done");
    /// assert!(locker.inspect("order:3").await?.held.is_none()); // released
    /// # locker.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`LockBuilder::acquire`], and [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    /// Safe: a drop of the future drops `work` and releases in the background.
    pub async fn run<T, F>(self, work: impl FnOnce(LockWatch) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        let guard = self.acquire().await?;
        let done = tokio::select! {
            biased;
            reason = guard.lost() => Err(guard.lost_error(reason)),
            value = work(guard.watch()) => Ok(value),
        };
        let value = done.and_then(|value| guard.check().map(|()| value));
        // The result of the release is ignored: it concerns the time after the work, and the
        // release itself logs and counts a failure.
        let _ = guard.release().await;
        value
    }
}

impl LockAllBuilder {
    pub(crate) fn new(parts: Arc<LockerParts>, names: Result<Vec<LockName>>) -> Self {
        Self {
            parts,
            names,
            options: LockOptions::default(),
        }
    }

    options!(options);

    /// Takes all locks within one wait, in the byte order of their names, so that two callers never
    /// wait for each other.
    ///
    /// # Errors
    /// As [`LockBuilder::acquire`], for the first name that failed. The locks that were taken
    /// before are released, in the background if the store does not answer in time. Also
    /// [`ErrorKind::Timeout`] when the store is so slow that 5 s after the end of the wait a lock
    /// has not been requested yet.
    ///
    /// # Cancel safety
    /// Safe: a drop of the future releases the locks that were taken, in the background.
    pub async fn acquire(self) -> Result<GuardSet> {
        guard_set::acquire(&self.parts, self.names?, &self.options).await
    }
}

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
    pub(crate) fair: bool,
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
            fair: false,
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
        if self.fair && capabilities.fairness == Fairness::None {
            let problem = "this store keeps no order among waiting processes";
            return Err(Error::new(ErrorKind::Unsupported, problem).on(capabilities.backend));
        }
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
        request.in_order = self.fair;
        let meters = parts.meters.of(&request.name);
        Ok(WantedLock {
            request,
            wait: Wait::start(self.wait, parts.timing.now()),
            renew: self.renew,
            gives_up: self.gives_up,
            meters,
        })
    }
}
