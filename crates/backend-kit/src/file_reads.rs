//! Reads of files whose file system may hang, for connections that are made now.
//!
//! This module owns the time limit of such a read. Invariant: at most one read of the same files
//! runs at a time, so a file system that hangs costs one thread, however many connections want the
//! files meanwhile.

use std::{sync::Arc, time::Duration};

use distlock_core::{Clock as _, Error, ErrorKind, Result, SystemClock, threads};
use tokio::sync::Mutex;

/// The longest wait for the files. A connection is made within seconds, and a lease may depend on
/// it.
const READ_LIMIT: Duration = Duration::from_millis(500);

/// The reads of one set of files.
#[derive(Clone, Debug, Default)]
pub struct FileReads(Arc<Mutex<()>>);

impl FileReads {
    /// Runs a read on a thread of its own, after the read that is in progress.
    ///
    /// # Errors
    /// Those of the read, and [`ErrorKind::Unavailable`] after half a second.
    ///
    /// # Cancel safety
    /// Safe: the read goes on, and its result is lost.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let reading = async {
            let turn = Arc::clone(&self.0).lock_owned().await;
            // The thread keeps the turn, also when nobody waits for its result any more.
            threads::blocking(move || {
                let _turn = turn;
                work()
            })
            .await?
        };
        // The limit is for a file system of this host, and so by the clock of this host.
        tokio::select! {
            biased;
            read = reading => read,
            () = SystemClock.sleep(READ_LIMIT) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("the file system did not answer within {READ_LIMIT:?}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_file_system_that_hangs_costs_one_thread_and_half_a_second() {
        let (answer, hangs) = mpsc::channel::<()>();
        let reads = FileReads::default();
        let begun = SystemClock.now();
        let first = reads.read(move || Ok(hangs.recv().is_ok()));
        let second = reads.read(|| Ok(true));
        let (first, second) = tokio::join!(first, second);
        for outcome in [first, second] {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert!(SystemClock.now().since(begun) < READ_LIMIT * 10);
        // The second read has never begun, and the next one begins when the first has ended.
        answer.send(()).unwrap();
        assert!(reads.read(|| Ok(true)).await.unwrap());
    }
}
