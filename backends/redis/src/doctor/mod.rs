//! Health of the servers.

mod examine;
mod finding;
mod rights;
mod server_report;
mod settings;
#[cfg(test)]
mod tests;

pub(crate) use self::examine::examine;
