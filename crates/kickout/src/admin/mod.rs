//! Operations by hand: look-ups, kicks and bans.

pub(crate) mod accounts;
pub(crate) mod ban;
