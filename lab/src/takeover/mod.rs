//! Measures takeovers among real gateway nodes with real WebSocket clients, and checks the results.
//!
//! | file | content |
//! |---|---|
//! | `group.rs` | the nodes, in this process or in others |
//! | `client.rs` | a device |
//! | `load.rs` | takeovers and messages, at a rate or as fast as possible |
//! | `measure.rs` | the rounds of a measurement |
//! | `soak.rs` | contended logins, checked while they run |
//! | `idle.rs` | the memory of idle sessions |
//! | `presence.rs` | the cost of presence and its changes |
//! | `flood.rs` | connections of strangers, and their cost for others |

mod client;
mod flood;
mod group;
mod idle;
mod load;
mod measure;
mod presence;
mod soak;

pub(crate) use self::{
    flood::{Flood, measure_flood},
    group::SharedStore,
    idle::measure_idle,
    measure::{Load, measure},
    presence::measure_presence,
    soak::{Soak, run_soak},
};
