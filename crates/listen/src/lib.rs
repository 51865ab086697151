//! The listeners of distlock's servers: the kick-out gateway and the lock server.
//!
//! A [`ConnectionListener`] accepts connections within a [`ConnectionQuota`], reads the header of
//! the PROXY protocol, completes the handshake of TLS, and gives each connection a time to log in.
//! A server speaks its protocol over a [`Connection`], and decides about it by a
//! [`ConnectionHandle`]. This crate knows no protocol above HTTP and no key of a configuration but
//! `insecure_listen`.
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | accepts connections, each with its permits | `listener` |
//! | one connection: its bytes, its time to log in, its end | `connection` |
//! | how many connections there may be, in all and of one address | `quota` |
//! | the header by which a proxy names its client | `proxy` |
//! | certificates and keys from files, which are read again on request | `tls` |
//! | HTTP/1.1 on a listener, and the time for bodies | `http` |
//! | TCP and Unix sockets, and where a socket needs TLS | `socket` |
//! | what a file says, read again on request | `file_content` |
//! | signed tokens by which clients show what they may do, and their keys | [`jwt`], `token_keys` |
//! | the metrics of the process as a page | `metrics_page` |
//!
//! # Promises
//!
//! - A connection without a login ends at its deadline, whatever bytes arrive, and strangers keep
//!   room for clients that have logged in.
//! - A bad connection, certificate or header never stops a listener.
//! - Certificates that cannot be used never replace good ones.

mod connection;
mod file_content;
mod http;
pub mod jwt;
mod listener;
mod metrics_page;
mod proxy;
mod quota;
mod socket;
mod tls;
mod token_keys;

pub use connection::{Connection, ConnectionHandle};
pub use file_content::{FileContent, FileFormat, FileParser, FileProblem};
pub use http::{BodyTime, is_late_body, serve_http};
pub use listener::ConnectionListener;
pub use metrics_page::MetricsPage;
pub use proxy::{PROXY_BEGINNINGS, read_source};
pub use quota::{ConnectionBounds, ConnectionQuota};
pub use socket::{Socket, problem_without_tls};
pub use tls::{EXPIRY, IdentityFiles, ListenerKind, NamedFile, PeerFiles, Tls, TlsFiles};
pub use token_keys::TokenKeys;
