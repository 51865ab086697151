//! The listeners of distlock's servers: the kick-out gateway and the lock server.
//!
//! A [`ConnectionListener`] accepts connections within a [`ConnectionQuota`], reads the header of
//! the PROXY protocol, completes the handshake of TLS, and gives each connection a time to log in.
//! A server speaks its protocol over a [`Connection`], and decides about it by a
//! [`ConnectionHandle`]. This crate knows no protocol above HTTP and no key of a configuration.
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
//!
//! # Promises
//!
//! - A connection without a login ends at its deadline, whatever bytes arrive, and strangers keep
//!   room for clients that have logged in.
//! - A bad connection, certificate or header never stops a listener.
//! - Certificates that cannot be used never replace good ones.

mod connection;
mod http;
mod listener;
mod proxy;
mod quota;
mod tls;

pub use connection::{Connection, ConnectionHandle};
pub use http::{BodyTime, is_late_body, serve_http};
pub use listener::ConnectionListener;
pub use proxy::{PROXY_BEGINNINGS, read_source};
pub use quota::{ConnectionBounds, ConnectionQuota};
pub use tls::{EXPIRY, IdentityFiles, ListenerKind, NamedFile, PeerFiles, Tls, TlsFiles};
