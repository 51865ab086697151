//! The hash of lock names, and a hasher for keys that are already hashes.
//!
//! Invariant: the seed is random in each process. A hash must never be stored or compared between
//! processes.

use std::hash::Hasher;

/// The hasher of lock names. Each acquire with its release hashes a name several times, and the
/// standard hasher takes eight times as long. The seed is random, so a client cannot choose names
/// that collide. A collision makes a process slower but has no other effect.
pub type OfNames = foldhash::fast::RandomState;

/// A hasher for keys that are already hashes: it returns the key unchanged.
#[derive(Debug, Default)]
pub struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only whole numbers are hashed")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
