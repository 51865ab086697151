//! Runs a command in a process group of its own, sends signals to the group, and waits until the
//! group is empty.
//!
//! | file | content |
//! |---|---|
//! | `process_group.rs` | [`ProcessGroup`]: starting, signalling, waiting until the group is empty |
//! | `members.rs` | the processes of a group: whether one lives, whether a shell looks after them |
//! | `signals.rs` | [`Signals`]: signals that are sent to us and meant for the command |
//! | `watchdog.rs` | [`Watchdog`]: starts a watchdog, tells it the deadlines, hears its reports |
//! | `watchdog_process.rs` | the watchdog: it ends the group when this process cannot |
//! | `users.rs` | [`Refusing`]: the processes of another user, which this process may not signal |
//! | `terminal.rs` | [`Terminal`]: the foreground of the terminal, and Ctrl-Z |

mod members;
mod process_group;
mod signals;
mod terminal;
mod users;
pub(crate) mod watchdog;
pub(crate) mod watchdog_process;

pub(crate) use process_group::{ProcessGroup, Rest, is_group_alive};
pub use signals::Signals;
pub(crate) use signals::{Arrived, survive_full_files};
pub(crate) use terminal::{Terminal, stop_this_process};
pub(crate) use users::{Refusing, own_user};
pub(crate) use watchdog::{WatchEnd, Watchdog};
