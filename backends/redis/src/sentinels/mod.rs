//! Redis Sentinel: which server is the primary, as a majority of the sentinels says.

mod peer;
mod rounds;
mod view;
mod votes;

pub(crate) use self::{rounds::Sentinels, view::View};
