//! What the configuration says of listeners: TLS, and what may stand in front of them.

use serde::Deserialize;

/// How nodes know that another one is a node, beside the token that each call carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PeerAuth {
    /// By that token; TLS hides it.
    #[default]
    Token,
    /// By its certificate as well: who connects has to show one of `peer_tls_ca`.
    Mutual,
}

/// Where the address of a client comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClientAddress {
    /// From its connection.
    #[default]
    Connection,
    /// From the header of the PROXY protocol (version 1 or 2) that a proxy puts in front.
    ProxyProtocol,
    /// From the last entry of `X-Forwarded-For`, for WebSocket clients.
    ForwardedFor,
}

/// The files of a node's certificates and keys, each pair as certificate and key.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) own: Option<(String, String)>,
    /// Towards other nodes, where that is another one.
    pub(crate) peer: Option<(String, String)>,
    pub(crate) peer_ca: Option<String>,
    pub(crate) peer_auth: PeerAuth,
    pub(crate) peer_name: Option<String>,
}
