//! The results of a run on several stores, as data.
//!
//! The run fills a [`Comparison`]; [`render`](crate::render) turns the data into pages. Nothing
//! here measures. Invariant: the pages are computed from the data alone, so that the pages can be
//! rendered again from the JSON form of the data.

mod durability;
mod lookup;
mod model;
mod properties;

pub use durability::durability;
pub use lookup::is_difference;
pub use model::{
    About, BUSY_PERCENT, Comparison, Figure, Finding, Measure, Missing, PeerRun, PropertyResult,
    RoundLoad, Scenario, ScenarioKind, StoreFacts,
};
pub use properties::{PROPERTIES, Property, shown_by_faults};
