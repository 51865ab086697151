//! Health: asks the servers for their state, and checks the settings that the promises rest on.

mod health;
mod limits;
mod servers;

pub(crate) use health::check_health;
pub(crate) use servers::add_server_states;
