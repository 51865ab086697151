//! Three files that import each other, once through a re-export and once by an inline path.

mod first;
mod room;

pub use first::First;
pub use room::{Second, Third};
