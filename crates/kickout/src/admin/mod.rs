//! Operations by hand: look-ups, kicks and bans.

pub(crate) mod operations;
pub(crate) mod view;
