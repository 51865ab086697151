//! Health: asks the servers for their state, and checks the settings that the promises rest on.

mod health;
mod limits;
mod servers;

pub(crate) use health::health;
pub(crate) use servers::explain;
