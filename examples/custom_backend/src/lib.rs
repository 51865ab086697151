//! A complete backend outside of the library: locks in a folder of the file system, `folder:PATH`.
//!
//! ```no_run
//! # async fn example() -> distlock::Result<()> {
//! let registry = distlock::Registry::builtin().with(custom_backend::FolderDriver);
//! let store = registry.open("folder:/var/lib/app/locks").await?;
//! # store.close().await; Ok(()) }
//! ```
//!
//! The backend implements [`Records`](distlock::Records): versioned values with compare-and-swap.
//! Its locks come from [`KvLock`](distlock::KvLock), which works with any records that tell their
//! ages. A store with atomic locks of its own implements [`DistLock`](distlock::DistLock) too, and
//! its locks then need fewer operations.
//!
//! | content | file |
//! |---|---|
//! | the scheme and options of the URL, and the function that opens a store | `driver.rs` |
//! | the records: reads, and conditional writes | `records.rs` |
//! | the files of a folder | `files.rs` |
//!
//! # Promises and their limits
//!
//! The processes of one host exclude each other if they open the same folder. One writer at a time
//! holds the kernel's lock on a file (`flock`), which ends with the process of the writer. If a
//! writer is stopped while it holds this lock, the other writers give up after two seconds
//! (`Unavailable`). Each write is a rename, so a reader sees the old record or the new record. Ages
//! are measured with the boot-time clock of the host. A record of an earlier boot has no age: its
//! lock is free. A folder on a network file system is not refused, but locks in it exclude nobody.

mod driver;
mod files;
mod records;

pub use driver::FolderDriver;
pub use records::FolderRecords;
