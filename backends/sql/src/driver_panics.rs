//! Turns panics of the driver into errors.
//!
//! The driver panics on a packet that no server of the expected product sends. Such a packet comes
//! from another kind of server, or from a server that stopped in the middle of a packet.
//!
//! After such an error the state of the connection is unknown: the caller must not use the
//! connection again.

use std::{any::Any, future::Future};

use distlock_backend_kit::panics;
use distlock_core::threads;

/// The error for a panic of the driver: either the system had no thread for the driver, or the
/// server sent a packet that the driver does not understand.
pub(crate) fn panic_error(panic: &(dyn Any + Send)) -> sqlx::Error {
    match threads::missed(panic) {
        Some(why) => sqlx::Error::Io(why),
        None => sqlx::Error::Protocol("a packet was not understood".into()),
    }
}

/// Awaits a call of the driver. A panic of the driver becomes an error.
pub(crate) async fn catch_panics<T>(
    does: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let done = panics::catching(does).await;
    done.unwrap_or_else(|panic| Err(panic_error(&*panic)))
}

/// Reads a value of a row. The driver panics if the value is shorter than its type needs; the panic
/// becomes an error.
pub(crate) fn decode<T>(read: impl FnOnce() -> Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
    panics::caught(read).unwrap_or_else(|panic| Err(panic_error(&*panic)))
}
