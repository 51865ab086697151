//! The driver's panics. It panics on packets that no server of its kind sends, as of another kind
//! of server or of one that broke off in the middle; here such a panic is an error like others.
//!
//! What comes out as an error means that the connection is in no known state: whoever gets it must
//! not use the connection again.

use std::{any::Any, future::Future};

use distlock_core::{panics, threads};

/// What a panic of the driver says: that the system had no thread for it, or something of the
/// server.
pub(crate) fn panic_error(panic: &(dyn Any + Send)) -> sqlx::Error {
    match threads::missed(panic) {
        Some(why) => sqlx::Error::Io(why),
        None => sqlx::Error::Protocol("a packet was not understood".into()),
    }
}

/// Does something with the driver, whose panic becomes an error.
pub(crate) async fn catch_panics<T>(
    does: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let done = panics::catching(does).await;
    done.unwrap_or_else(|panic| Err(panic_error(&*panic)))
}

/// Reads a value of a row, which the driver may find cut short.
pub(crate) fn decode<T>(read: impl FnOnce() -> Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
    panics::caught(read).unwrap_or_else(|panic| Err(panic_error(&*panic)))
}
