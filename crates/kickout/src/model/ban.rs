//! A ban as the store holds it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ban {
    /// Which ban.
    pub id: Uuid,
    /// Why, for people; its account is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it lasts, in milliseconds; without end unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// When it ends, by the wall clock of the node that set it, in milliseconds since 1970. For display, and decisive only where
    /// the store cannot tell how long the ban has been there: ZooKeeper never can, SQLite not after a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}
