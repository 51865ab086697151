//! The steps that must be atomic, as scripts of the server. Each step is one script, for one
//! operation and for many.
//!
//! The texts are constant: values from users travel in `KEYS` and `ARGV` only, never in the text.

use std::sync::LazyLock;

/// A script, and the hash by which the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: &'static str,
    pub(crate) sha: String,
}

/// A script of these files, one after the other.
macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $file))),+)))
    };
}

pub(crate) static ACQUIRE: LazyLock<Script> = script!("prelude.lua", "acquire.lua");
/// Acquires one lock while its slot migrates.
pub(crate) static ACQUIRE_MIGRATING: LazyLock<Script> =
    script!("acquire_migrating.lua", "prelude.lua", "acquire.lua");
pub(crate) static RENEW: LazyLock<Script> = script!("prelude.lua", "renew.lua");
pub(crate) static RELEASE: LazyLock<Script> = script!("prelude.lua", "release.lua");
pub(crate) static HAND_OVER: LazyLock<Script> = script!("prelude.lua", "hand_over.lua");
pub(crate) static FORCE_RELEASE: LazyLock<Script> = script!("prelude.lua", "force_release.lua");
pub(crate) static PUT: LazyLock<Script> = script!("prelude.lua", "put.lua");
pub(crate) static DELETE: LazyLock<Script> = script!("prelude.lua", "delete.lua");
pub(crate) static QUEUE_ENTRY: LazyLock<Script> = script!("prelude.lua", "queue_entry.lua");
pub(crate) static RIGHTS: LazyLock<Script> = script!("rights.lua");

impl Script {
    fn new(source: &'static str) -> Self {
        Self {
            source,
            sha: redis::Script::new(source).get_hash().to_owned(),
        }
    }
}
