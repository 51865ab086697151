//! The batcher alone, in single steps: callers that are polled or not and go away at any time, and
//! a store that answers when the seed says so.
//!
//! Neither `shuttle` nor `loom` runs here. The batcher and the local queue use tokio's channels,
//! notifications and tasks, which `shuttle` and `loom` cannot schedule. The product's own source
//! would need replacements for them. Every await is a step here instead, and the mutexes protect
//! the code between two awaits.

mod run;
mod store;

pub(super) use self::run::run_batcher;
