//! The steps that must be atomic, as scripts for the server. One script serves both a single
//! operation and a batch.
//!
//! The texts are constant. Values from users are passed only in `KEYS` and `ARGV`.

use std::sync::LazyLock;

/// A script, and the hash that names it at the server.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: &'static str,
    pub(crate) sha: String,
}

/// Joins these files, in this order, to one script.
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
