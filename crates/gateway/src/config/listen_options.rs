//! Options of the listeners: TLS, and the proxy that may stand in front of them.

use serde::Deserialize;

/// The proof that a caller has to show to be accepted as another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PeerAuth {
    /// The token that each call carries.
    #[default]
    Token,
    /// The token, and a certificate that an authority of `peer_tls_ca` has signed.
    Mutual,
}

/// The source of a client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClientAddress {
    /// The other end of the client's connection.
    #[default]
    Connection,
    /// The header of the PROXY protocol (version 1 or 2), which a proxy sends before the client's
    /// bytes.
    ProxyProtocol,
    /// The last entry of `X-Forwarded-For`, for WebSocket clients.
    ForwardedFor,
}

/// The files of a node's certificates and keys, each pair as certificate and key.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// The pair for clients and administrators.
    pub(crate) own: Option<(String, String)>,
    /// The pair for other nodes; `own` is used if this is `None`.
    pub(crate) peer: Option<(String, String)>,
    pub(crate) peer_ca: Option<String>,
    pub(crate) peer_auth: PeerAuth,
    pub(crate) peer_name: Option<String>,
}
