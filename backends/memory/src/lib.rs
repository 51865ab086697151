//! Locks and records in the memory of one process, behind the distlock contract.
//!
//! For tests, for tools that need exclusion between the tasks of one process only, and as the table inside a lock server. It
//! needs no set-up and loses everything when the process ends.
//!
//! ```
//! use std::sync::Arc;
//!
//! use distlock_core::{Store, SystemClock};
//! use distlock_memory::Memory;
//!
//! # tokio_test(async {
//! let memory = Memory::new(Arc::new(SystemClock));
//! let locker = Store::new(memory.lock(), memory.records()).locker();
//! let guard = locker.lock("order:42").acquire().await?;
//! println!("held with token {}", guard.token());
//! assert!(guard.release().await.is_clean());
//! # Ok::<(), distlock_core::Error>(())
//! # });
//! # fn tokio_test(f: impl Future<Output = Result<(), distlock_core::Error>>) {
//! #     tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f).unwrap();
//! # }
//! ```
//!
//! [`Memory::new`] is a store of its own. [`Memory::shared`] is the one of that name that all of
//! the process share.
//!
//! - `table`: the lock table, a synchronous state machine with the time passed in. Public, so that a server can host it.
//! - `line`: who waits for a lock, in order. `row`: one held lock.
//! - `lock`, `wait`: the asynchronous shell around the table.
//! - `records`: the versioned key-value store.
//!
//! Guarantees: leases are counted on the boot-time clock; tokens rise per name while the process lives (and across restarts
//! as long as the wall clock agrees); waiting callers are served in the order in which they joined, except that one who does
//! not come within half a second of being called is passed over; a release wakes one waiter, of that name.

mod lock;
mod memory;
mod now;
mod records;
mod row;
mod shard;
mod shared_table;
mod store_queue;
mod table;
mod wait;

pub use lock::MemoryLock;
pub use memory::Memory;
pub use now::Now;
pub use records::MemoryRecords;
pub use store_queue::QueueEntry;
#[doc(hidden)]
pub use store_queue::QueueEntry as Place;
pub use table::{Armed, Table};
