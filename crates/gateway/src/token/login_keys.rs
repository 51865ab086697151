//! All keys that check login tokens: the node's own secret, and public keys of others.
//!
//! Invariant of this module: the secret checks HS256 and nothing else, and a public key checks the
//! one algorithm of its own and never HS256. This module must never wait.

use std::{sync::Arc, time::Duration};

use distlock_core::{Clock, Error, Result, SystemClock};
use distlock_kickout::{Class, Uid};
use distlock_listen::{
    FileContent, FileFormat,
    jwt::{HS256, SignedToken, TokenProblem, refused_error, unix_seconds},
};

use super::{
    TokenKey,
    key_set::KeyChoice,
    key_url::KeyUrl,
    login::Claims,
    public_key::{PublicKey, parse_pem},
};
use crate::{
    config::{ExpectedClaims, LoginKeySettings, LoginKeySource},
    metering,
    services::WebDocument,
};

/// A key that is used for tokens is published before, so a document that was read this long after
/// the issue of a token names its key, or the key was withdrawn.
const PUBLISHED: Duration = Duration::from_secs(600);

const KEY_UNKNOWN: TokenProblem = "its key is not known here";

/// The keys for login tokens.
#[derive(Debug)]
pub(crate) struct LoginKeys {
    secret: TokenKey,
    public: Option<PublicKeys>,
}

#[derive(Debug)]
struct PublicKeys {
    source: Source,
    expected: ExpectedClaims,
}

#[derive(Debug)]
enum Source {
    File(FileContent<Vec<PublicKey>>),
    Url(Box<KeyUrl>),
}

/// Why a login token is not accepted.
#[derive(Debug)]
pub(crate) enum LoginRefusal {
    /// The token will never be accepted.
    Refused(Error),
    /// The token names a key that may be known after this time.
    KeyUnknown {
        /// The time until the client should try again.
        retry_after: Duration,
    },
}

impl LoginKeys {
    /// The node's own secret alone.
    #[cfg(test)]
    pub(crate) const fn of_secret(secret: TokenKey) -> Self {
        let public = None;
        Self { secret, public }
    }

    /// Reads the public keys that the configuration names.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a file that cannot
    /// be used. A URL that cannot be read is no error.
    pub(crate) async fn open(
        secret: TokenKey,
        settings: Option<LoginKeySettings>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let Some(LoginKeySettings { source, expected }) = settings else {
            let public = None;
            return Ok(Self { secret, public });
        };
        let source = match source {
            LoginKeySource::File(file) => {
                let format = FileFormat {
                    settings_of: "gateway.",
                    doing: "read login keys",
                    parse: Box::new(parse_pem),
                };
                let file = FileContent::read(file, format).await;
                metering::count_login_key_read(file.is_ok());
                let file = file?;
                metering::set_login_keys(file.current().len(), clock.wall());
                Source::File(file)
            }
            LoginKeySource::Url(url) => {
                let document = WebDocument::new("login keys", url, Arc::clone(clock))?;
                Source::Url(Box::new(KeyUrl::open(document, Arc::clone(clock)).await))
            }
        };
        let public = Some(PublicKeys { source, expected });
        Ok(Self { secret, public })
    }

    /// Whether there is a file or a URL to read again.
    pub(crate) const fn can_reload(&self) -> bool {
        self.public.is_some()
    }

    /// Reads the file or the URL again. If that fails, the known keys stay.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open), and for a URL that cannot be read as well.
    pub(crate) async fn reload(&self) -> Result<()> {
        match self.public.as_ref().map(|public| &public.source) {
            None => Ok(()),
            Some(Source::Url(url)) => url.reload().await,
            Some(Source::File(file)) => {
                let read = file.reload().await;
                metering::count_login_key_read(read.is_ok());
                read?;
                metering::set_login_keys(file.current().len(), SystemClock.wall());
                Ok(())
            }
        }
    }

    /// Reads the URL again when tokens name other keys; without a URL this call never ends.
    pub(crate) async fn follow_tokens(&self) {
        match self.public.as_ref().map(|public| &public.source) {
            Some(Source::Url(url)) => url.follow_tokens().await,
            _ => std::future::pending().await,
        }
    }

    /// Checks a login token. Returns its account, and the class of the device if the token names
    /// it.
    pub(crate) fn verify(&self, token: &str) -> Result<(Uid, Option<Class>), LoginRefusal> {
        let problem = |why| LoginRefusal::Refused(refused_error(why));
        let public = match &self.public {
            // The header's word only chooses between keys that take no other algorithm.
            Some(public) if SignedToken::parse(token).map_err(problem)?.alg() != HS256 => public,
            _ => {
                return self
                    .secret
                    .verify_login(token)
                    .map_err(LoginRefusal::Refused);
            }
        };
        public.verify(&SignedToken::parse(token).map_err(problem)?)
    }
}

impl PublicKeys {
    fn verify(&self, token: &SignedToken<'_>) -> Result<(Uid, Option<Class>), LoginRefusal> {
        let problem = |why| LoginRefusal::Refused(refused_error(why));
        let claims: Claims = match &self.source {
            Source::File(file) => {
                let keys = file.current();
                let by_file = claims_by(token, &keys.iter().collect::<Vec<_>>());
                by_file.map_err(problem)?
            }
            Source::Url(url) => {
                let (keys, read_at) = url.known();
                match keys.choose(token.kid()) {
                    KeyChoice::Known(key) => claims_by(token, &[key]).map_err(problem)?,
                    KeyChoice::Unnamed => {
                        return Err(problem("it names none of several keys (kid)"));
                    }
                    KeyChoice::Unknown => {
                        // Nobody has proved these claims, so they only serve to refuse the token
                        // for good, without a read of the URL.
                        let claims: Claims = token.unproven_claims().map_err(problem)?;
                        let issued = claims.issued();
                        let withdrawn = read_at.is_some_and(|read| {
                            unix_seconds(read) > issued.saturating_add(PUBLISHED.as_secs())
                        });
                        if withdrawn || claims.check(&self.expected).is_err() {
                            return Err(problem(KEY_UNKNOWN));
                        }
                        metering::count_unknown_login_key();
                        let retry_after = url.want();
                        return Err(LoginRefusal::KeyUnknown { retry_after });
                    }
                }
            }
        };
        claims.check(&self.expected).map_err(LoginRefusal::Refused)
    }
}

/// The claims of a token that one of these keys has signed.
fn claims_by(token: &SignedToken<'_>, keys: &[&PublicKey]) -> Result<Claims, TokenProblem> {
    let alg = token.alg();
    if !keys.iter().any(|key| key.is_for(alg)) {
        return Err("its algorithm is not that of its key");
    }
    token.claims_if(|signed, signature| {
        let mut keys = keys.iter();
        keys.any(|key| key.has_signed(alg, signed, signature))
    })
}
