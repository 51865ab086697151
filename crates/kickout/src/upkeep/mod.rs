//! Background rounds: reconciliation and sweep.
//!
//! The rounds repair the effects of lost kicks, of dead nodes and of lost data in the store. The
//! rounds never grant a login.

pub(crate) mod hand_out;
pub(crate) mod reconcile;
pub(crate) mod sweep;
