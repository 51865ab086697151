//! Reconciliation: a node compares its sessions with the directory, so that a kick that never
//! reached it heals by itself.

pub(crate) mod compare;
pub(crate) mod rounds;
#[cfg(test)]
mod tests;
pub(crate) mod writes;
