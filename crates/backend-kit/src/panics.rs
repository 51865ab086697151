//! Panics of foreign libraries that a backend catches and turns into errors.
//!
//! Rust calls the program's panic hook before a panic can be caught, and the default hook prints
//! the panic. This module owns a counter for each thread, which says whether a panic on that thread
//! is caught. A hook may read it through [`is_caught`] and then print nothing. This module must
//! never replace the hook, which belongs to the host program.

use std::{
    cell::Cell,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    thread,
};

use pin_project_lite::pin_project;

thread_local! {
    /// The number of [`caught`] calls on the stack of this thread.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
}

struct Catching;

impl Catching {
    fn begin() -> Self {
        CATCHING.set(CATCHING.get() + 1);
        Self
    }
}

impl Drop for Catching {
    fn drop(&mut self) {
        CATCHING.set(CATCHING.get() - 1);
    }
}

/// For a panic hook: returns whether the panic of this thread is caught and becomes an error, so
/// that the hook need not print the panic.
///
/// ```
/// let print = std::panic::take_hook();
/// std::panic::set_hook(Box::new(move |panicked| {
///     if !distlock_backend_kit::panics::is_caught() {
///         print(panicked);
///     }
/// }));
/// ```
#[must_use]
pub fn is_caught() -> bool {
    // On a thread that is ending, the thread-local variable may be gone.
    CATCHING
        .try_with(Cell::get)
        .is_ok_and(|catching| catching > 0)
}

/// Calls a function of a foreign library and catches its panic.
///
/// # Errors
/// The payload of the panic.
pub fn caught<T>(function: impl FnOnce() -> T) -> thread::Result<T> {
    let _catching = Catching::begin();
    catch_unwind(AssertUnwindSafe(function))
}

/// Like [`caught`], for a future. The future must not be polled again after a panic.
pub fn catching<F: Future>(future: F) -> CatchPanic<F> {
    CatchPanic { future }
}

pin_project! {
    /// The future of [`catching`].
    #[derive(Debug)]
    #[must_use]
    pub struct CatchPanic<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = thread::Result<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.project().future;
        match caught(|| future.poll(context)) {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn is_caught_holds_only_while_the_guarded_code_runs() {
        assert!(!is_caught());
        assert!(caught(is_caught).unwrap());
        assert!(caught(|| panic!("as a driver does")).is_err());
        assert!(!is_caught());
        let sleeps = async {
            assert!(is_caught());
            tokio::task::yield_now().await;
            is_caught()
        };
        let mut sleeps = std::pin::pin!(catching(sleeps));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(sleeps.as_mut().poll(&mut context).is_pending());
        assert!(!is_caught(), "others run on this thread meanwhile");
        assert!(sleeps.await.unwrap());
        let panics = async { panic!("as a driver does") };
        assert!(catching(panics).await.is_err());
        assert!(!is_caught());
    }
}
