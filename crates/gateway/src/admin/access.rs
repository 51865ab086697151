//! Access to the admin HTTP and its page: by the token of an administrator, or by a pass that a
//! browser got for that token.
//!
//! A pass has two halves. The cookie opens the page. A browser sends the cookie to every port of
//! the host, so the cookie must open nothing else, and end nothing. The page's script keeps the
//! other half and sends that half in a header. Both halves together stand for the token, with its
//! name and its right. A node keeps the passes in memory, so a pass ends with `Sign out`, at its
//! expiry, with its token, and with the node. A pass must never be valid after any of these. This
//! module must never show a token or a pass in a log.

use std::{collections::VecDeque, net::IpAddr, sync::Arc, time::Duration};

use axum::http::{HeaderMap, HeaderValue, header};
use distlock_core::{Clock, Moment, sync::Mutex};
use distlock_kickout::NodeId;

use super::tokens::{AdminTokens, Administrator};
use crate::{
    bearer::{WrongToken, shown_token},
    config::Secret,
};

/// Decides which requests may give orders, and which may see the page.
#[derive(Clone)]
pub(crate) struct AdminAccess {
    tokens: Arc<AdminTokens>,
    wrong: WrongToken,
    passes: Passes,
    /// Whether the admin HTTP uses TLS.
    secure: bool,
}

impl AdminAccess {
    pub(crate) fn new(
        node: &NodeId,
        tokens: Arc<AdminTokens>,
        clock: Arc<dyn Clock>,
        secure: bool,
    ) -> Self {
        Self {
            tokens,
            wrong: WrongToken::new("admin", Arc::clone(&clock)),
            passes: Passes::new(node, clock),
            secure,
        }
    }

    /// Who sends a request that may give orders: it shows a token, or both halves of a pass.
    pub(crate) async fn identify(
        &self,
        headers: &HeaderMap,
        from: IpAddr,
    ) -> Option<Administrator> {
        self.identify_by(self.passes.shown(headers), headers, from)
            .await
    }

    /// Who sends a request that may see the page: it shows a token, or the cookie of a pass.
    pub(crate) async fn identify_viewer(
        &self,
        headers: &HeaderMap,
        from: IpAddr,
    ) -> Option<Administrator> {
        self.identify_by(self.passes.shown_by_cookie(headers), headers, from)
            .await
    }

    /// Whether a request that was let in would be let in now. If not, its token was withdrawn, or
    /// its pass has ended. Its sender did nothing wrong, so nothing is counted, logged or delayed.
    pub(crate) fn still_admits(&self, headers: &HeaderMap) -> bool {
        self.find(self.passes.shown(headers), headers).is_some()
    }

    async fn identify_by(
        &self,
        of_pass: Option<Secret>,
        headers: &HeaderMap,
        from: IpAddr,
    ) -> Option<Administrator> {
        let administrator = self.find(of_pass, headers);
        if administrator.is_none() && shown_token(headers).is_some() {
            self.wrong.punish(from).await;
        }
        administrator
    }

    /// Who has the token of a pass, or the token that the headers show. The token of a pass is
    /// looked up each time, because its right may have changed, or it may be withdrawn.
    fn find(&self, of_pass: Option<Secret>, headers: &HeaderMap) -> Option<Administrator> {
        let by_pass = of_pass.and_then(|token| self.tokens.identify(token.expose()));
        by_pass.or_else(|| self.tokens.identify(shown_token(headers)?))
    }

    /// Makes a pass for a browser that shows a token. Returns the `Set-Cookie` header, and the half
    /// for the page's script; `None` for a wrong token.
    pub(crate) async fn sign_in(&self, token: &str, from: IpAddr) -> Option<(HeaderValue, Secret)> {
        if self.tokens.identify(token).is_none() {
            self.wrong.punish(from).await;
            return None;
        }
        let (cookie, script_half) = self.passes.make(Secret::new(token));
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
/// Most passes of one token. A further pass replaces the token's oldest pass, so no holder of a
/// token can end the passes of another token. Only a holder of a token can make passes.
const MAX_PASSES: usize = 128;

/// One pass.
struct Pass {
    cookie: Secret,
    script_half: Secret,
    /// The token that the pass stands for.
    token: Secret,
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

    /// Makes a pass that stands for this token. Returns its cookie, and the half that the script
    /// keeps.
    pub(super) fn make(&self, token: Secret) -> (Secret, Secret) {
        let (cookie, script_half) = (Secret::random(), Secret::random());
        let pass = Pass {
            cookie: cookie.clone(),
            script_half: script_half.clone(),
            token,
            valid_until: self.clock.now() + PASS_LIFETIME,
        };
        self.with_valid(|passes| {
            let of_token = |it: &&Pass| it.token.matches(pass.token.expose());
            if passes.iter().filter(of_token).count() >= MAX_PASSES {
                let oldest = passes.iter().position(|it| of_token(&it));
                oldest.map(|at| passes.remove(at));
            }
            passes.push_back(pass);
        });
        (cookie, script_half)
    }

    /// The token of the valid pass whose cookie a request shows.
    pub(super) fn shown_by_cookie(&self, headers: &HeaderMap) -> Option<Secret> {
        let cookie = self.read_cookie(headers)?;
        self.with_valid(|passes| {
            let shown = passes.iter().find(|it| it.cookie.matches(cookie))?;
            Some(shown.token.clone())
        })
    }

    /// The token of the valid pass whose two halves a request shows.
    pub(super) fn shown(&self, headers: &HeaderMap) -> Option<Secret> {
        self.with_shown(headers, |passes, at| passes[at].token.clone())
    }

    /// Ends the pass whose two halves a request shows. Returns false if the request shows none.
    pub(super) fn end(&self, headers: &HeaderMap) -> bool {
        self.with_shown(headers, |passes, at| drop(passes.remove(at)))
            .is_some()
    }

    /// Runs `work` on the valid pass whose two halves a request shows, if it shows one.
    fn with_shown<T>(
        &self,
        headers: &HeaderMap,
        work: impl FnOnce(&mut VecDeque<Pass>, usize) -> T,
    ) -> Option<T> {
        let script_half = headers
            .get(PASS_HEADER)
            .and_then(|value| value.to_str().ok());
        let (cookie, script_half) = self.read_cookie(headers).zip(script_half)?;
        let both = |it: &Pass| it.cookie.matches(cookie) && it.script_half.matches(script_half);
        self.with_valid(|passes| {
            let shown = passes.iter().position(both);
            shown.map(|at| work(passes, at))
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
    use crate::config::GatewayConfig;

    const TOKEN: &str = "open sesame";

    #[tokio::test]
    async fn a_cookie_is_hidden_from_scripts_other_sites_and_clear_text() {
        let from = IpAddr::from([127, 0, 0, 1]);
        for secure in [false, true] {
            let token = Secret::new("open sesame");
            let clock = Arc::new(ManualClock::new());
            let node = NodeId::new("n1").unwrap();
            let tokens = Arc::new(AdminTokens::of(token.clone()));
            let access = AdminAccess::new(&node, tokens, clock, secure);
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

    #[tokio::test]
    async fn each_start_without_a_configured_token_makes_a_new_one() {
        let made = async || AdminTokens::open(&GatewayConfig::default()).await.unwrap();
        let (one, other) = (made().await, made().await);
        let (one, other) = (one.own().unwrap(), other.own().unwrap());
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
        let (one, other) = (
            passes.make(Secret::new(TOKEN)),
            passes.make(Secret::new(TOKEN)),
        );
        assert!(
            passes
                .shown_by_cookie(&headers_with(&one.0, None))
                .is_some()
        );
        assert!(
            passes
                .shown_by_cookie(&headers_with(&one.1, None))
                .is_none()
        );
        let token = passes.shown(&headers_with(&one.0, Some(&one.1))).unwrap();
        assert_eq!(token.expose(), TOKEN);
        for headers in [
            headers_with(&one.0, None),
            headers_with(&one.0, Some(&other.1)),
            headers_with(&one.0, Some(&one.0)),
            headers_with(&one.1, Some(&one.1)),
        ] {
            assert!(passes.shown(&headers).is_none());
        }
    }

    #[test]
    fn a_pass_ends_at_its_expiry_and_at_sign_out() {
        let clock = ManualClock::new();
        let passes = passes(&clock);
        let (one, other) = (
            passes.make(Secret::new(TOKEN)),
            passes.make(Secret::new(TOKEN)),
        );
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
        assert!(passes.shown(&one).is_some() && passes.shown(&other).is_some());
        assert!(passes.end(&one) && !passes.end(&one));
        assert!(passes.shown_by_cookie(&one).is_none() && passes.shown(&one).is_none());
        clock.advance(PASS_LIFETIME - Duration::from_secs(1));
        assert!(passes.shown_by_cookie(&other).is_some() && passes.shown(&other).is_some());
        clock.advance(Duration::from_secs(1));
        assert!(passes.shown_by_cookie(&other).is_none() && passes.shown(&other).is_none());
    }

    #[test]
    fn beyond_the_limit_the_oldest_pass_of_the_same_token_is_dropped() {
        let passes = passes(&ManualClock::new());
        let other = passes.make(Secret::new("another token"));
        let first = passes.make(Secret::new(TOKEN));
        for _ in 1..MAX_PASSES {
            passes.make(Secret::new(TOKEN));
        }
        assert!(
            passes
                .shown_by_cookie(&headers_with(&first.0, None))
                .is_some()
        );
        passes.make(Secret::new(TOKEN));
        assert!(
            passes
                .shown_by_cookie(&headers_with(&first.0, None))
                .is_none()
        );
        for _ in 0..MAX_PASSES {
            passes.make(Secret::new(TOKEN));
        }
        let other = passes.shown(&headers_with(&other.0, Some(&other.1)));
        assert_eq!(other.unwrap().expose(), "another token");
        assert_eq!(passes.passes.lock().len(), MAX_PASSES + 1);
    }
}
