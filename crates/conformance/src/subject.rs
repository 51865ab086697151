//! The store under test.
//!
//! This module owns [`Subject`] and [`Workers`]. Invariant: the clients that a subject opens are
//! independent of each other, like clients in different processes.

use std::{fmt, future::Future, path::PathBuf, sync::Arc};

use distlock_core::{Capabilities, Result, Store};
use futures_util::future::BoxFuture;

/// A backend under test: the way to open it, its capabilities, and the way to reach it from other
/// processes.
///
/// ```no_run
/// use distlock_conformance::{Subject, Workers};
/// # use distlock_core::{Error, ErrorKind, Result, Store};
/// # async fn open(url: &str) -> Result<Store> {
/// #     Err(Error::new(ErrorKind::Unsupported, "yours"))
/// # }
/// # async fn example() -> Result<()> {
/// let url = "mystore://localhost";
/// let workers = Workers::new("/usr/bin/mytool", ["conformance-worker"], url);
/// let subject = Subject::connect("mystore", || open(url)).await?.with_workers(workers);
/// for result in distlock_conformance::run(&subject, None).await {
///     assert!(!result.failed(), "{result:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Subject {
    name: Arc<str>,
    capabilities: Arc<Capabilities>,
    open: Arc<dyn Fn() -> BoxFuture<'static, Result<Store>> + Send + Sync>,
    workers: Option<Workers>,
}

impl Subject {
    /// A subject with known capabilities. Nothing is opened.
    ///
    /// Each call of `open` must return an independent client of the same store, like a client in
    /// another process: with its own connections and its own [`Locker`](distlock_core::Locker).
    /// Where only one process can reach the store, the client has its own handle.
    pub fn new<F>(
        name: impl Into<Arc<str>>,
        capabilities: Capabilities,
        open: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Store>> + Send + 'static,
    {
        Self {
            name: name.into(),
            capabilities: Arc::new(capabilities),
            open: Arc::new(move || Box::pin(open())),
            workers: None,
        }
    }

    /// Opens the store once to read its capabilities.
    ///
    /// # Errors
    /// The errors of `open`.
    ///
    /// # Cancel safety
    /// Depends on `open`.
    pub async fn connect<F>(
        name: impl Into<Arc<str>>,
        open: impl Fn() -> F + Send + Sync + 'static,
    ) -> Result<Self>
    where
        F: Future<Output = Result<Store>> + Send + 'static,
    {
        let store = open().await?;
        let capabilities = store.backend().capabilities().clone();
        store.close().await;
        Ok(Self::new(name, capabilities, open))
    }

    /// Adds worker processes. Without them, cases with several processes do not apply.
    #[must_use]
    pub fn with_workers(mut self, workers: Workers) -> Self {
        self.workers = Some(workers);
        self
    }

    /// The name of the subject: the first part of every test's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The capabilities of the store.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The worker processes, where there are any.
    #[must_use]
    pub const fn workers(&self) -> Option<&Workers> {
        self.workers.as_ref()
    }

    /// Opens another independent client.
    ///
    /// # Errors
    /// The errors of the subject's `open` function.
    ///
    /// # Cancel safety
    /// Depends on the subject's `open` function.
    pub async fn open(&self) -> Result<Store> {
        (self.open)().await
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("name", &self.name)
            .field("capabilities", &self.capabilities)
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

/// The way to start worker processes: any program that calls [`worker::run`](crate::worker::run).
#[derive(Clone)]
pub struct Workers {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) url: String,
    pub(crate) variables: Vec<(String, String)>,
}

impl Workers {
    /// Workers that are started as `program args..` and open `url`. The URL travels over the
    /// worker's standard input, so that the list of processes shows no password.
    pub fn new(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<String>>,
        url: impl Into<String>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            url: url.into(),
            variables: Vec::new(),
        }
    }

    /// Adds a variable to the environment of the workers, for what they need beside the URL: the
    /// URL of another store for the records, for example.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("program", &self.program)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}
