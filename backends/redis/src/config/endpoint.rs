//! The servers' addresses, their topology, and the secrets for them.

use std::{fmt, path::PathBuf};

/// The roles of the servers, and the relation between them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// One server, which must be a primary.
    Single(Endpoint),
    /// The server that the sentinels name as the primary.
    Sentinel {
        /// Some or all of the sentinels; these sentinels report the others. A majority of all
        /// sentinels decides.
        sentinels: Vec<Endpoint>,
        /// The sentinels' name for the primary.
        primary: String,
    },
    /// The primaries of a cluster.
    Cluster(Vec<Endpoint>),
}

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// TLS options. The server's name is always verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// A PEM file with the authorities to trust; the system's authorities by default.
    pub ca: Option<PathBuf>,
    /// PEM files with the client's certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Endpoint {
    /// Creates the address of a server.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Parses `host:port`, in the form that servers and URLs use.
    pub(crate) fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':'))
        } else {
            match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
            None => default_port,
        };
        let plain = !host.is_empty() && !host.contains(char::is_whitespace);
        plain.then(|| Self::new(host, port))
    }
}

/// Messages show this form: without user, password and options.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, endpoints, path) = match self {
            Self::Single(endpoint) => ("redis", std::slice::from_ref(endpoint), None),
            Self::Sentinel { sentinels, primary } => {
                ("redis+sentinel", &**sentinels, Some(primary))
            }
            Self::Cluster(seeds) => ("redis+cluster", &**seeds, None),
        };
        write!(f, "{scheme}://")?;
        for (at, endpoint) in endpoints.iter().enumerate() {
            write!(f, "{}{endpoint}", if at == 0 { "" } else { "," })?;
        }
        path.map_or(Ok(()), |path| write!(f, "/{path}"))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
