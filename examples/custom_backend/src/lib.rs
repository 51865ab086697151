//! A backend of your own, whole: locks in a folder of the file system, `folder:PATH`.
//!
//! ```no_run
//! # async fn example() -> distlock::Result<()> {
//! let registry = distlock::Registry::builtin().with(custom_backend::FolderDriver);
//! let store = registry.open("folder:/var/lib/app/locks").await?;
//! # store.close().await; Ok(()) }
//! ```
//!
//! It implements [`Records`](distlock::Records), versioned values with compare-and-swap, and takes
//! its locks from [`KvLock`](distlock::KvLock), which stands on any records that tell their ages. A
//! store with atomic locks of its own implements [`DistLock`](distlock::DistLock) as well, and its
//! locks then cost fewer operations.
//!
//! | content | file |
//! |---|---|
//! | the schemes and options of the URL, and how a store is opened | `driver.rs` |
//! | the records: reading, and writing on condition | `records.rs` |
//! | one record as a file, and the files of a folder | `files.rs` |
//!
//! # Promises and their limits
//!
//! The processes of one host exclude each other if they open the same folder. Writers take turns by
//! the kernel's lock on a file (`flock`), which ends with its process. A writer that is stopped in
//! its turn stops the others; they give up after two seconds (`Unavailable`). Each write is a
//! rename, so a reader sees the old record or the new one. Ages count on the boot-time clock of the
//! host, and a record of an earlier boot has none: its lock is free. A folder on a network file
//! system is not refused, and would exclude nobody.

mod driver;
mod files;
mod records;

pub use driver::FolderDriver;
pub use records::FolderRecords;
