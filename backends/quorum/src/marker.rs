//! The record `quorum` of a member, which says whether the member may vote.
//!
//! A member that lost its memory may have forgotten a lease that is still valid. So a member votes
//! only while its marker counts: a member that lost its records has no marker, and a member that
//! lost only its locks has another epoch than its marker. A new marker counts when it is older than
//! every lease that may have been forgotten.
//!
//! This module owns the stored form of a marker and the decision about it. Invariant: the age of a
//! marker is told by the member's own clock, and is read again for each grant. A decision must
//! never be made from a marker that was read before the grant: the member may have restarted
//! between the two.

use std::time::Duration;

use distlock_core::{Entry, Epoch, Error, ErrorKind, RecordKey, Result, excerpt};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The key of the marker among a member's records.
const KEY: &str = "quorum";

/// The names of the members and the longest lease: what all clients of one quorum must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// The names, sorted.
    names: Vec<String>,
    pub(crate) max_lease: Duration,
}

/// A marker as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Marker {
    /// The id of the quorum.
    pub(crate) quorum: Uuid,
    /// The digest of the [`Agreement`].
    pub(crate) agreement: Uuid,
    /// The name of the member. Two members whose URLs lead to one server find one marker there,
    /// which can have the name of only one of them.
    pub(crate) member: String,
    /// The epoch of the member's locks when the marker was written.
    pub(crate) epoch: Epoch,
    /// The longest lease, in milliseconds, that the member may have granted before. This is more
    /// than the agreed longest lease after that was lowered.
    pub(crate) longest_lease_ms: u64,
    /// Whether the member votes without waiting, because an operator said that the quorum is new.
    pub(crate) at_once: bool,
}

/// What a marker says about its member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The member votes. The value is its clock at the answer.
    Votes(Duration),
    /// The member votes when the marker is older, after this time.
    Waits(Duration),
    /// There is no marker.
    Blank,
    /// The member lost its locks after the marker was written.
    Restarted,
    /// The marker belongs to another quorum, to another list of members or to another longest
    /// lease. The value says which.
    Foreign(&'static str),
}

impl Agreement {
    pub(crate) fn new(names: impl IntoIterator<Item = String>, max_lease: Duration) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        Self { names, max_lease }
    }

    /// The digest of the names and the longest lease. Clients with other names or with another
    /// longest lease have another digest.
    pub(crate) fn digest(&self) -> Uuid {
        // A name has no line break, so different lists give different texts.
        let text = format!("{}\n{}", self.names.join("\n"), self.max_lease.as_millis());
        Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes())
    }

    /// The id of a quorum that no operator has made. Two first clients compute the same id, so they
    /// do not make two quorums.
    pub(crate) fn automatic_id(&self) -> Uuid {
        Uuid::new_v5(&self.digest(), b"automatic")
    }
}

/// The time that a marker must be old before its member votes: a quarter more than the longest
/// lease, because the clocks of two members may differ by that much.
pub(crate) fn silence(longest_lease: Duration) -> Duration {
    longest_lease * 5 / 4
}

/// The largest difference of two clocks of members that are counted together.
pub(crate) fn clock_limit(max_lease: Duration) -> Duration {
    max_lease / 4
}

impl Marker {
    /// The agreement of a marker whose member has left its quorum. No client has this agreement, so
    /// the member counts for nobody until it gets a marker of the new list.
    pub(crate) const RETIRED: Uuid = Uuid::nil();

    pub(crate) fn key() -> Result<RecordKey> {
        RecordKey::new(KEY)
    }

    pub(crate) fn parse(value: &[u8]) -> Result<Self> {
        serde_json::from_slice(value).map_err(|error| {
            let text = String::from_utf8_lossy(value);
            let problem = format!(
                "record \"{KEY}\" is no marker of a quorum: {}",
                excerpt(&text)
            );
            Error::new(ErrorKind::Corrupt, problem).caused_by(error)
        })
    }

    pub(crate) fn stored(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Internal, "a marker cannot be written as JSON").caused_by(error)
        })
    }

    /// The age of a marker that was written after the member last lost its locks. `None`: the
    /// member has lost its locks since. Its epoch changed, or its machine was booted, which frees
    /// the locks of an embedded store. A marker from before the boot has no age.
    pub(crate) fn age_since_loss(&self, entry: &Entry, epoch: &Epoch) -> Option<Duration> {
        entry.age.filter(|_| self.epoch == *epoch)
    }

    /// Whether the marker is one of this quorum, this agreement and this member; otherwise says
    /// what differs. The age does not matter.
    pub(crate) fn is_of(
        &self,
        quorum: Uuid,
        agreement: Uuid,
        member: &str,
    ) -> std::result::Result<(), &'static str> {
        if self.agreement == Self::RETIRED {
            return Err("its quorum was moved to other members with `distlock quorum reconfigure`");
        }
        if self.quorum != quorum {
            return Err("it belongs to another quorum");
        }
        if self.agreement != agreement {
            return Err("it was written for other members or another max_lease");
        }
        if self.member != member {
            return Err("it is the marker of another member, so two members are one server");
        }
        Ok(())
    }
}

/// A marker, and the entry in which it is stored.
#[derive(Debug)]
pub(crate) struct Marked {
    pub(crate) entry: Entry,
    pub(crate) marker: Marker,
}

/// Decides what a marker says about its member. `epoch` is the epoch of the member's locks now, and
/// `marked` was read after the member told it.
pub(crate) fn standing(
    marked: Option<&Marked>,
    quorum: Uuid,
    agreement: Uuid,
    member: &str,
    epoch: &Epoch,
) -> Result<Standing> {
    let Some(Marked { entry, marker }) = marked else {
        return Ok(Standing::Blank);
    };
    if let Err(difference) = marker.is_of(quorum, agreement, member) {
        return Ok(Standing::Foreign(difference));
    }
    let Some(age) = marker.age_since_loss(entry, epoch) else {
        return Ok(Standing::Restarted);
    };
    let Some(clock) = entry.store_time else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the member's records do not tell its clock",
        ));
    };
    let silence = silence(Duration::from_millis(marker.longest_lease_ms));
    Ok(if marker.at_once || age >= silence {
        Standing::Votes(clock)
    } else {
        Standing::Waits(silence - age)
    })
}

#[cfg(test)]
mod tests {
    use distlock_core::Version;

    use super::*;

    #[test]
    fn a_marker_counts_when_it_is_older_than_every_forgotten_lease() {
        let agreement = Agreement::new(["a".to_owned()], Duration::from_secs(60));
        let (quorum, digest) = (agreement.automatic_id(), agreement.digest());
        let now = Duration::from_secs(1_800_000_000);
        let judge = |at_once: bool, age: Option<u64>, epoch: &str| {
            let marker = Marker {
                quorum,
                agreement: digest,
                member: "a".to_owned(),
                epoch: Epoch::new("1"),
                longest_lease_ms: 60_000,
                at_once,
            };
            let version = Version::new(1);
            let age = age.map(Duration::from_secs);
            let entry = Entry::new(version, marker.stored().unwrap(), age).read_at(now);
            let marked = Marked { entry, marker };
            standing(Some(&marked), quorum, digest, "a", &Epoch::new(epoch)).unwrap()
        };
        assert_eq!(judge(true, Some(0), "1"), Standing::Votes(now));
        assert_eq!(judge(false, Some(75), "1"), Standing::Votes(now));
        let left = Duration::from_secs(1);
        assert_eq!(judge(false, Some(74), "1"), Standing::Waits(left));
        // Another epoch, and a marker from an earlier boot.
        assert_eq!(judge(true, Some(75), "2"), Standing::Restarted);
        assert_eq!(judge(true, None, "1"), Standing::Restarted);
    }
}
