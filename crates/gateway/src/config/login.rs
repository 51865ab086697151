//! Settings of the public keys that check login tokens.
//!
//! This module must never allow a URL without TLS beyond this host: whoever can change the answer
//! could log in as anybody.

use std::{borrow::Cow, net::IpAddr};

use axum::http::Uri;
use distlock_core::Result;
use distlock_listen::NamedFile;

use super::{GatewayConfig, config_error, service::parse_url};

/// The claims that login tokens of one kind need.
#[derive(Debug)]
pub(crate) struct ExpectedClaims {
    pub(crate) issuer: Cow<'static, str>,
    pub(crate) audience: Cow<'static, str>,
    /// Whether each token needs an id.
    pub(crate) id: bool,
}

/// The claims of a token that is signed with `token_key`.
pub(crate) const OWN_CLAIMS: ExpectedClaims = ExpectedClaims {
    issuer: Cow::Borrowed("distlock"),
    audience: Cow::Borrowed("distlock-gateway"),
    id: true,
};

/// The keys, and the claims that their tokens need.
#[derive(Debug)]
pub(crate) struct LoginKeySettings {
    pub(crate) source: LoginKeySource,
    pub(crate) expected: ExpectedClaims,
}

/// Where the keys are.
#[derive(Debug)]
pub(crate) enum LoginKeySource {
    /// A PEM file.
    File(NamedFile),
    /// A JWK set.
    Url(Uri),
}

impl GatewayConfig {
    /// The public keys that check login tokens, if there are any.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for both a file and a URL, for a
    /// URL that cannot be used, and for claims without keys.
    pub(crate) fn login_keys(&self) -> Result<Option<LoginKeySettings>> {
        let (file_key, url_key) = ("login_key_file", "login_jwks_url");
        let source = match (&self.login_key_file, &self.login_jwks_url) {
            (Some(_), Some(_)) => {
                let problem = "is set, and login_key_file too: give one of the two";
                return Err(config_error(url_key, problem));
            }
            (Some(path), None) => LoginKeySource::File(NamedFile {
                setting: file_key,
                path: path.clone(),
            }),
            (None, Some(url)) => LoginKeySource::Url(check_url(url_key, url.expose())?),
            (None, None) => {
                for (key, claim) in [
                    ("login_issuer", &self.login_issuer),
                    ("login_audience", &self.login_audience),
                ] {
                    if claim.is_some() {
                        let problem = "is set without login_key_file and login_jwks_url: it says \
                                       what the tokens of those keys must name";
                        return Err(config_error(key, problem));
                    }
                }
                return Ok(None);
            }
        };
        let claim = |key, claim: &Option<String>, own: Cow<'static, str>| match claim {
            Some(text) if text.is_empty() => Err(config_error(key, "is empty: a text is needed")),
            Some(text) => Ok(Cow::Owned(text.clone())),
            None => Ok(own),
        };
        let ExpectedClaims {
            issuer, audience, ..
        } = OWN_CLAIMS;
        Ok(Some(LoginKeySettings {
            source,
            expected: ExpectedClaims {
                issuer: claim("login_issuer", &self.login_issuer, issuer)?,
                audience: claim("login_audience", &self.login_audience, audience)?,
                // Many identity providers leave it out, and nothing here remembers it.
                id: false,
            },
        }))
    }
}

fn check_url(key: &str, url: &str) -> Result<Uri> {
    let url = parse_url(key, url)?;
    let host = url.host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let here = host == "localhost" || bare.parse().is_ok_and(|it: IpAddr| it.is_loopback());
    if url.scheme_str() == Some("https") || here {
        return Ok(url);
    }
    let problem =
        format!("begins with \"http://{host}\": https:// is needed, except for a loopback address");
    Err(config_error(key, &problem))
}
