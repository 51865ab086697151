mod door;

pub use self::door::Lock;
