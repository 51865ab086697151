//! The batcher alone, in single steps. The seed decides when each caller is polled or dropped, and
//! when the store answers.
//!
//! Neither `shuttle` nor `loom` runs here. The batcher and the local queue use tokio's channels,
//! notifications and tasks, which `shuttle` and `loom` cannot schedule. These tools would need
//! replacements in the product's own source. Instead, every await is a step here. Mutexes protect
//! the code between two awaits, so that code needs no steps.

mod run;
mod store;

pub(super) use self::run::run_batcher;
