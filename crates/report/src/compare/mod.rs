//! Several stores side by side: what was found out about them, as data.
//!
//! Whoever measures fills a [`Comparison`]; [`render`](crate::render) turns it into pages. Nothing here measures, and the
//! pages are computed from the JSON form alone, so that they can be made again from it.

mod busy;
mod durability;
#[cfg(test)]
mod fixtures;
mod guide;
mod instead;
mod lookup;
mod model;
mod properties;
mod prose;
mod ways;

pub use busy::{BUSY_PERCENT, busy, load};
pub use durability::durability;
pub use guide::{Advice, STAY_WITHIN, advice, criteria};
pub use instead::{INSTEAD, Instead, LIMIT};
pub use lookup::is_difference;
pub use model::{
    About, Comparison, Figure, Finding, Interval, Lane, Measure, PeerRun, Promises, PropertyResult,
    RoundLoad, Scenario, ScenarioKind, StoreFacts,
};
pub use properties::{PROPERTIES, Property, shown_by_faults};
pub use prose::{Prose, prose};
pub use ways::{NOT_MEASURED, way, without_other_ways};
