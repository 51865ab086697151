//! Health of the servers.

mod examine;
mod rights;
mod settings;

pub(crate) use self::examine::examine;
