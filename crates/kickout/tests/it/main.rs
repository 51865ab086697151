//! The flow over the memory store: several nodes in one process, with links to the store and between nodes that a test can cut.

mod admin;
mod chaos;
mod cluster;
mod failures;
mod link;
mod metering;
mod nodes;
mod order;
mod policies;
mod races;
mod routing;
mod store;
mod storms;
mod takeover;
