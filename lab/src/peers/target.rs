//! The server of one run: an existing server, or a private one that ends with the run.

use std::{any::Any, fmt, net::SocketAddr, time::Duration};

use crate::peers::link::Link;

/// A server, and the link to the server if its answers are delayed.
pub(crate) struct Target {
    url: String,
    _link: Option<Link>,
    _server: Option<Box<dyn Any>>,
}

impl Target {
    /// Returns a server that runs already and continues after the run.
    pub(crate) fn existing_server(url: String) -> Self {
        Self {
            url,
            _link: None,
            _server: None,
        }
    }

    /// Returns a private server, which ends when this value is dropped. With a `delay`, clients
    /// reach the server through a link that adds the delay to each direction. The address of the
    /// link replaces the address in `url`.
    pub(crate) fn private_server(
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

    /// Returns the URL at which every arm connects.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may contain a password, so the output does not show the URL.
        f.debug_struct("Target").finish_non_exhaustive()
    }
}
