//! Health.

mod health;
mod limits;
mod servers;

pub(crate) use health::health;
pub(crate) use servers::explain;
