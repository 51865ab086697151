//! Who may use the admin HTTP and its page: whoever shows the admin token, or for the page a pass
//! that was made from it.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use distlock_core::{Clock, unix_time};

use crate::{
    config::Secret,
    token::{derived, random},
};

/// How long a wrong token waits for its answer. Each address has so many connections at a time
/// (`Bounds`), so this bounds how often one can guess, and keeps out nobody who has the token.
const WRONG: Duration = Duration::from_secs(1);
/// How long a pass is good.
const PASS: Duration = Duration::from_secs(12 * 3600);
const COOKIE: &str = "distlock_admin";

#[derive(Clone)]
pub(crate) struct Guard {
    token: Arc<Secret>,
    clock: Arc<dyn Clock>,
    /// The admin HTTP is served by TLS.
    secure: bool,
}

impl Guard {
    /// For the token of the configuration; where there is none, with the one that it makes.
    pub(crate) fn new(
        configured: Option<Secret>,
        clock: Arc<dyn Clock>,
        secure: bool,
    ) -> (Self, Option<Secret>) {
        let (token, made) = match configured {
            Some(token) => (token, None),
            None => {
                let made = random();
                (made.clone(), Some(made))
            }
        };
        let guard = Self {
            token: Arc::new(token),
            clock,
            secure,
        };
        (guard, made)
    }

    /// Whether a request shows the token itself.
    pub(crate) async fn admits(&self, headers: &HeaderMap, from: IpAddr) -> bool {
        let bearer = text(headers, &header::AUTHORIZATION);
        match bearer.and_then(|value| value.strip_prefix("Bearer ")) {
            Some(given) => self.is_right(given, from).await,
            None => false,
        }
    }

    /// Whether a token is the right one. A wrong one is counted, logged and waited for.
    pub(crate) async fn is_right(&self, given: &str, from: IpAddr) -> bool {
        if self.token.matches(given) {
            return true;
        }
        metrics::counter!("distlock_admin_refused_total").increment(1);
        tracing::warn!(target: "distlock::audit", %from, "a wrong admin token was shown");
        self.clock.sleep(WRONG).await;
        false
    }

    /// Whether a request shows a pass that is still good. It opens the page and nothing else: a
    /// browser sends it to every port of the host.
    pub(crate) fn has_pass(&self, headers: &HeaderMap) -> bool {
        let mut cookies = text(headers, &header::COOKIE)
            .unwrap_or_default()
            .split("; ");
        let cookie = cookies.find_map(|pair| pair.strip_prefix(COOKIE)?.strip_prefix('='));
        let Some((until, _)) = cookie.and_then(|pass| pass.split_once('.')) else {
            return false;
        };
        until.parse().is_ok_and(|until: u64| {
            self.now() < until
                && self
                    .pass(until)
                    .zip(cookie)
                    .is_some_and(|(pass, shown)| pass.matches(shown))
        })
    }

    /// The cookie of a pass that is good from now on; the same on all nodes that have the same token.
    pub(crate) fn sign_in(&self) -> Option<HeaderValue> {
        let pass = self.pass(self.now() + PASS.as_secs())?;
        self.cookie(pass.expose(), PASS)
    }

    /// The cookie that takes a pass away.
    pub(crate) fn sign_out(&self) -> Option<HeaderValue> {
        self.cookie("", Duration::ZERO)
    }

    fn pass(&self, until: u64) -> Option<Secret> {
        let purpose = format!("distlock admin page until {until}");
        let mac = derived(self.token.expose(), &purpose)?;
        Some(Secret::new(format!("{until}.{mac}")))
    }

    fn cookie(&self, pass: &str, age: Duration) -> Option<HeaderValue> {
        let age = age.as_secs();
        let secure = if self.secure { "; Secure" } else { "" };
        let cookie =
            format!("{COOKIE}={pass}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
        let mut cookie = HeaderValue::try_from(cookie).ok()?;
        cookie.set_sensitive(true);
        Some(cookie)
    }

    fn now(&self) -> u64 {
        unix_time(&*self.clock).as_secs()
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;

    use super::*;

    fn shows(cookie: &HeaderValue) -> HeaderMap {
        let pair = cookie.to_str().unwrap().split(';').next().unwrap();
        let cookie = HeaderValue::try_from(format!("a=b; {pair}")).unwrap();
        HeaderMap::from_iter([(header::COOKIE, cookie)])
    }

    #[test]
    fn a_pass_ends_by_itself_and_is_nobody_elses() {
        let clock = ManualClock::new();
        let guard = |token: &str, secure| {
            let token = Some(Secret::new(token));
            Guard::new(token, Arc::new(clock.clone()), secure).0
        };
        let (n1, n2) = (
            guard("the same token", false),
            guard("the same token", true),
        );
        let cookie = n1.sign_in().unwrap();
        let shown = shows(&cookie);
        assert!(n1.has_pass(&shown) && n2.has_pass(&shown));
        assert!(!guard("another token", false).has_pass(&shown));
        let longer = cookie.to_str().unwrap().replacen("admin=", "admin=9", 1);
        assert!(!n1.has_pass(&shows(&HeaderValue::try_from(longer).unwrap())));
        clock.advance(PASS - Duration::from_secs(1));
        assert!(n1.has_pass(&shown));
        clock.advance(Duration::from_secs(1));
        assert!(!n1.has_pass(&shown));

        let text = |cookie: Option<HeaderValue>| cookie.unwrap().to_str().unwrap().to_owned();
        assert!(!text(n1.sign_in()).contains("Secure"));
        let secured = text(n2.sign_in());
        for part in [
            "; Secure",
            "; HttpOnly",
            "; SameSite=Strict",
            "; Max-Age=43200",
        ] {
            assert!(secured.contains(part), "{secured}");
        }
        assert!(text(n2.sign_out()).contains("Max-Age=0"));
        assert!(!n1.has_pass(&shows(&n1.sign_out().unwrap())));
    }

    #[test]
    fn a_token_is_made_where_none_is_set() {
        let made = || Guard::new(None, Arc::new(ManualClock::new()), false).1;
        let (one, other) = (made().unwrap(), made().unwrap());
        assert!(one.expose().len() >= 32 && !one.matches(other.expose()));
    }
}
