//! The passes of browsers that are signed in to this node's page.
//!
//! A pass has two halves. The cookie opens the page. A browser sends the cookie to every port of
//! the host, so the cookie must open nothing else, and end nothing. The page's script keeps the
//! other half and sends that half in a header. Both halves together permit the same as the admin
//! token. A node keeps the passes in memory, so a pass ends with `Sign out`, at its expiry, and
//! with the node. A pass must never be valid after any of these.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::{HeaderMap, header};
use distlock_core::{Clock, Moment};
use distlock_kickout::NodeId;

use crate::config::Secret;

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
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
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
