//! Controls: locks that people write or install, on the same stores, under the same faults, with
//! the same workers, referee and verdict as distlock.
//!
//! Each control is the genuine recipe and is judged by the belief of its users. No control has
//! fencing tokens, so promises about tokens do not apply. Each control has a twin: distlock on the
//! same kind of store, with the same faults of the same seed. A control must never be made weaker
//! than its documentation describes it.
//!
//! | file | content |
//! |---|---|
//! | `kinds` | the controls by name, with their stores and faults; the traits that they implement |
//! | `set_nx`, `watchdog`, `redlock`, `rslock` | locks on Redis, through `redis_link` |
//! | `hash_mod` | names over several Redis servers, by the remainder of a hash |
//! | `session` | `GET_LOCK`, and the advisory locks of Postgres |
//! | `zookeeper` | the recipe of the crate `zookeeper-client` |
//! | `run` | one run of a control and the plan of its twin, with the figures of both |
//! | `command` | `chaos --controls` |

mod command;
mod hash_mod;
mod kinds;
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
    kinds::{Control, ControlHold, ControlLock, open},
};
