//! Three files that import each other, once through a re-export and once by an inline path.

mod hall;
mod room;

pub use hall::First;
pub use room::{Second, Third};
