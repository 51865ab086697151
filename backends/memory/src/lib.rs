//! Locks and records in the memory of one process, behind the distlock contract.
//!
//! The store serves tests, tools that need exclusion between the tasks of one process only, and a
//! lock server that hosts the table. The store needs no set-up, and loses everything when the
//! process ends.
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
//! #     let mut runtime = tokio::runtime::Builder::new_current_thread();
//! #     runtime.enable_all().build().unwrap().block_on(f).unwrap();
//! # }
//! ```
//!
//! [`Memory::new`] creates a store. [`Memory::shared`] returns the store that the process shares
//! under a name.
//!
//! - `memory`: the store that callers open.
//! - `table`: the lock table, a synchronous state machine with the time passed in. The table is
//!   public, so that a server can host it.
//! - `shard`, `rows`, `row`, `row_counts`, `store_queue`: the parts of the table: one shard, its
//!   held locks, one of them, how many there are, and the contenders of one lock in order.
//! - `held_lock`: a held lock in a form that a server stores while it does not run.
//! - `lock`, `wait`: the asynchronous shell around the table.
//! - `records`: the versioned key-value store.
//!
//! Guarantees: a lease is counted on the boot-time clock. The tokens of a name rise while the
//! process lives, and across restarts if the wall clock is right. Contenders get the lock in the
//! order in which they joined. A contender that makes no attempt within half a second of its turn
//! is skipped. A release wakes one contender of that name.

mod driver;
mod held_lock;
mod lock;
mod memory;
mod records;
mod row;
mod row_counts;
mod rows;
mod shard;
mod store_queue;
mod table;
mod wait;

pub use driver::MemoryDriver;
pub use held_lock::HeldLock;
pub use lock::MemoryLock;
pub use memory::Memory;
pub use records::MemoryRecords;
pub use store_queue::QueueEntry;
pub use table::{Armed, Now, Table};
