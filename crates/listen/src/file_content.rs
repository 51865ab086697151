//! What a file of the configuration says, read at the start and again on request.
//!
//! A file that cannot be used must never replace content that was good.

use std::{borrow::Cow, fmt, path::Path, sync::Arc};

use distlock_backend_kit::{FileReads, read_bounded};
use distlock_core::{Result, sync::RwLock};

use crate::{NamedFile, tls::READ_LIMIT};

/// Why a file cannot be used, as the rest of a sentence about it: `which holds ..`. It shows no
/// secret of the file.
pub type FileProblem = Cow<'static, str>;

/// Reads the content of a file.
pub type FileParser<T> = Box<dyn Fn(&[u8]) -> Result<T, FileProblem> + Send + Sync>;

/// How a file is read, and how errors speak of it.
pub struct FileFormat<T> {
    /// The text before the name of the setting in an error, such as `gateway.`.
    pub settings_of: &'static str,
    /// What is done while it is read, as in `read the keys of tokens`.
    pub doing: &'static str,
    /// Reads the content.
    pub parse: FileParser<T>,
}

/// The content of a file.
pub struct FileContent<T> {
    file: NamedFile,
    format: Arc<FileFormat<T>>,
    reads: FileReads,
    current: RwLock<Arc<T>>,
}

impl<T: Send + Sync + 'static> FileContent<T> {
    /// Reads the file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig), naming setting and
    /// file, for a file that cannot be read or used, and
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) when the file system does
    /// not answer.
    pub async fn read(file: NamedFile, format: FileFormat<T>) -> Result<Self> {
        let (reads, format) = (FileReads::within(READ_LIMIT), Arc::new(format));
        let first = read(&reads, file.clone(), Arc::clone(&format)).await?;
        Ok(Self {
            file,
            format,
            reads,
            current: RwLock::new(Arc::new(first)),
        })
    }

    /// Reads the file again. A file that cannot be used changes nothing.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub async fn reload(&self) -> Result<()> {
        let content = read(&self.reads, self.file.clone(), Arc::clone(&self.format)).await?;
        *self.current.write() = Arc::new(content);
        Ok(())
    }

    /// The content of the last read that succeeded.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }
}

impl<T> fmt::Debug for FileFormat<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileFormat")
            .field("doing", &self.doing)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for FileContent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileContent").field(&self.file).finish()
    }
}

async fn read<T: Send + 'static>(
    reads: &FileReads,
    file: NamedFile,
    format: Arc<FileFormat<T>>,
) -> Result<T> {
    let doing = format.doing;
    let read = move || {
        let content = read_bounded(Path::new(&file.path))
            .map_err(|error| file.unreadable(format.settings_of, error))?;
        (format.parse)(&content).map_err(|problem| file.wrong(format.settings_of, problem))
    };
    let read = reads.read(read).await;
    read.map_err(|error| error.during(doing))
}
