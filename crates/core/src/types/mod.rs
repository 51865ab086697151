//! Values that are parsed and checked once, where they come in.

pub(crate) mod duration;
pub(crate) mod error;
pub(crate) mod ident;
pub(crate) mod name;
pub(crate) mod presentable;
pub(crate) mod shell_word;
pub(crate) mod ticket;
pub(crate) mod token;
pub(crate) mod ttl;
