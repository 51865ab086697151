//! Reconciliation: a node compares its sessions with the directory and corrects both.
//!
//! A session whose kick was lost ends within one node lease.

pub(crate) mod compare;
pub(crate) mod rounds;
#[cfg(test)]
mod tests;
pub(crate) mod writes;
