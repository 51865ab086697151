//! Controls: locks that people write or install, on the same stores, under the same faults, with
//! the same workers, referee and checker.
//!
//! Each is the genuine recipe, and is judged by what its own users believe. None has a fencing
//! token, so promises about tokens do not apply to it. Each has a twin: distlock on the same kind
//! of store, with the same faults of the same seed.
//!
//! | file | what is in it |
//! |---|---|
//! | `lock` | the traits that a control implements |
//! | `set_nx`, `watchdog`, `redlock`, `rslock` | on Redis, by way of `redis_link` |
//! | `session` | `GET_LOCK`, and the advisory locks of Postgres |
//! | `zookeeper` | the recipe of the crate `zookeeper-client` |
//! | `run` | one run of a control, and of its twin |
//! | `command` | `chaos --controls` |
//! | `figures` | the figures of both |

mod command;
mod figures;
mod kinds;
mod lock;
mod open;
mod redis_link;
mod redlock;
mod rslock;
mod run;
mod session;
mod set_nx;
mod watchdog;
mod zookeeper;

pub(in crate::chaos) use self::{
    command::run,
    kinds::Control,
    lock::{ControlHold, ControlLock},
    open::open,
};
