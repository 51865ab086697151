//! Options of the listeners: TLS, and the proxy that may stand in front of them.

use serde::Deserialize;

/// The proof that a caller is a node, beside the token that each call carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PeerAuth {
    /// The token alone; TLS keeps it secret.
    #[default]
    Token,
    /// A certificate as well: the caller has to show one of `peer_tls_ca`.
    Mutual,
}

/// The source of a client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClientAddress {
    /// Its connection.
    #[default]
    Connection,
    /// The header of the PROXY protocol (version 1 or 2) that a proxy puts in front.
    ProxyProtocol,
    /// The last entry of `X-Forwarded-For`, for WebSocket clients.
    ForwardedFor,
}

/// The files of a node's certificates and keys, each pair as certificate and key.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) own: Option<(String, String)>,
    /// The pair for other nodes, if it is a different one.
    pub(crate) peer: Option<(String, String)>,
    pub(crate) peer_ca: Option<String>,
    pub(crate) peer_auth: PeerAuth,
    pub(crate) peer_name: Option<String>,
}
