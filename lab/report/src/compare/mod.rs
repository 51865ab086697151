//! The results of a run on several stores, as data.
//!
//! The run fills a [`Comparison`]; [`render`](crate::render) turns the data into pages. Nothing
//! here measures. Invariant: the pages are computed from the data alone, so that the pages can be
//! rendered again from the JSON form of the data.

mod alternatives;
mod durability;
#[cfg(test)]
mod fixtures;
mod guide;
mod lookup;
mod machine_load;
mod model;
mod peer_arms;
mod properties;
mod prose;

pub use alternatives::{ALTERNATIVES, Alternative, LEASE_LIMIT};
pub use durability::durability;
pub use guide::{Advice, STAY_WITHIN, advice, criteria};
pub use lookup::is_difference;
pub use machine_load::{BUSY_PERCENT, busy_warning, load_sentence};
pub use model::{
    About, Comparison, Figure, Finding, Interval, Lane, Measure, PeerRun, Promises, PropertyResult,
    RoundLoad, Scenario, ScenarioKind, StoreFacts,
};
pub use peer_arms::{PEERS_NOT_MEASURED, describe_arm, stores_without_peers};
pub use properties::{PROPERTIES, Property, shown_by_faults};
pub use prose::{Prose, prose};
