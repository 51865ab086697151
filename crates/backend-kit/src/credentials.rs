//! The credentials with which a store's client connects, and the providers that may change them.
//!
//! This module owns the question to the provider at each attempt to connect, its time limit, and
//! the meaning of a refusal while credentials change. Invariant: every connection uses what the
//! provider gave for this attempt. Neither a password nor the text of a provider's error may be
//! shown unmasked.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Clock, Error, ErrorKind, Moment, Result, at_most, excerpt, sync::Mutex};

use crate::{Secret, mask, panics};

/// A user and a password, which a client shows to a server. `Debug` hides the password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The user. `None` in a provider's answer stands for the user in the URL.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
}

impl Credentials {
    /// A password, for the user in the URL.
    pub fn new(password: impl Into<String>) -> Self {
        Self {
            user: None,
            password: Some(Secret::new(password)),
        }
    }

    /// The credentials that a URL or an option has.
    #[must_use]
    pub const fn written(user: Option<String>, password: Option<Secret>) -> Self {
        Self { user, password }
    }

    /// Sets the user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }
}

/// The content of a store's certificate files, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Certificates {
    /// The authorities to trust.
    pub authorities: Option<Vec<u8>>,
    /// The client's certificate with its chain, and the key that belongs to it.
    pub client: Option<(Vec<u8>, Secret)>,
}

/// Gives the credentials for each new connection to a store, such as a password that is rotated or
/// a token that lives for minutes. [`Target::credentials`](crate::Target::credentials) sets it.
///
/// The provider is asked before each attempt to connect, and an open connection goes on with the
/// credentials that it began with. One provider serves all connections of a store, and may be asked
/// several times at once. So a provider whose source is slow keeps its answer for a while.
///
/// An async closure is a provider:
///
/// ```
/// use distlock::{Target, config::Credentials};
///
/// # async fn token() -> distlock::Result<String> { Ok("secret".into()) }
/// let target = Target::new("postgres://app@db.example/app")
///     .credentials(|| async { Ok(Credentials::new(token().await?)) });
/// # assert!(!format!("{target:?}").contains("secret"));
/// ```
#[async_trait]
pub trait CredentialProvider: Send + Sync + 'static {
    /// The credentials for the next connection. The store counts as unavailable while this method
    /// fails or takes longer than the store's `connect_timeout`.
    ///
    /// This method runs on the thread that connects, which may be the thread that renews leases. So
    /// it must not block that thread.
    ///
    /// # Errors
    /// Any reason why there are no credentials now. The text is shown with its passwords masked as
    /// in a URL, and should hold no other secret.
    ///
    /// # Cancel safety
    /// The future is dropped when the attempt to connect ends first.
    async fn credentials(&self) -> Result<Credentials>;

    /// The credentials for Redis' sentinels; `None` = those in the URL.
    ///
    /// # Errors
    /// As [`CredentialProvider::credentials`].
    ///
    /// # Cancel safety
    /// As [`CredentialProvider::credentials`].
    async fn sentinel_credentials(&self) -> Result<Option<Credentials>> {
        Ok(None)
    }
}

#[async_trait]
impl<F, A> CredentialProvider for F
where
    F: Fn() -> A + Send + Sync + 'static,
    A: Future<Output = Result<Credentials>> + Send + 'static,
{
    async fn credentials(&self) -> Result<Credentials> {
        self().await
    }
}

/// A provider in the options of a store. Two values are equal if they are the same provider.
#[derive(Clone)]
pub struct SharedProvider(Arc<dyn CredentialProvider>);

impl SharedProvider {
    /// Shares a provider.
    pub fn new(provider: impl CredentialProvider) -> Self {
        Self(Arc::new(provider))
    }
}

impl PartialEq for SharedProvider {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedProvider {}

impl fmt::Debug for SharedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialProvider")
    }
}

/// How long a store that accepted this client counts as unavailable, and not as refusing it, while
/// it refuses every attempt. A rotation has a moment in which the server has the new password and
/// the file still has the old one. A Kubernetes node brings a changed secret into a container
/// within about 90 s.
const ROTATION: Duration = Duration::from_secs(120);

/// The credentials of one store, for all its handles.
pub struct CredentialSource {
    written: Credentials,
    provider: Option<SharedProvider>,
    /// Whether the next attempt may use other credentials or certificates than the last one.
    may_change: bool,
    sentinels: bool,
    clock: Arc<dyn Clock>,
    limit: Duration,
    // A blocking mutex: it is held only to read and write the two values.
    acceptance: Mutex<Acceptance>,
}

/// The servers' answers to this client.
#[derive(Clone, Copy, Debug, Default)]
struct Acceptance {
    accepted: bool,
    /// The first refusal of the present rotation, and the last one.
    refused: Option<(Moment, Moment)>,
}

impl CredentialSource {
    /// The source of a store whose URL has the `written` credentials. Asking the provider is
    /// limited to `limit`.
    #[must_use]
    pub fn new(
        written: Credentials,
        provider: Option<SharedProvider>,
        clock: Arc<dyn Clock>,
        limit: Duration,
    ) -> Self {
        Self {
            written,
            may_change: provider.is_some(),
            provider,
            sentinels: false,
            clock,
            limit,
            acceptance: Mutex::default(),
        }
    }

    /// The same source for Redis' sentinels.
    #[must_use]
    pub const fn for_sentinels(mut self) -> Self {
        self.sentinels = true;
        self
    }

    /// Whether the credentials are those of the URL, which never change.
    #[must_use]
    pub const fn is_fixed(&self) -> bool {
        self.provider.is_none()
    }

    /// Notes that the client also shows certificates, which are read again for each connection.
    #[must_use]
    pub const fn with_certificates(mut self, certificates: bool) -> Self {
        self.may_change |= certificates;
        self
    }

    /// Asks the provider, and makes one attempt to connect with the answer.
    ///
    /// # Errors
    /// The error of the attempt. A store that accepted this client before and refuses it now counts
    /// as [`ErrorKind::Unavailable`] for two minutes if the next attempt may use other credentials.
    /// [`ErrorKind::Unavailable`] with the masked reason when the provider gives none.
    pub async fn connect<T, F>(&self, attempt: impl FnOnce(Credentials) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let credentials = self.current().await?;
        let outcome = attempt(credentials).await;
        self.judge(outcome)
    }

    /// The credentials for a connection that is made now.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with the masked reason when the provider gives none.
    pub async fn current(&self) -> Result<Credentials> {
        let Some(SharedProvider(provider)) = &self.provider else {
            return Ok(self.written.clone());
        };
        let asking = async {
            if self.sentinels {
                provider.sentinel_credentials().await
            } else {
                provider.credentials().await.map(Some)
            }
        };
        match at_most(&*self.clock, self.limit, panics::catching(asking)).await {
            None => Err(not_given(format!("no answer within {:?}", self.limit))),
            Some(Ok(Ok(Some(mut given)))) => {
                if given.user.is_none() {
                    given.user.clone_from(&self.written.user);
                }
                Ok(given)
            }
            Some(Ok(Ok(None))) => Ok(self.written.clone()),
            Some(Ok(Err(error))) => Err(not_given(error)),
            Some(Err(_)) => Err(not_given("it panicked")),
        }
    }

    /// Notes the outcome of an attempt, and says a refusal during a rotation in the right kind.
    fn judge<T>(&self, outcome: Result<T>) -> Result<T> {
        let mut acceptance = self.acceptance.lock();
        let refused = match outcome {
            Ok(connected) => {
                *acceptance = Acceptance {
                    accepted: true,
                    refused: None,
                };
                return Ok(connected);
            }
            Err(error) if error.kind() == ErrorKind::AccessDenied => error,
            failed => return failed,
        };
        if !(self.may_change && acceptance.accepted) {
            return Err(refused);
        }
        let now = self.clock.now();
        // After a long time without a refusal another rotation begins. Open connections need no
        // acceptance, so the first rotation may have ended without one.
        let (since, _) = acceptance
            .refused
            .filter(|(_, last)| now.since(*last) < ROTATION)
            .unwrap_or((now, now));
        acceptance.refused = Some((since, now));
        if now.since(since) >= ROTATION {
            return Err(refused);
        }
        // `AccessDenied` would end every wait at once, although the file or the provider may have
        // the new secret a moment later.
        let says = "the store refuses the credentials that it accepted before; they are read \
                    again at each attempt";
        Err(Error::new(ErrorKind::Unavailable, says).caused_by(refused))
    }
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialSource")
            .field("written", &self.written)
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}

fn not_given(reason: impl fmt::Display) -> Error {
    // A cut inside of a password would leave its first part without the `@` that `mask` looks for.
    let reason = excerpt(&mask(&reason.to_string()));
    Error::new(
        ErrorKind::Unavailable,
        format!("the provider gave no credentials: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use distlock_core::ManualClock;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn source(provider: Option<SharedProvider>, clock: &ManualClock) -> CredentialSource {
        let written = Credentials::new("in the URL").user("bob");
        CredentialSource::new(written, provider, Arc::new(clock.clone()), LIMIT)
    }

    /// Gives `secret-1`, then `secret-2`, and so on.
    fn rising() -> SharedProvider {
        let number = AtomicU32::new(0);
        SharedProvider::new(move || {
            let number = number.fetch_add(1, SeqCst) + 1;
            async move { Ok(Credentials::new(format!("secret-{number}"))) }
        })
    }

    fn refused() -> Result<()> {
        Err(Error::new(ErrorKind::AccessDenied, "wrong password"))
    }

    #[tokio::test]
    async fn the_provider_is_asked_for_each_attempt_and_the_url_names_the_user() {
        let clock = ManualClock::new();
        let source = source(Some(rising()), &clock);
        for number in 1..4 {
            let used = source.connect(|used| async { Ok(used) }).await.unwrap();
            let expected = Credentials::new(format!("secret-{number}")).user("bob");
            assert_eq!(used, expected);
            assert!(!format!("{used:?} {source:?}").contains("secret"));
        }
        let sentinels = self::source(Some(rising()), &clock).for_sentinels();
        let used = sentinels.current().await.unwrap();
        assert_eq!(used, Credentials::new("in the URL").user("bob"));
    }

    #[tokio::test]
    async fn a_refusal_after_an_acceptance_is_waited_for_while_the_secret_may_change() {
        for (may_change, accepted) in [(true, true), (true, false), (false, true)] {
            let clock = ManualClock::new();
            let source = source(may_change.then(rising), &clock);
            if accepted {
                source.connect(|_| async { Ok(()) }).await.unwrap();
            }
            let kind = async || {
                let outcome = source.connect(|_| async { refused() }).await;
                outcome.unwrap_err().kind()
            };
            let at_first = match (may_change, accepted) {
                (true, true) => ErrorKind::Unavailable,
                _ => ErrorKind::AccessDenied,
            };
            assert_eq!(kind().await, at_first);
            clock.advance(ROTATION - Duration::from_secs(1));
            assert_eq!(kind().await, at_first);
            clock.advance(Duration::from_secs(1));
            assert_eq!(kind().await, ErrorKind::AccessDenied);
            // An acceptance ends the rotation, and the next one has its own two minutes.
            source.connect(|_| async { Ok(()) }).await.unwrap();
            let later = if may_change {
                ErrorKind::Unavailable
            } else {
                ErrorKind::AccessDenied
            };
            assert_eq!(kind().await, later);
        }
    }

    /// Open connections need no acceptance, so the first rotation may end without one.
    #[tokio::test]
    async fn a_later_rotation_has_its_own_time() {
        let clock = ManualClock::new();
        let source = source(Some(rising()), &clock);
        source.connect(|_| async { Ok(()) }).await.unwrap();
        for _ in 0..2 {
            let refusal = source.connect(|_| async { refused() }).await.unwrap_err();
            assert_eq!(refusal.kind(), ErrorKind::Unavailable);
            clock.advance(Duration::from_secs(5 * 3600));
        }
    }

    #[test]
    fn a_long_reason_of_a_provider_shows_no_part_of_a_password() {
        let path = "x".repeat(140);
        let reason = format!("GET https://vault/{path} failed, and postgres://bob:hunter2@db too");
        let said = not_given(reason).to_string();
        assert!(!said.contains("hunt"), "{said}");
    }

    #[tokio::test]
    async fn a_provider_that_fails_is_told_as_an_unavailable_store_with_a_masked_reason() {
        let failing = SharedProvider::new(|| async {
            let says = "GET http://bob:hunter2@vault/app?token=hunter3 failed";
            Err(Error::new(ErrorKind::Internal, says))
        });
        let panicking = SharedProvider::new(|| async { panic!("as if there were a bug") });
        for (provider, says) in [
            (failing, "http://bob:***@vault/app?token=***"),
            (panicking, "it panicked"),
        ] {
            let source = source(Some(provider), &ManualClock::new());
            let error = source.connect(|_| async { Ok(()) }).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let said = error.to_string();
            assert!(said.contains(says), "{said}");
            assert!(!said.contains("hunter"), "{said}");
        }
    }

    #[tokio::test]
    async fn a_provider_that_hangs_is_given_up_at_the_limit() {
        let clock = ManualClock::new();
        let hanging = SharedProvider::new(std::future::pending::<Result<Credentials>>);
        let source = Arc::new(source(Some(hanging), &clock));
        let asking = tokio::spawn({
            let source = Arc::clone(&source);
            async move { source.current().await }
        });
        while !asking.is_finished() {
            clock.advance(LIMIT);
            tokio::task::yield_now().await;
        }
        let error = asking.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("within 5s"), "{error}");
    }
}
