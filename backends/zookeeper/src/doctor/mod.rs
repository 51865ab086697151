//! Health: the state of each server, and the settings that the guarantees depend on.

mod health;
mod limits;
mod servers;

pub(crate) use health::check_health;
pub(crate) use servers::add_server_states;
