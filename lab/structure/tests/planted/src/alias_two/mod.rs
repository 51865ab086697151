mod door;

pub use door::Door;
