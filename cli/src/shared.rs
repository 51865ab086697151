//! Shared locks in the results of `inspect` and `list`.

use distlock::{ErrorKind, Result};
use distlock_recipes::shared::{HolderState, SharedHolder, SharedInfo, SharedKind, SharedMode};
use serde::Serialize;

use crate::output::{self, describe_holder};

/// The shared locks that were found. A failure is told, and hides no plain lock.
pub(crate) fn found_or_warned(found: Result<Vec<SharedInfo>>) -> Vec<SharedInfo> {
    match found {
        Ok(found) => found,
        // A store without records has no shared locks.
        Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
        Err(error) => {
            output::print_message(format_args!("shared locks are not shown: {error}"));
            Vec::new()
        }
    }
}

/// A shared lock in words.
pub(crate) struct Described {
    /// `rw` or `semaphore`.
    pub(crate) kind: &'static str,
    pub(crate) is_semaphore: bool,
    /// How many hold it, and what is free: `2 of 8 permits are free, 3 holders`.
    pub(crate) holders: String,
}

/// Describes who holds a shared lock.
pub(crate) fn describe_shared(info: &SharedInfo) -> Described {
    let count = info.holders.len();
    let plural = |word: &str| match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    };
    match info.kind {
        SharedKind::Semaphore { capacity, free } => Described {
            kind: "semaphore",
            is_semaphore: true,
            holders: format!(
                "{free} of {capacity} permits are free, {}",
                plural("holder")
            ),
        },
        _ => Described {
            kind: "rw",
            is_semaphore: false,
            holders: match info.holders.first().map(|holder| holder.mode) {
                None => "free".to_owned(),
                Some(SharedMode::Write) => plural("writer"),
                Some(_) => plural("reader"),
            },
        },
    }
}

/// One holder in words: `reader, held by bob@host:12 since ..`.
pub(crate) fn describe_holder_of_shared(holder: &SharedHolder) -> String {
    let what = match holder.mode {
        SharedMode::Read => "reader".to_owned(),
        SharedMode::Write => "writer".to_owned(),
        _ => {
            let indices: Vec<_> = holder.indices.iter().map(u32::to_string).collect();
            format!("permits {}", indices.join(","))
        }
    };
    match &holder.state {
        HolderState::Held(held) => format!("{what}, {}", describe_holder(held)),
        HolderState::Gone => format!("{what}, gone: its entry stays until it blocks somebody"),
        _ => what,
    }
}

/// A shared lock in the form of `--json`; unknown fields are null.
#[derive(Serialize)]
pub(crate) struct SharedJson<'a> {
    name: &'a str,
    kind: &'static str,
    state: &'static str,
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free: Option<u32>,
    holders: Vec<SharedHolderJson<'a>>,
}

/// One holder.
#[derive(Serialize)]
struct SharedHolderJson<'a> {
    mode: &'static str,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    indices: &'a [u32],
    holder: Option<&'a str>,
    meta: Option<&'a str>,
    /// Whether it has left or is dead; null if it was not asked about.
    gone: Option<bool>,
}

impl<'a> From<&'a SharedInfo> for SharedJson<'a> {
    fn from(info: &'a SharedInfo) -> Self {
        let (capacity, free) = match info.kind {
            SharedKind::Semaphore { capacity, free } => (Some(capacity), Some(free)),
            _ => (None, None),
        };
        let holders = info.holders.iter().map(|holder| {
            let held = match &holder.state {
                HolderState::Held(held) => Some(held),
                _ => None,
            };
            SharedHolderJson {
                mode: match holder.mode {
                    SharedMode::Read => "read",
                    SharedMode::Write => "write",
                    _ => "permits",
                },
                indices: &holder.indices,
                holder: held.map(|held| held.holder.as_str()),
                meta: held.and_then(|held| held.meta.as_deref()),
                gone: match holder.state {
                    HolderState::Held(_) => Some(false),
                    HolderState::Gone => Some(true),
                    _ => None,
                },
            }
        });
        Self {
            name: info.name.as_str(),
            kind: describe_shared(info).kind,
            state: if info.holders.is_empty() {
                "free"
            } else {
                "held"
            },
            token: info.token.map(u64::from),
            capacity,
            free,
            holders: holders.collect(),
        }
    }
}
