//! The flow over the memory store: several nodes in one process. A test can cut the connections to
//! the store and between the nodes.

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
mod resumes;
mod routing;
mod saves;
mod store;
mod storms;
mod takeover;
mod two_stores;
