//! Health: every setting of the servers that a guarantee depends on.
//!
//! The doctor only reads. A setting that the user may not read is reported as unknown, never as
//! good.

mod examine;
mod server_report;
mod settings;
#[cfg(test)]
mod tests;

pub(crate) use self::examine::examine;
