//! The steps that must be atomic, as scripts of the server.
//!
//! The texts are constant: values from users travel in `KEYS` and `ARGV` only, never in the text.

use std::sync::LazyLock;

/// A script, and the hash by which the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: &'static str,
    pub(crate) sha: String,
}

pub(crate) static ACQUIRE_AND_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/acquire_and_release.lua")));
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));
pub(crate) static ACQUIRE_ONE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/acquire_one.lua")));
pub(crate) static ACQUIRE_MIGRATING: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/acquire_migrating.lua"),
        include_str!("scripts/acquire_one.lua")
    ))
});
pub(crate) static RELEASE_ONE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release_one.lua")));
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));
pub(crate) static HAND_OVER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/hand_over.lua")));
pub(crate) static HAND_OVER_ONE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/hand_over_one.lua")));
pub(crate) static FORCE_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/force_release.lua")));
pub(crate) static PUT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/put.lua")));
pub(crate) static DELETE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/delete.lua")));
pub(crate) static QUEUE_ENTRY: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/queue_entry.lua")));
pub(crate) static RIGHTS: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/rights.lua")));

impl Script {
    fn new(source: &'static str) -> Self {
        Self {
            source,
            sha: redis::Script::new(source).get_hash().to_owned(),
        }
    }
}
