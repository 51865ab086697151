//! How names are hashed, and maps whose keys come hashed.

use std::hash::Hasher;

/// What names are hashed with, several times in each cycle, which takes the standard hasher eight times as long. Its seed is
/// random, so that names cannot be chosen to collide; who finds some all the same makes a process slower, and nothing wrong.
pub(crate) type OfNames = foldhash::fast::RandomState;

/// Hashes that need no further hashing.
#[derive(Default)]
pub(crate) struct AsIs(u64);

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
