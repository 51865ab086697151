//! The server that everything of one run is measured against: somebody else's, or a private one that ends with the run.

use std::{any::Any, fmt, net::SocketAddr, time::Duration};

use crate::link::Link;

/// A server, and the way there.
pub(crate) struct Target {
    url: String,
    _link: Option<Link>,
    _server: Option<Box<dyn Any>>,
}

impl Target {
    /// Somebody else's.
    pub(crate) fn given(url: String) -> Self {
        Self {
            url,
            _link: None,
            _server: None,
        }
    }

    /// Our own, whose URL holds its address; `delay` = how much later everything arrives, each way.
    pub(crate) fn private(
        server: impl Any,
        address: SocketAddr,
        url: &str,
        delay: Option<Duration>,
    ) -> anyhow::Result<Self> {
        let link = delay.map(|delay| Link::start(address, delay)).transpose()?;
        let reached = link.as_ref().map_or(address, Link::address);
        Ok(Self {
            url: url.replace(&address.to_string(), &reached.to_string()),
            _link: link,
            _server: Some(Box::new(server)),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL may hold a password.
        f.debug_struct("Target").finish_non_exhaustive()
    }
}
