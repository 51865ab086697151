mod key;

pub use key::Key;
