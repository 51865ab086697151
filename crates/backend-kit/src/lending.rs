//! A few connections that are lent one by one.
//!
//! The module owns the number of loans: there are never more at the same time than the size says.
//! It knows nothing of the connections themselves. The borrower decides whether a connection may
//! be used again.

use std::{fmt, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result, at_most, sync::Mutex};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Lends connections of type `C`.
pub struct Lender<C> {
    // A blocking mutex: it is held to push and to pop only.
    idle: Mutex<Vec<C>>,
    permits: Semaphore,
}

/// The right to use one connection. Dropping it lets the next borrower have one.
pub struct Loan<'a, C> {
    lender: &'a Lender<C>,
    _permit: SemaphorePermit<'a>,
}

impl<C> Lender<C> {
    /// Lends at most `size` connections at the same time, but at least one. The connections in
    /// `idle` are open already.
    #[must_use]
    pub fn new(size: u32, idle: Vec<C>) -> Self {
        Self {
            idle: Mutex::new(idle),
            permits: Semaphore::new(usize::try_from(size).unwrap_or(1).max(1)),
        }
    }

    /// Waits until another connection may be used, for at most `timeout`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] after the time-out; [`ErrorKind::Closed`] after
    /// [`close`](Self::close).
    ///
    /// # Cancel safety
    /// Safe: a caller that goes away borrows nothing.
    pub async fn lend(&self, clock: &dyn Clock, timeout: Duration) -> Result<Loan<'_, C>> {
        let permit = match at_most(clock, timeout, self.permits.acquire()).await {
            Some(Ok(permit)) => permit,
            Some(Err(_)) => {
                let closed = "the store's handle was closed";
                return Err(Error::new(ErrorKind::Closed, closed));
            }
            None => {
                let busy = "all connections are in use";
                return Err(Error::new(ErrorKind::Unavailable, busy));
            }
        };
        Ok(Loan {
            lender: self,
            _permit: permit,
        })
    }

    /// Refuses further loans and returns the idle connections. Those on loan are dropped when they
    /// are given back.
    pub fn close(&self) -> Vec<C> {
        self.permits.close();
        std::mem::take(&mut *self.idle.lock())
    }
}

impl<C> Loan<'_, C> {
    /// The most recently used idle connection, if there is one. Otherwise the borrower opens one.
    #[must_use]
    pub fn take_idle(&self) -> Option<C> {
        self.lender.idle.lock().pop()
    }

    /// Gives a connection back that can be used again.
    pub fn give_back(&self, connection: C) {
        if !self.lender.permits.is_closed() {
            self.lender.idle.lock().push(connection);
        }
    }

    /// Drops all idle connections. They were opened to the same server as one that has just become
    /// unusable, so the server may be gone.
    pub fn drop_idle(&self) {
        self.lender.idle.lock().clear();
    }
}

impl<C> fmt::Debug for Lender<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender")
            .field("idle", &self.idle.lock().len())
            .field("free", &self.permits.available_permits())
            .finish()
    }
}

impl<C> fmt::Debug for Loan<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(self.lender).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use distlock_core::SystemClock;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    async fn lend(lender: &Lender<u8>) -> Loan<'_, u8> {
        lender.lend(&SystemClock, LONG).await.unwrap()
    }

    #[tokio::test]
    async fn the_connection_used_last_is_lent_first() {
        let lender = Lender::new(2, vec![1]);
        let (first, second) = (lend(&lender).await, lend(&lender).await);
        assert_eq!(first.take_idle(), Some(1));
        assert_eq!(second.take_idle(), None);
        second.give_back(2);
        first.give_back(1);
        drop((first, second));
        assert_eq!(lend(&lender).await.take_idle(), Some(1));
    }

    #[tokio::test]
    async fn no_more_than_its_size_is_on_loan_at_once() {
        let lender = Arc::new(Lender::<u8>::new(0, Vec::new()));
        let only = lend(&lender).await;
        let refused = lender.lend(&SystemClock, Duration::from_millis(1)).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
        drop(only);
        drop(lend(&lender).await);
    }

    #[tokio::test]
    async fn a_closed_lender_keeps_and_lends_nothing() {
        let lender = Lender::new(2, vec![1, 2]);
        let loan = lend(&lender).await;
        let connection = loan.take_idle().unwrap();
        assert_eq!(lender.close(), [1]);
        loan.give_back(connection);
        assert_eq!(loan.take_idle(), None);
        let refused = lender.lend(&SystemClock, LONG).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
    }
}
