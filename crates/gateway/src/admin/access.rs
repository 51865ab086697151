//! Access to the admin HTTP and its page: by the admin token, or by a pass that a browser got for
//! that token.
//!
//! Invariant of this module: orders need the token or both halves of a pass; the cookie alone opens
//! only the page. This module must never show the token or a pass in a log.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::http::{HeaderMap, HeaderValue};
use distlock_core::Clock;
use distlock_kickout::NodeId;

use super::pass::{PASS_LIFETIME, Passes};
use crate::{bearer::BearerToken, config::Secret};

/// Decides which requests may give orders, and which may see the page.
#[derive(Clone)]
pub(crate) struct AdminAccess {
    bearer: BearerToken,
    passes: Passes,
    /// Whether the admin HTTP uses TLS.
    secure: bool,
}

impl AdminAccess {
    /// Uses the token of the configuration. Without a configured token, makes a random token and
    /// returns it as well.
    pub(crate) fn new(
        node: &NodeId,
        configured: Option<Secret>,
        clock: Arc<dyn Clock>,
        secure: bool,
    ) -> (Self, Option<Secret>) {
        let (token, made) = match configured {
            Some(token) => (token, None),
            None => {
                let made = Secret::random();
                (made.clone(), Some(made))
            }
        };
        let access = Self {
            bearer: BearerToken::for_admin(token, Arc::clone(&clock)),
            passes: Passes::new(node, clock),
            secure,
        };
        (access, made)
    }

    /// Whether a request may give orders: the request shows the token, or both halves of a pass.
    pub(crate) async fn may_give_orders(&self, headers: &HeaderMap, from: IpAddr) -> bool {
        self.passes.may_give_orders(headers) || self.bearer.verify_request(headers, from).await
    }

    /// Whether a request may see the page: the request shows the token, or the cookie of a pass.
    pub(crate) async fn may_see_page(&self, headers: &HeaderMap, from: IpAddr) -> bool {
        self.passes.may_see_page(headers) || self.bearer.verify_request(headers, from).await
    }

    /// Makes a pass for a browser that shows the token. Returns the `Set-Cookie` header, and the
    /// half for the page's script; `None` for a wrong token.
    pub(crate) async fn sign_in(&self, token: &str, from: IpAddr) -> Option<(HeaderValue, Secret)> {
        if !self.bearer.verify(token, from).await {
            return None;
        }
        let (cookie, script_half) = self.passes.make();
        Some((
            self.cookie_header(cookie.expose(), PASS_LIFETIME)?,
            script_half,
        ))
    }

    /// Ends the pass whose two halves a request shows. Returns a `Set-Cookie` header that makes the
    /// browser delete the cookie; `None` if the request shows no pass.
    pub(crate) fn sign_out(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if !self.passes.end(headers) {
            return None;
        }
        self.cookie_header("", Duration::ZERO)
    }

    /// A `Set-Cookie` header by which the browser keeps `pass` for `age`; zero deletes the cookie.
    fn cookie_header(&self, pass: &str, age: Duration) -> Option<HeaderValue> {
        let age = age.as_secs();
        let secure = if self.secure { "; Secure" } else { "" };
        let name = self.passes.cookie_name();
        let cookie =
            format!("{name}={pass}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
        let mut cookie = HeaderValue::try_from(cookie).ok()?;
        cookie.set_sensitive(true);
        Some(cookie)
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;

    use super::*;

    #[tokio::test]
    async fn a_cookie_is_hidden_from_scripts_other_sites_and_clear_text() {
        let from = IpAddr::from([127, 0, 0, 1]);
        for secure in [false, true] {
            let token = Secret::new("open sesame");
            let clock = Arc::new(ManualClock::new());
            let node = NodeId::new("n1").unwrap();
            let (access, _) = AdminAccess::new(&node, Some(token.clone()), clock, secure);
            let (cookie, script_half) = access.sign_in(token.expose(), from).await.unwrap();
            let cookie = cookie.to_str().unwrap().to_owned();
            for part in ["; HttpOnly", "; SameSite=Strict", "; Max-Age=43200"] {
                assert!(cookie.contains(part), "{cookie}");
            }
            assert_eq!(cookie.contains("; Secure"), secure);
            assert!(access.sign_out(&HeaderMap::new()).is_none());
            let mut headers = HeaderMap::new();
            let (pair, _) = cookie.split_once(';').unwrap();
            for (name, value) in [("cookie", pair), ("x-distlock-pass", script_half.expose())] {
                headers.insert(name, value.parse().unwrap());
            }
            let forget = access.sign_out(&headers).unwrap();
            assert!(forget.to_str().unwrap().contains("=; Path=/; HttpOnly"));
            assert!(forget.to_str().unwrap().contains("Max-Age=0"));
        }
    }

    #[test]
    fn each_start_without_a_configured_token_makes_a_new_one() {
        let node = NodeId::new("n1").unwrap();
        let made = || AdminAccess::new(&node, None, Arc::new(ManualClock::new()), false).1;
        let (one, other) = (made().unwrap(), made().unwrap());
        assert!(one.expose().len() >= 32 && !one.matches(other.expose()));
    }
}
