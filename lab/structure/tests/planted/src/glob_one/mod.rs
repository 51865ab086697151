mod key;

pub use key::*;
