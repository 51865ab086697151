//! The server of one run: a given one, or a private one that ends with the run.

use std::{any::Any, fmt, net::SocketAddr, time::Duration};

use crate::link::Link;

/// A server, and the way there.
pub(crate) struct Target {
    url: String,
    _link: Option<Link>,
    _server: Option<Box<dyn Any>>,
}

impl Target {
    /// A server that somebody else runs.
    pub(crate) fn given(url: String) -> Self {
        Self {
            url,
            _link: None,
            _server: None,
        }
    }

    /// A private server, whose URL holds its address. `delay` is added each way.
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
        // The URL may hold a password, so it is not shown.
        f.debug_struct("Target").finish_non_exhaustive()
    }
}
