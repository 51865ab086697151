//! The passes of browsers that are signed in to this node's page.
//!
//! A pass has two halves. The cookie opens the page. A browser sends the cookie to every port of
//! the host, so the cookie must open nothing else. The page's script keeps the other half and sends
//! that half in a header. Both halves together permit the same as the admin token. A node keeps the
//! passes in memory, so a pass ends with `Sign out`, at its expiry, and with the node. A pass must
//! never be valid after any of these.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::{HeaderMap, header};
use distlock_core::{Clock, Moment};

use crate::config::Secret;

/// Time for which a pass is valid.
pub(super) const PASS_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// The name of the cookie.
pub(super) const COOKIE: &str = "distlock_admin";
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
    passes: Arc<Mutex<VecDeque<Pass>>>,
    clock: Arc<dyn Clock>,
}

impl Passes {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            passes: Arc::default(),
            clock,
        }
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
        let Some(cookie) = read_cookie(headers) else {
            return false;
        };
        self.with_valid(|passes| passes.iter().any(|it| it.cookie.matches(cookie)))
    }

    /// Whether a request shows both halves of a valid pass.
    pub(super) fn may_give_orders(&self, headers: &HeaderMap) -> bool {
        let script_half = headers
            .get(PASS_HEADER)
            .and_then(|value| value.to_str().ok());
        let Some((cookie, script_half)) = read_cookie(headers).zip(script_half) else {
            return false;
        };
        self.with_valid(|passes| {
            let both = |it: &Pass| it.cookie.matches(cookie) && it.script_half.matches(script_half);
            passes.iter().any(both)
        })
    }

    /// Ends the pass that a request shows.
    pub(super) fn end(&self, headers: &HeaderMap) {
        if let Some(cookie) = read_cookie(headers) {
            self.with_valid(|passes| passes.retain(|it| !it.cookie.matches(cookie)));
        }
    }

    /// Drops the passes that have expired, and runs `work` on the remaining passes.
    fn with_valid<T>(&self, work: impl FnOnce(&mut VecDeque<Pass>) -> T) -> T {
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        passes.retain(|it| now < it.valid_until);
        work(&mut passes)
    }
}

/// The cookie of a pass in the headers of a request.
fn read_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get(header::COOKIE)?.to_str().ok()?;
    let mut cookies = cookies.split("; ");
    cookies.find_map(|pair| pair.strip_prefix(COOKIE)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use distlock_core::ManualClock;

    use super::*;

    /// Headers that show these halves of a pass, beside another cookie.
    fn headers_with(cookie: &Secret, orders: Option<&Secret>) -> HeaderMap {
        let cookie = format!("a=b; {COOKIE}={}", cookie.expose());
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
        let passes = Passes::new(Arc::new(ManualClock::new()));
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
        let passes = Passes::new(Arc::new(clock.clone()));
        let (one, other) = (passes.make(), passes.make());
        let (one, other) = (
            headers_with(&one.0, Some(&one.1)),
            headers_with(&other.0, Some(&other.1)),
        );
        passes.end(&one);
        assert!(!passes.may_see_page(&one) && !passes.may_give_orders(&one));
        clock.advance(PASS_LIFETIME - Duration::from_secs(1));
        assert!(passes.may_see_page(&other) && passes.may_give_orders(&other));
        clock.advance(Duration::from_secs(1));
        assert!(!passes.may_see_page(&other) && !passes.may_give_orders(&other));
    }

    #[test]
    fn the_oldest_pass_is_dropped_beyond_the_limit() {
        let passes = Passes::new(Arc::new(ManualClock::new()));
        let first = passes.make();
        for _ in 1..MAX_PASSES {
            passes.make();
        }
        assert!(passes.may_see_page(&headers_with(&first.0, None)));
        passes.make();
        assert!(!passes.may_see_page(&headers_with(&first.0, None)));
    }
}
