//! Background rounds: reconciliation and sweep.
//!
//! The rounds repair the traces of lost kicks, of dead nodes and of a store that lost data. They
//! never grant a login.

pub(crate) mod reconcile;
pub(crate) mod sweep;
