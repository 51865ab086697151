//! The name by which a node is asked.
//!
//! A web page may let its own name point to this machine. The browser then takes the node for the page's origin, and the page
//! may ask and read whatever needs no token.

use std::net::IpAddr;

use axum::http::{HeaderMap, header, uri::Authority};

/// What is said to whoever asks by another name.
pub(crate) const WHY: &str = "without an admin_token this is served to its IP address and to localhost alone: ask by one of these, or set a token";

/// Whether the request is for a name that could be anybody's.
pub(crate) fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        // No browser leaves it out.
        return false;
    };
    let Ok(host) = Authority::try_from(host.as_bytes()) else {
        return true;
    };
    let host = host.host().trim_matches(['[', ']']);
    !host.eq_ignore_ascii_case("localhost") && host.parse::<IpAddr>().is_err()
}
