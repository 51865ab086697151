mod first;

pub use first::First;
