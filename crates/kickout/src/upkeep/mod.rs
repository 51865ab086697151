//! Background rounds: reconciliation and sweep.
//!
//! They repair what a lost kick, a dead node or a store with data loss left behind. They never
//! grant a login.

pub(crate) mod reconcile;
pub(crate) mod sweep;
