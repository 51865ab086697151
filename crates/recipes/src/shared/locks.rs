//! What callers name: a lock of readers and writers, a semaphore, and the options of an acquire.
//!
//! Invariant: no request is sent before the future of a verb is awaited, and a wish that can never
//! be met is refused before.

use std::{sync::Arc, time::Duration};

use distlock_core::{Attempt, Error, ErrorKind, LockName, Result, Store};

use super::{
    enter::{self, Terms, Wanted},
    guard::SharedGuard,
    hub::Hub,
    meters,
    record::{MAX_PERMITS, Wish},
};

/// The longest wait of a caller that sets none.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// A lock that many readers hold together, or one writer alone.
///
/// A clone is the same lock. The tasks of a process should share one value: their entries then go
/// out together. The lock, an exclusive lock and a semaphore of one name are three locks.
///
/// ```
/// use distlock_core::Store;
/// use distlock_memory::Memory;
/// use distlock_recipes::shared::RwLock;
///
/// # #[tokio::main] async fn main() -> distlock_core::Result<()> {
/// # let memory = Memory::default();
/// # let store = Store::new(memory.lock(), memory.records());
/// let catalogue = RwLock::new(&store, "catalogue")?;
/// let (one, two) = (catalogue.read().acquire().await?, catalogue.read().acquire().await?);
/// assert!(catalogue.write().try_acquire().await?.acquired().is_none());
/// assert!(one.release().await.is_clean() && two.release().await.is_clean());
///
/// let writer = catalogue.write().acquire().await?;
/// let reader = writer.downgrade().await?; // no other writer in between
/// assert!(reader.release().await.is_clean());
/// # store.close().await; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    hub: Arc<Hub>,
}

impl RwLock {
    /// The lock of this name in the store.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    pub fn new(store: &Store, name: &str) -> Result<Self> {
        meters::describe();
        let hub = Hub::new(store, name, None)?;
        Ok(Self { hub })
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.hub.name
    }

    /// A builder for a reader: it shares the lock with other readers.
    pub fn read(&self) -> SharedBuilder {
        SharedBuilder::new(&self.hub, Wish::Read)
    }

    /// A builder for a writer: it has the lock alone.
    pub fn write(&self) -> SharedBuilder {
        SharedBuilder::new(&self.hub, Wish::Write)
    }
}

/// A number of permits, of which a caller takes one or several.
///
/// A clone is the same semaphore. All processes have to name the same capacity.
///
/// ```
/// use distlock_core::Store;
/// use distlock_memory::Memory;
/// use distlock_recipes::shared::Semaphore;
///
/// # #[tokio::main] async fn main() -> distlock_core::Result<()> {
/// # let memory = Memory::default();
/// # let store = Store::new(memory.lock(), memory.records());
/// let renderers = Semaphore::new(&store, "renderers", 8)?;
/// let permits = renderers.permits(2).acquire().await?;
/// assert_eq!(permits.indices(), [0, 1]); // which of the 8
/// assert!(permits.release().await.is_clean());
/// # store.close().await; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    hub: Arc<Hub>,
}

impl Semaphore {
    /// The semaphore of this name in the store, with this number of permits.
    ///
    /// An acquire fails with [`ErrorKind::InvalidArgument`] if the semaphore has another capacity
    /// on record. The error names both. Once nobody holds a permit or waits for one, the capacity
    /// of the next caller counts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::InvalidArgument`] for a capacity of 0 or over
    /// 30,000.
    pub fn new(store: &Store, name: &str, capacity: u32) -> Result<Self> {
        check_capacity(capacity)?;
        meters::describe();
        let hub = Hub::new(store, name, Some(capacity))?;
        Ok(Self { hub })
    }

    /// The semaphore's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.hub.name
    }

    /// The number of permits that this value expects the semaphore to have.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.hub.capacity().unwrap_or(0)
    }

    /// A builder for this number of permits, which are taken and released together.
    pub fn permits(&self, count: u32) -> SharedBuilder {
        SharedBuilder::new(&self.hub, Wish::Permits(count))
    }

    /// The number of permits that nobody has, as it was just now. Permits of holders that died
    /// count as taken until somebody needs them.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], and failures of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn free_permits(&self) -> Result<u32> {
        let look = self.hub.look().await;
        let (_, record) = look.map_err(|error| error.about(self.name()))?;
        Ok(record.free_permits())
    }

    /// Gives the semaphore another capacity, here and on record. Holders keep their permits. After
    /// a smaller capacity, nobody enters until the permits of all holders fit it. Other processes
    /// get an error until they name the new capacity.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] as for [`Semaphore::new`], and failures of the store.
    ///
    /// # Cancel safety
    /// When the future is dropped, the semaphore has the old or the new capacity on record. A
    /// repeated call is safe.
    pub async fn resize(&self, capacity: u32) -> Result<()> {
        check_capacity(capacity)?;
        let resized = self.hub.resize(capacity).await;
        resized.map_err(|error| error.about(self.name()))
    }
}

fn check_capacity(capacity: u32) -> Result<()> {
    if (1..=MAX_PERMITS).contains(&capacity) {
        return Ok(());
    }
    let problem = format!("a semaphore of {capacity} permits: 1 to {MAX_PERMITS} are allowed");
    Err(Error::new(ErrorKind::InvalidArgument, problem))
}

/// Describes one wanted guard. Made by [`RwLock::read`], [`RwLock::write`] and
/// [`Semaphore::permits`].
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until `acquire` or `try_acquire` is awaited"]
pub struct SharedBuilder {
    hub: Arc<Hub>,
    wanted: Wanted,
}

impl SharedBuilder {
    fn new(hub: &Arc<Hub>, wish: Wish) -> Self {
        Self {
            hub: Arc::clone(hub),
            wanted: Wanted {
                wish,
                wait: Some(DEFAULT_WAIT),
                terms: Terms::default(),
            },
        }
    }

    /// The duration of the lease without a renewal. The default is the store's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.wanted.terms.ttl = Some(ttl);
        self
    }

    /// The longest wait. The default is 30 s. With zero, `acquire` makes one attempt.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wanted.wait = Some(wait);
        self
    }

    /// Waits without end.
    pub fn wait_forever(mut self) -> Self {
        self.wanted.wait = None;
        self
    }

    /// The holder's label that other processes see, up to 128 bytes. The default is
    /// `user@host:pid`.
    pub fn holder(mut self, label: impl Into<String>) -> Self {
        self.wanted.terms.label = Some(label.into());
        self
    }

    /// A text that the store keeps beside the held lock, up to 4 KiB.
    pub fn meta(mut self, text: impl Into<String>) -> Self {
        self.wanted.terms.meta = Some(text.into());
        self
    }

    /// Takes the lock or the permits, and waits until they are free or the wait ends.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when others held it for too long. [`ErrorKind::InvalidArgument`] for
    /// no permits, for more than the capacity, and for another capacity than that on record.
    /// [`ErrorKind::LimitExceeded`] when 4,000 holders are on record, [`ErrorKind::Corrupt`] for a
    /// record that cannot be read, and failures of the store that do not pass in time.
    ///
    /// # Cancel safety
    /// Safe: a drop of the future leaves the line, and what was taken is released in the
    /// background.
    pub async fn acquire(self) -> Result<SharedGuard> {
        self.check()?;
        let asked = self.hub.clock.now();
        let answer = enter::acquire(&self.hub, &self.wanted).await;
        let took = self.hub.clock.now().since(asked);
        meters::acquired(self.wanted.wish, &answer, took);
        answer
    }

    /// Makes one attempt, without waiting. The answer is `Busy` also while somebody waits who came
    /// earlier.
    ///
    /// # Errors
    /// As [`SharedBuilder::acquire`], without `Timeout`.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn try_acquire(self) -> Result<Attempt<SharedGuard>> {
        self.check()?;
        let answer = enter::try_acquire(&self.hub, &self.wanted).await;
        meters::attempted(self.wanted.wish, &answer);
        answer
    }

    fn check(&self) -> Result<()> {
        let Wish::Permits(count) = self.wanted.wish else {
            return Ok(());
        };
        let capacity = self.hub.capacity().unwrap_or(0);
        if (1..=capacity).contains(&count) {
            return Ok(());
        }
        let problem = format!("{count} permits are asked for: 1 to {capacity} are allowed");
        let error = Error::new(ErrorKind::InvalidArgument, problem);
        Err(error.about(&self.hub.name))
    }
}
