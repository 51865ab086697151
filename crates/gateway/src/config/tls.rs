//! Options of the listeners: TLS with its files, and the proxy that may stand in front of them.
//!
//! This module must never allow a listener beyond loopback without TLS, unless `insecure_listen`
//! allows it.

use std::net::SocketAddr;

use distlock_core::Result;
use distlock_listen::{IdentityFiles, NamedFile, PeerFiles, TlsFiles, problem_without_tls};
use serde::Deserialize;

use super::{GatewayConfig, config_error};

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

impl GatewayConfig {
    /// The files of the certificates and keys.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a certificate without its key
    /// or the reverse, for keys of TLS between nodes without `peer_tls_ca`, and for the reverse.
    pub(crate) fn tls_files(&self) -> Result<TlsFiles> {
        let pair = |cert_key, cert: &Option<String>, key_key, key: &Option<String>| {
            let lacks = |set, other| {
                let problem = format!("is set without {other}: a certificate needs its key");
                Err(config_error(set, &problem))
            };
            match (cert, key) {
                (Some(cert), Some(key)) => Ok(Some(IdentityFiles {
                    cert: file(cert_key, cert),
                    key: file(key_key, key),
                })),
                (None, None) => Ok(None),
                (Some(_), None) => lacks(cert_key, key_key),
                (None, Some(_)) => lacks(key_key, cert_key),
            }
        };
        let own = pair("tls_cert", &self.tls_cert, "tls_key", &self.tls_key)?;
        let peer = pair(
            "peer_tls_cert",
            &self.peer_tls_cert,
            "peer_tls_key",
            &self.peer_tls_key,
        )?;
        let peers = match &self.peer_tls_ca {
            Some(ca) => Some(PeerFiles {
                identity: peer.or_else(|| own.clone()).ok_or_else(|| {
                    config_error(
                        "peer_tls_ca",
                        "is set, and this node has no certificate: set peer_tls_cert and \
                         peer_tls_key, or tls_cert and tls_key",
                    )
                })?,
                ca: file("peer_tls_ca", ca),
                mutual: self.peer_tls_auth == PeerAuth::Mutual,
                name: self.peer_tls_name.clone(),
            }),
            None => {
                for (key, set) in [
                    ("peer_tls_cert", peer.is_some()),
                    ("peer_tls_name", self.peer_tls_name.is_some()),
                    ("peer_tls_auth", self.peer_tls_auth == PeerAuth::Mutual),
                ] {
                    if set {
                        let problem =
                            "is set without peer_tls_ca, which turns on TLS between nodes";
                        return Err(config_error(key, problem));
                    }
                }
                None
            }
        };
        Ok(TlsFiles {
            settings_of: "gateway.",
            own,
            peers,
            ..TlsFiles::default()
        })
    }

    /// Refuses an address beyond loopback without TLS: somebody else on the network could read and
    /// change the bytes.
    pub(crate) fn check_listen_address(&self, key: &str, address: SocketAddr) -> Result<()> {
        let (secured, advice) = if key == "peer_listen" {
            (self.peer_tls_ca.is_some(), "set peer_tls_ca")
        } else {
            (self.tls_cert.is_some(), "set tls_cert and tls_key")
        };
        match problem_without_tls(address, secured || self.insecure_listen, advice) {
            Some(problem) => Err(config_error(key, &problem)),
            None => Ok(()),
        }
    }
}

fn file(setting: &'static str, path: &str) -> NamedFile {
    NamedFile {
        setting,
        path: path.to_owned(),
    }
}
