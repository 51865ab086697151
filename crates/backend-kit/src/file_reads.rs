//! Bounded reads of files that somebody else names: a read ends, however the file or its file
//! system behaves.
//!
//! This module owns the bounds of such a read, in time and in bytes. Invariant: at most one read of
//! the same files runs at a time, so a file system that hangs costs one thread, however many
//! connections want the files meanwhile.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use distlock_core::{Error, ErrorKind, Result, SystemClock, at_most, threads};
use tokio::sync::Mutex;

/// The longest wait for the files of a connection that is made now. A connection is made within
/// seconds, and a lease may depend on it.
const CONNECTION_LIMIT: Duration = Duration::from_millis(500);

/// The size of the largest file that is read. Real configurations and certificates have some
/// hundred bytes, and a collection of authorities has some hundred kilobytes.
const MAX_BYTES: u64 = 1024 * 1024;

/// Reads a regular file of at most 1 MiB. Anything else is refused: opening a pipe would wait for a
/// writer, and a device may never end.
///
/// # Errors
/// Those of the file system, and one that says which bound the file exceeds.
pub fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut content = Vec::new();
    // Reads at most one byte more than allowed, which shows that the file is too long.
    File::open(path)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut content)?;
    if content.len() as u64 > MAX_BYTES {
        let problem = format!("it has more than {MAX_BYTES} bytes");
        return Err(io::Error::other(problem));
    }
    Ok(content)
}

/// The reads of one set of files.
#[derive(Clone, Debug)]
pub struct FileReads {
    turn: Arc<Mutex<()>>,
    limit: Duration,
}

/// Reads for a connection that is made now. The limit is half a second.
impl Default for FileReads {
    fn default() -> Self {
        Self::within(CONNECTION_LIMIT)
    }
}

impl FileReads {
    /// Reads that take at most `limit`.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        let turn = Arc::default();
        Self { turn, limit }
    }

    /// Runs a read on a thread of its own, after the read that is in progress.
    ///
    /// # Errors
    /// Those of the read, and [`ErrorKind::Unavailable`] after the limit.
    ///
    /// # Cancel safety
    /// Safe: the read goes on, and its result is lost.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let reading = async {
            let turn = Arc::clone(&self.turn).lock_owned().await;
            // The thread keeps the turn, also when nobody waits for its result any more.
            threads::blocking(move || {
                let _turn = turn;
                work()
            })
            .await?
        };
        // The limit is for a file system of this host, and so by the clock of this host.
        at_most(&SystemClock, self.limit, reading)
            .await
            .unwrap_or_else(|| {
                Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("the file system did not answer within {:?}", self.limit),
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use distlock_core::Clock as _;

    use super::*;

    #[test]
    fn only_a_regular_file_of_at_most_a_mebibyte_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.pem");
        let largest = usize::try_from(MAX_BYTES).unwrap();
        fs::write(&path, vec![b'x'; largest]).unwrap();
        assert_eq!(read_bounded(&path).unwrap().len(), largest);
        fs::write(&path, vec![b'x'; largest + 1]).unwrap();
        let refusal = |path: &Path| read_bounded(path).unwrap_err().to_string();
        assert_eq!(refusal(&path), "it has more than 1048576 bytes");
        for other in [folder.path(), Path::new("/dev/zero")] {
            assert_eq!(refusal(other), "it is no regular file");
        }
    }

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
        assert!(SystemClock.now().since(begun) < CONNECTION_LIMIT * 10);
        // The second read has never begun, and the next one begins when the first has ended.
        answer.send(()).unwrap();
        assert!(reads.read(|| Ok(true)).await.unwrap());
    }
}
