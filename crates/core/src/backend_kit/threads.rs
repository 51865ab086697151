//! Starting threads. A system that has no thread to give makes an error, and never a panic.
//!
//! `std::thread::spawn` and tokio's `spawn_blocking` panic then; where all threads of a tokio
//! runtime are busy for ever, `spawn_blocking` even waits for ever. So neither is used.

use std::{any::Any, io, thread};

use tokio::sync::oneshot;

use crate::types::error::{Error, ErrorKind, Result};

/// What [`no_thread`] says, for those who have their errors in tables.
pub const NO_THREAD: &str =
    "cannot start a thread: raise the limit of processes (ulimit -u, pids.max) or of memory";

/// The system gave no thread. It may have one later.
#[must_use]
pub fn no_thread(error: io::Error) -> Error {
    Error::new(ErrorKind::LimitExceeded, NO_THREAD)
        .passing()
        .caused_by(error)
}

/// What tokio panics with where the system has no thread for work that blocks, as looking up a host
/// name does.
const TOKIO_HAS_NONE: &str = "OS can't spawn worker thread: ";

/// Whether a panic says that tokio got no thread, and what the system said then. Drivers use
/// `spawn_blocking`, and nobody can keep them from it.
#[must_use]
pub fn missed(panic: &(dyn Any + Send)) -> Option<io::Error> {
    // A message that is known when it is compiled is no `String`.
    let says = panic.downcast_ref::<String>().map(String::as_str);
    let says = says.or_else(|| panic.downcast_ref::<&str>().copied())?;
    let why = says.strip_prefix(TOKIO_HAS_NONE)?;
    Some(io::Error::new(io::ErrorKind::WouldBlock, why))
}

/// Does what blocks on a thread of its own, and gives its result.
///
/// # Errors
/// [`no_thread`], and [`ErrorKind::Internal`] when the work panics.
///
/// # Cancel safety
/// The work goes on when this is dropped.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (tell, told) = oneshot::channel();
    thread::Builder::new()
        .name("distlock-blocking".into())
        .spawn(move || {
            // Nobody may be waiting any more.
            let _ = tell.send(work());
        })
        .map_err(no_thread)?;
    told.await
        .map_err(|error| Error::new(ErrorKind::Internal, "a thread broke off").caused_by(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_for_want_of_a_thread_is_told_from_others() {
        let missed = |panic: Box<dyn Any + Send>| missed(&*panic).map(|why| why.to_string());
        let why = "Resource temporarily unavailable (os error 11)";
        let tokio = format!("OS can't spawn worker thread: {why}");
        assert_eq!(missed(Box::new(tokio)).as_deref(), Some(why));
        assert_eq!(missed(Box::new("a bug")), None);
        assert_eq!(missed(Box::new("a bug".to_owned())), None);
    }

    #[tokio::test]
    async fn what_blocks_is_done_elsewhere_and_its_panic_is_an_error() {
        let here = thread::current().id();
        let there = blocking(|| thread::current().id()).await.unwrap();
        assert_ne!(here, there);
        let panics = blocking(|| panic!("as if there were a bug")).await;
        assert_eq!(panics.unwrap_err().kind(), ErrorKind::Internal);
    }
}
