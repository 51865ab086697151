//! Access to the admin HTTP and its page: by the admin token, or by a pass that a browser got for
//! that token.
//!
//! A pass has two halves. The cookie opens the page. A browser sends the cookie to every port of
//! the host, so the cookie must open nothing else, and end nothing. The page's script keeps the
//! other half and sends that half in a header. Both halves together permit the same as the admin
//! token. A node keeps the passes in memory, so a pass ends with `Sign out`, at its expiry, and
//! with the node. A pass must never be valid after any of these. This module must never show the
//! token or a pass in a log.

use std::{collections::VecDeque, net::IpAddr, sync::Arc, time::Duration};

use axum::http::{HeaderMap, HeaderValue, header};
use distlock_core::{Clock, Moment, sync::Mutex};
use distlock_kickout::NodeId;

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

/// Time for which a pass is valid.
pub(super) const PASS_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// The header with the half that the script keeps.
const PASS_HEADER: &str = "x-distlock-pass";
/// Most passes that are kept. A further pass replaces the oldest pass. Only a holder of the admin
/// token can make passes.
const MAX_PASSES: usize = 1024;

/// One pass.
struct Pass {
    cookie: Secret,
    script_half: Secret,
    valid_until: Moment,
}

/// The passes of this node.
#[derive(Clone)]
pub(super) struct Passes {
    /// The name of the cookie. A browser keeps one cookie of a name for all ports of a host, so the
    /// nodes of one host have different names.
    cookie_name: Arc<str>,
    passes: Arc<Mutex<VecDeque<Pass>>>,
    clock: Arc<dyn Clock>,
}

impl Passes {
    pub(super) fn new(node: &NodeId, clock: Arc<dyn Clock>) -> Self {
        Self {
            cookie_name: format!("distlock_admin_{node}").into(),
            passes: Arc::default(),
            clock,
        }
    }

    pub(super) fn cookie_name(&self) -> &str {
        &self.cookie_name
    }

    /// Makes a pass. Returns its cookie, and the half that the script keeps.
    pub(super) fn make(&self) -> (Secret, Secret) {
        let (cookie, script_half) = (Secret::random(), Secret::random());
        let pass = Pass {
            cookie: cookie.clone(),
            script_half: script_half.clone(),
            valid_until: self.clock.now() + PASS_LIFETIME,
        };
        self.with_valid(|passes| {
            if passes.len() == MAX_PASSES {
                passes.pop_front();
            }
            passes.push_back(pass);
        });
        (cookie, script_half)
    }

    /// Whether a request shows the cookie of a valid pass.
    pub(super) fn may_see_page(&self, headers: &HeaderMap) -> bool {
        let Some(cookie) = self.read_cookie(headers) else {
            return false;
        };
        self.with_valid(|passes| passes.iter().any(|it| it.cookie.matches(cookie)))
    }

    /// Whether a request shows both halves of a valid pass.
    pub(super) fn may_give_orders(&self, headers: &HeaderMap) -> bool {
        self.with_shown(headers, |_, _| ())
    }

    /// Ends the pass whose two halves a request shows. Returns false if the request shows none.
    pub(super) fn end(&self, headers: &HeaderMap) -> bool {
        self.with_shown(headers, |passes, at| drop(passes.remove(at)))
    }

    /// Runs `work` on the valid pass whose two halves a request shows. Returns false if the request
    /// shows none.
    fn with_shown(
        &self,
        headers: &HeaderMap,
        work: impl FnOnce(&mut VecDeque<Pass>, usize),
    ) -> bool {
        let script_half = headers
            .get(PASS_HEADER)
            .and_then(|value| value.to_str().ok());
        let Some((cookie, script_half)) = self.read_cookie(headers).zip(script_half) else {
            return false;
        };
        let both = |it: &Pass| it.cookie.matches(cookie) && it.script_half.matches(script_half);
        self.with_valid(|passes| {
            let shown = passes.iter().position(both);
            shown.map(|at| work(passes, at)).is_some()
        })
    }

    /// The cookie of a pass in the headers of a request.
    fn read_cookie<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let cookies = headers.get(header::COOKIE)?.to_str().ok()?;
        let mut cookies = cookies.split("; ");
        cookies.find_map(|pair| pair.strip_prefix(self.cookie_name())?.strip_prefix('='))
    }

    /// Drops the passes that have expired, and runs `work` on the remaining passes.
    fn with_valid<T>(&self, work: impl FnOnce(&mut VecDeque<Pass>) -> T) -> T {
        let mut passes = self.passes.lock();
        let now = self.clock.now();
        passes.retain(|it| now < it.valid_until);
        work(&mut passes)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
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

    /// The passes of node `n1`.
    fn passes(clock: &ManualClock) -> Passes {
        Passes::new(&NodeId::new("n1").unwrap(), Arc::new(clock.clone()))
    }

    /// Headers that show these halves of a pass of node `n1`, beside cookies of others.
    fn headers_with(cookie: &Secret, orders: Option<&Secret>) -> HeaderMap {
        let cookie = cookie.expose();
        let cookie = format!("a=b; distlock_admin_n=x; distlock_admin_n1={cookie}");
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::try_from(cookie).unwrap());
        if let Some(orders) = orders {
            let orders = HeaderValue::try_from(orders.expose()).unwrap();
            headers.insert(HeaderName::from_static(PASS_HEADER), orders);
        }
        headers
    }

    #[test]
    fn orders_need_both_halves_of_one_pass() {
        let passes = passes(&ManualClock::new());
        let (one, other) = (passes.make(), passes.make());
        assert!(passes.may_see_page(&headers_with(&one.0, None)));
        assert!(!passes.may_see_page(&headers_with(&one.1, None)));
        assert!(passes.may_give_orders(&headers_with(&one.0, Some(&one.1))));
        for headers in [
            headers_with(&one.0, None),
            headers_with(&one.0, Some(&other.1)),
            headers_with(&one.0, Some(&one.0)),
            headers_with(&one.1, Some(&one.1)),
        ] {
            assert!(!passes.may_give_orders(&headers));
        }
    }

    #[test]
    fn a_pass_ends_at_its_expiry_and_at_sign_out() {
        let clock = ManualClock::new();
        let passes = passes(&clock);
        let (one, other) = (passes.make(), passes.make());
        // Half a pass ends nothing.
        for half in [
            headers_with(&one.0, None),
            headers_with(&one.0, Some(&other.1)),
        ] {
            assert!(!passes.end(&half));
        }
        let (one, other) = (
            headers_with(&one.0, Some(&one.1)),
            headers_with(&other.0, Some(&other.1)),
        );
        assert!(passes.may_give_orders(&one) && passes.may_give_orders(&other));
        assert!(passes.end(&one) && !passes.end(&one));
        assert!(!passes.may_see_page(&one) && !passes.may_give_orders(&one));
        clock.advance(PASS_LIFETIME - Duration::from_secs(1));
        assert!(passes.may_see_page(&other) && passes.may_give_orders(&other));
        clock.advance(Duration::from_secs(1));
        assert!(!passes.may_see_page(&other) && !passes.may_give_orders(&other));
    }

    #[test]
    fn the_oldest_pass_is_dropped_beyond_the_limit() {
        let passes = passes(&ManualClock::new());
        let first = passes.make();
        for _ in 1..MAX_PASSES {
            passes.make();
        }
        assert!(passes.may_see_page(&headers_with(&first.0, None)));
        passes.make();
        assert!(!passes.may_see_page(&headers_with(&first.0, None)));
    }
}
