//! A ban as the store holds it.
//!
//! The account's record carries a copy as a mark; the record `ban/<uid>` decides how long it lasts.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ban {
    /// Id of the ban.
    pub id: Uuid,
    /// The reason, for people. The account's clients get this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Duration in milliseconds. A ban without a duration does not end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The end of the ban, by the wall clock of the node that set the ban, in milliseconds since
    /// 1970. The value is for display. It decides only if the store cannot tell the age of the ban:
    /// ZooKeeper never can, SQLite cannot after a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}
