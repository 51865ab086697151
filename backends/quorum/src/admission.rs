//! Who may vote: writes the markers of members that have none, or that lost their locks.
//!
//! Invariants:
//!
//! - A marker is written only if a majority has markers of the same quorum, or if all members
//!   answer and none has a marker of another. So two clients never make two quorums.
//! - A marker that a client writes makes its member wait. Only an operator says that a quorum is
//!   new, and only then does a member vote at once.
//! - Each write compares what was read. A marker that somebody has written in between stays.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use distlock_backend_kit::{Member, Members};
use distlock_core::{Entry, Epoch, Error, ErrorKind, Expect, LockName, Result, Written};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::{
    marker::{Agreement, Marker, silence},
    shared::{NAME, Shared},
};

/// The number of tries to write a marker while other clients write it too.
pub(crate) const TRIES: usize = 5;

/// What one member says.
pub(crate) struct Look {
    pub(crate) epoch: Epoch,
    /// The marker, as it is stored and as it is read.
    pub(crate) marked: Option<(Entry, Marker)>,
}

impl Look {
    /// The age of a marker that was written after the member last lost its locks.
    pub(crate) fn age_since_loss(&self) -> Option<Duration> {
        let (entry, marker) = self.marked.as_ref()?;
        marker.age_since_loss(entry, &self.epoch)
    }

    /// The condition of a write that replaces what was read.
    pub(crate) fn expect(&self) -> Expect {
        match &self.marked {
            None => Expect::Absent,
            Some((entry, _)) => Expect::Version(entry.version),
        }
    }
}

/// Finds the quorum of these members. Writes the missing markers where that is safe.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a marker of another quorum, with the name of the member; and
/// [`ErrorKind::Unavailable`] when neither a majority has markers nor all members answer.
pub(crate) async fn find_quorum(members: &Members, agreement: &Agreement) -> Result<Uuid> {
    let mut conflicts = 0;
    loop {
        let looks = look_at_all(members).await;
        let quorum = decide(members, agreement, &looks)?;
        match complete(members, agreement, quorum, &looks).await {
            Ok(true) => return Ok(quorum),
            // Another client wrote a marker at the same time.
            Ok(false) if conflicts < TRIES => conflicts += 1,
            Ok(false) => {
                let problem = "other clients change the markers of the quorum again and again";
                return Err(Error::new(ErrorKind::Unavailable, problem).on(NAME));
            }
            // A member that has gone away in between is admitted later.
            Err(error) if error.is_retryable() => return Ok(quorum),
            Err(error) => return Err(error),
        }
    }
}

/// Admits members again that have lost their memory, in the background. One task of a handle does
/// so at a time.
pub(crate) fn readmit(shared: &Arc<Shared>) {
    if shared.admitting.swap(true, Ordering::AcqRel) {
        return;
    }
    let admitting = Arc::clone(shared);
    (shared.spawn)(Box::pin(async move {
        if let Err(error) = find_quorum(&admitting.members, &admitting.agreement).await {
            tracing::warn!(%error, "a member of the quorum cannot be admitted again");
        }
        admitting.admitting.store(false, Ordering::Release);
    }));
}

pub(crate) async fn look_at_all(members: &Members) -> Vec<Result<Look>> {
    join_all(members.all().iter().map(|member| look(member))).await
}

pub(crate) async fn look(member: &Member) -> Result<Look> {
    let (handle, sent) = member.begin()?;
    let looking = async {
        // The epoch before the marker: a member that restarts in between gets a marker with the
        // old epoch, which does not count.
        let epoch = handle.lock.inspect(&LockName::new("quorum")?).await?.epoch;
        let entry = handle.records.get(&Marker::key()?).await?;
        sent.answered();
        let unknown = || Error::new(ErrorKind::Unsupported, "its locks do not tell their epoch");
        let marked = match entry {
            Some(entry) => {
                let marker = Marker::parse(&entry.value)?;
                Some((entry, marker))
            }
            None => None,
        };
        Ok(Look {
            epoch: epoch.ok_or_else(unknown)?,
            marked,
        })
    };
    looking.await.map_err(|error| member.of_this(error))
}

/// The id of the quorum, from what the members say.
pub(crate) fn decide(
    members: &Members,
    agreement: &Agreement,
    looks: &[Result<Look>],
) -> Result<Uuid> {
    let digest = agreement.digest();
    let mut ids: Vec<Uuid> = Vec::new();
    for (member, look) in members.all().iter().zip(looks) {
        let Ok(Look {
            marked: Some((_, marker)),
            ..
        }) = look
        else {
            continue;
        };
        let first = ids.first().copied().unwrap_or(marker.quorum);
        if let Err(difference) = marker.is_of(first, digest, member.name()) {
            let problem = format!(
                "member {:?} ({}) has a marker that does not fit: {difference}; `distlock quorum \
                 show` shows the markers",
                member.name(),
                member.masked_url()
            );
            return Err(Error::new(ErrorKind::InvalidConfig, problem).on(NAME));
        }
        ids.push(marker.quorum);
    }
    let majority = looks.len() / 2 + 1;
    match ids.first() {
        Some(&quorum) if ids.len() >= majority => return Ok(quorum),
        _ => {}
    }
    // Fewer than a majority of markers. Members that are away may have markers of another quorum,
    // so only a set that answers as a whole may become a quorum.
    if let Some(away) = looks.iter().find_map(|look| look.as_ref().err()) {
        let blank = members
            .all()
            .iter()
            .zip(looks)
            .filter_map(|(member, look)| {
                let blank = look.as_ref().is_ok_and(|look| look.marked.is_none());
                blank.then(|| format!("{:?}", member.name()))
            });
        let blank: Vec<_> = blank.collect();
        let who = match &*blank {
            [] => String::new(),
            blank => format!("; none is at {}", blank.join(", ")),
        };
        let problem = format!(
            "{} of {} members have a marker of this quorum{who}. A new quorum needs all members",
            ids.len(),
            looks.len()
        );
        let error = Error::new(ErrorKind::Unavailable, problem).on(NAME);
        return Err(error.caused_by(away.clone()));
    }
    Ok(ids
        .first()
        .copied()
        .unwrap_or_else(|| agreement.automatic_id()))
}

/// Writes the missing markers and replaces those from before a restart. Returns false when another
/// client has written one of them first.
async fn complete(
    members: &Members,
    agreement: &Agreement,
    quorum: Uuid,
    looks: &[Result<Look>],
) -> Result<bool> {
    // In the order of the names, and only up to the first conflict: of two callers that make the
    // quorum at the same time, the one that is first at the first member makes it alone. Otherwise
    // their markers could be mixed, and nobody could use the members.
    let mut named: Vec<_> = members.all().iter().zip(looks).collect();
    named.sort_by_key(|(member, _)| member.name());
    for (member, look) in named {
        let Ok(look) = look else { continue };
        if look.age_since_loss().is_some() {
            continue;
        }
        let marker = marker_of(member, agreement, quorum, looks, look, false);
        if !write(member, marker, look.expect()).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The marker that a member gets.
pub(crate) fn marker_of(
    member: &Member,
    agreement: &Agreement,
    quorum: Uuid,
    looks: &[Result<Look>],
    look: &Look,
    at_once: bool,
) -> Marker {
    Marker {
        quorum,
        agreement: agreement.digest(),
        member: member.name().to_owned(),
        epoch: look.epoch.clone(),
        longest_lease_ms: longest_lease_ms(agreement, looks),
        at_once,
    }
}

/// The longest lease, in milliseconds, that may still run, by what the markers say. It is more than
/// the agreed one for a while after that was lowered: until one of the markers is so old that every
/// lease from before has ended.
pub(crate) fn longest_lease_ms(agreement: &Agreement, looks: &[Result<Look>]) -> u64 {
    let agreed = u64::try_from(agreement.max_lease.as_millis()).unwrap_or(u64::MAX);
    let told = looks
        .iter()
        .flatten()
        .filter_map(|look| look.marked.as_ref());
    let is_over = |(entry, marker): &(Entry, Marker)| {
        let silence = silence(Duration::from_millis(marker.longest_lease_ms));
        entry.age.is_some_and(|age| age >= silence)
    };
    if told.clone().any(is_over) {
        return agreed;
    }
    let longest = told.map(|(_, marker)| marker.longest_lease_ms).max();
    longest.unwrap_or(0).max(agreed)
}

/// Writes a marker. Returns false when the stored marker is not as expected.
pub(crate) async fn write(member: &Member, marker: Marker, expect: Expect) -> Result<bool> {
    let (handle, sent) = member.begin()?;
    let writing = async {
        let written = handle
            .records
            .put(&Marker::key()?, &marker.stored()?, expect)
            .await?;
        sent.answered();
        Ok(matches!(written, Written::Stored(_)))
    };
    writing.await.map_err(|error| member.of_this(error))
}
