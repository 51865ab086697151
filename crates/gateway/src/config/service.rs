//! Settings of a web service that a node calls.
//!
//! This module must never show the path or the token of the service in an error, because each may
//! contain a key.

use std::time::Duration;

use axum::http::{HeaderValue, Uri};
use distlock_core::Result;

use super::{Secret, config_error};

/// The settings of one service: its URL and its token, each with the key that sets it.
pub(crate) struct ServiceSettings<'a> {
    pub(crate) url: (&'static str, Option<&'a Secret>),
    pub(crate) token: (&'static str, Option<&'a Secret>),
    pub(crate) timeout: Duration,
}

impl ServiceSettings<'_> {
    /// The address of the service, and the header that authorises the node; `None` if no service is
    /// configured.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for an address or a
    /// token that cannot be used.
    pub(crate) fn parse(&self) -> Result<Option<(Uri, Option<HeaderValue>)>> {
        let (key, token) = self.token;
        let bearer = token
            .map(|token| bearer_header(key, token.expose()))
            .transpose()?;
        let (key, url) = self.url;
        let url = url.map(|url| parse_url(key, url.expose())).transpose()?;
        Ok(url.map(|url| (url, bearer)))
    }
}

/// Reads the URL of a service.
pub(super) fn parse_url(key: &str, url: &str) -> Result<Uri> {
    if url.contains('@') {
        // The URL may contain a password, so the error does not show it.
        return Err(config_error(
            key,
            "has a user or password in it: give the service's secret as its bearer token",
        ));
    }
    let parsed = url.parse::<Uri>().unwrap_or_default();
    // The error shows only the beginning of the URL, because the path may contain a key.
    let problem = match (parsed.scheme_str(), parsed.authority()) {
        (Some("http" | "https"), Some(_)) => return Ok(parsed),
        (Some(scheme), Some(at)) => format!("begins with \"{scheme}://{at}\""),
        _ => "has no host".into(),
    };
    Err(config_error(
        key,
        &format!("{problem}: http(s)://HOST:PORT/PATH is needed"),
    ))
}

/// The `Authorization` header with this token.
fn bearer_header(key: &str, token: &str) -> Result<HeaderValue> {
    let header = (!token.is_empty())
        .then(|| HeaderValue::try_from(format!("Bearer {token}")).ok())
        .flatten();
    let mut header = header.ok_or_else(|| {
        config_error(
            key,
            "cannot be sent in a header: one line of visible characters is needed",
        )
    })?;
    header.set_sensitive(true);
    Ok(header)
}
