//! Starting threads without a panic.
//!
//! This module owns the start of threads for blocking work, and the error of a system that refuses
//! a thread. The module must never call `std::thread::spawn` or tokio's `spawn_blocking`: both
//! panic when the system refuses a thread. Besides, `spawn_blocking` never starts its work while
//! all blocking threads of the runtime hang.
use std::{any::Any, io, thread};

use tokio::sync::oneshot;

use crate::types::error::{Error, ErrorKind, Result};

/// The message of [`no_thread`], for backends that keep their messages in tables.
pub const NO_THREAD: &str =
    "cannot start a thread: raise the limit of processes (ulimit -u, pids.max) or of memory";

/// The error of a system that refused a thread. The error is retryable, because the system may
/// allow a thread later.
#[must_use]
pub fn no_thread(error: io::Error) -> Error {
    Error::new(ErrorKind::LimitExceeded, NO_THREAD)
        .passing()
        .caused_by(error)
}

/// The beginning of tokio's panic message when the system refuses a thread for blocking work, for
/// example for a look-up of a host name.
const TOKIO_HAS_NONE: &str = "OS can't spawn worker thread: ";

/// Returns the system's error if the panic's message says that tokio got no thread. Database
/// drivers call `spawn_blocking`, and this library cannot prevent that.
#[must_use]
pub fn missed(panic: &(dyn Any + Send)) -> Option<io::Error> {
    // The payload of `panic!` is a `&str` for a literal, and a `String` for a message with
    // arguments.
    let says = panic.downcast_ref::<String>().map(String::as_str);
    let says = says.or_else(|| panic.downcast_ref::<&str>().copied())?;
    let why = says.strip_prefix(TOKIO_HAS_NONE)?;
    Some(io::Error::new(io::ErrorKind::WouldBlock, why))
}

/// Runs blocking work on a thread of its own and returns its result.
///
/// # Errors
/// [`no_thread`], and [`ErrorKind::Internal`] when the work panics.
///
/// # Cancel safety
/// The work continues when the future is dropped, and its result is lost.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new()
        .name("distlock-blocking".into())
        .spawn(move || {
            // Sending fails when the caller has dropped the future. Then nobody needs the result.
            let _ = sender.send(work());
        })
        .map_err(no_thread)?;
    receiver
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "a thread broke off").caused_by(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokios_panic_about_a_refused_thread_is_recognised() {
        let missed = |panic: Box<dyn Any + Send>| missed(&*panic).map(|why| why.to_string());
        let why = "Resource temporarily unavailable (os error 11)";
        let tokio = format!("OS can't spawn worker thread: {why}");
        assert_eq!(missed(Box::new(tokio)).as_deref(), Some(why));
        assert_eq!(missed(Box::new("a bug")), None);
        assert_eq!(missed(Box::new("a bug".to_owned())), None);
    }

    #[tokio::test]
    async fn blocking_work_runs_on_its_own_thread_and_its_panic_is_an_error() {
        let here = thread::current().id();
        let there = blocking(|| thread::current().id()).await.unwrap();
        assert_ne!(here, there);
        let panics = blocking(|| panic!("as if there were a bug")).await;
        assert_eq!(panics.unwrap_err().kind(), ErrorKind::Internal);
    }
}
