//! What an operator does with a quorum: makes it, looks at its markers, and changes its members.
//!
//! Invariant: only an operator's word makes a member vote at once.

use std::time::Duration;

use distlock_backend_kit::{Drivers, Member, Members, Target};
use distlock_core::{Error, ErrorKind, Result};
use uuid::Uuid;

use crate::{
    admission::{self, Look},
    config::{self, QuorumConfig},
    marker::{Marker, silence},
    shared::NAME,
};

/// What one member of a quorum says.
#[derive(Debug)]
#[non_exhaustive]
pub struct MemberReport {
    /// The name.
    pub name: String,
    /// The URL without its password.
    pub url: String,
    /// The marker, or why it cannot be read. `None`: the member is blank.
    pub marker: Result<Option<MarkerReport>>,
}

impl MemberReport {
    /// Whether the member votes now.
    #[must_use]
    pub fn votes(&self) -> bool {
        let marker = self.marker.as_ref().ok().and_then(Option::as_ref);
        marker.is_some_and(|marker| marker.votes_in == Some(Duration::ZERO))
    }
}

/// What the marker of a member says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MarkerReport {
    /// The id of the quorum.
    pub quorum: Uuid,
    /// The time until the member votes; zero if it votes. `None`: it does not, see `difference`.
    pub votes_in: Option<Duration>,
    /// Why the marker does not count.
    pub difference: Option<&'static str>,
}

/// Makes a quorum of blank members that votes at once: the caller says that no locks were granted
/// on it. Members that are blank in a quorum which exists get a marker and wait, unless `new` says
/// that the quorum has granted nothing so far.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a wrong URL, and for a member of another quorum; the error of a
/// member that does not answer, because all of them are needed.
///
/// # Cancel safety
/// Each marker is written in a step of its own. The next call completes the set.
pub async fn init(
    target: impl Into<Target>,
    drivers: &Drivers,
    new: bool,
) -> Result<Vec<MemberReport>> {
    let config = config_of(target, drivers)?;
    let members = open_all(&config, drivers, true).await?;
    let agreement = &config.agreement;
    let mut tries = admission::TRIES;
    loop {
        let looks = admission::look_at_all(&members).await;
        if let Some(error) = looks.iter().find_map(|look| look.as_ref().err()) {
            return Err(error.clone());
        }
        let found = admission::decide(&members, agreement, &looks)?;
        let blank = looks.iter().flatten().all(|look| look.marked.is_none());
        // An id of its own, so that a marker which a client wrote for another quorum of the same
        // names is noticed.
        let quorum = if blank { Uuid::new_v4() } else { found };
        let at_once = blank || new;
        let mut written = true;
        // As in `admission::complete`: one after the other, up to the first conflict.
        let mut named: Vec<_> = members.all().iter().zip(looks.iter().flatten()).collect();
        named.sort_by_key(|(member, _)| member.name());
        for (member, look) in named {
            let kept = look.age_since_loss().is_some();
            let votes_at_once = |(_, marker): &(_, Marker)| marker.at_once || !new;
            let is_current = kept && look.marked.as_ref().is_some_and(votes_at_once);
            if !is_current {
                let marker = admission::marker_of(member, agreement, quorum, &looks, look, at_once);
                written = admission::write(member, marker, look.expect()).await?;
            }
            if !written {
                break;
            }
        }
        if written {
            break;
        }
        // A client wrote a marker at the same time, or two members are one server.
        tries -= 1;
        if tries == 0 {
            let problem = "other clients change the markers of the quorum again and again";
            return Err(Error::new(ErrorKind::Unavailable, problem).on(NAME));
        }
    }
    let report = report(&members, &config).await;
    members.close().await;
    Ok(report)
}

/// Reads the markers of all members.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a wrong URL. A member that does not answer is a part of the
/// report.
///
/// # Cancel safety
/// Safe.
pub async fn show(target: impl Into<Target>, drivers: &Drivers) -> Result<Vec<MemberReport>> {
    let config = config_of(target, drivers)?;
    let members = open_all(&config, drivers, false).await?;
    let report = report(&members, &config).await;
    members.close().await;
    Ok(report)
}

/// Gives members that have lost their memory a marker again, as every client does by itself.
///
/// # Errors
/// As opening the quorum.
///
/// # Cancel safety
/// As [`init`].
pub async fn readmit(target: impl Into<Target>, drivers: &Drivers) -> Result<Vec<MemberReport>> {
    let config = config_of(target, drivers)?;
    let members = open_all(&config, drivers, false).await?;
    admission::find_quorum(&members, &config.agreement).await?;
    let report = report(&members, &config).await;
    members.close().await;
    Ok(report)
}

/// Moves a quorum to another list of members, or to another longest lease. The new members vote
/// after the longest lease that the old ones may have granted.
///
/// The markers of a majority of the old list are replaced before the first marker of the new list
/// is written: {1, 2} of the old list {1, 2, 3} and {4, 5} of the new list {3, 4, 5} would
/// otherwise be two quorums at the same time. With `force`, the caller says that the old members
/// which do not answer never come back.
///
/// # Errors
/// [`ErrorKind::Unavailable`] when too few old members answer, or not all of the new ones;
/// [`ErrorKind::InvalidConfig`] for a wrong URL, and for a member of a third quorum.
///
/// # Cancel safety
/// Each marker is written in a step of its own. After a call that ended early, the quorum may grant
/// nothing; the same call again completes the move.
pub async fn reconfigure(
    old: impl Into<Target>,
    new: impl Into<Target>,
    drivers: &Drivers,
    force: bool,
) -> Result<Vec<MemberReport>> {
    let (from, to) = (config_of(old, drivers)?, config_of(new, drivers)?);
    let old_members = open_all(&from, drivers, false).await?;
    let new_members = open_all(&to, drivers, true).await?;
    let looks = admission::look_at_all(&old_members).await;
    // The id follows from the old one, so a second call goes on with what the first has begun.
    let moved = |old: Uuid| Uuid::new_v5(&to.agreement.digest(), old.as_bytes());
    let mut id = None;
    for (member, look) in old_members.all().iter().zip(&looks) {
        let Ok(Look {
            marked: Some((_, marker)),
            ..
        }) = look
        else {
            continue;
        };
        let told = if marker.agreement == from.agreement.digest() {
            moved(marker.quorum)
        } else if [Marker::RETIRED, to.agreement.digest()].contains(&marker.agreement) {
            marker.quorum
        } else {
            let problem = "its marker was written for other members or another max_lease than \
                           those of the old list";
            return Err(member.of_this(Error::new(ErrorKind::InvalidConfig, problem).on(NAME)));
        };
        if *id.get_or_insert(told) != told {
            let problem = "its marker belongs to another quorum than those before it";
            return Err(member.of_this(Error::new(ErrorKind::InvalidConfig, problem).on(NAME)));
        }
    }
    let Some(id) = id else {
        let problem = "the old members have no markers: make a new quorum with `distlock quorum \
                       init`";
        return Err(Error::new(ErrorKind::InvalidConfig, problem).on(NAME));
    };
    let longest = admission::longest_lease_ms(&from.agreement, &looks);
    let agreed = u64::try_from(to.agreement.max_lease.as_millis()).unwrap_or(u64::MAX);
    let longest_lease_ms = longest.max(agreed);
    let marker = |member: &Member, look: &Look, agreement: Uuid| Marker {
        quorum: id,
        agreement,
        member: member.name().to_owned(),
        epoch: look.epoch.clone(),
        longest_lease_ms,
        at_once: false,
    };
    // A member that has left an earlier quorum counts for nobody, so it can join this one.
    let check_is_free = |member: &Member, look: &Look, of_old: Uuid| {
        let Some((_, stored)) = &look.marked else {
            return Ok(());
        };
        if [Marker::RETIRED, of_old].contains(&stored.agreement) || stored.quorum == id {
            return Ok(());
        }
        let problem = format!("it belongs to quorum {}", stored.quorum);
        Err(member.of_this(Error::new(ErrorKind::InvalidConfig, problem).on(NAME)))
    };
    // Looked at before the old members are retired: a move that cannot end must not begin.
    for (member, look) in new_members
        .all()
        .iter()
        .zip(admission::look_at_all(&new_members).await)
    {
        // A member of both lists is not retired yet.
        check_is_free(member, &look?, from.agreement.digest())?;
    }
    let mut replaced = 0;
    for (member, look) in old_members.all().iter().zip(&looks) {
        let Ok(look) = look else { continue };
        let is_replaced = look.marked.as_ref().is_some_and(|(_, it)| it.quorum == id);
        let retired = marker(member, look, Marker::RETIRED);
        if is_replaced || admission::write(member, retired, look.expect()).await? {
            replaced += 1;
        }
    }
    let majority = old_members.all().len() / 2 + 1;
    if replaced < majority && !force {
        let problem = format!(
            "the markers of {replaced} of {} old members are replaced, and {majority} must be: \
             with the others, the old list could still grant locks; `--force` says that the \
             members which do not answer never come back",
            old_members.all().len()
        );
        return Err(Error::new(ErrorKind::Unavailable, problem).on(NAME));
    }
    for member in new_members.all() {
        let look = admission::look(member).await?;
        let expected = marker(member, &look, to.agreement.digest());
        let stored = look.marked.as_ref().map(|(_, stored)| stored);
        if stored == Some(&expected) {
            continue;
        }
        check_is_free(member, &look, Marker::RETIRED)?;
        if !admission::write(member, expected, look.expect()).await? {
            let problem = "another client changed the marker at the same time: run it again";
            return Err(member.of_this(Error::new(ErrorKind::Unavailable, problem).on(NAME)));
        }
    }
    let report = report(&new_members, &to).await;
    old_members.close().await;
    new_members.close().await;
    Ok(report)
}

fn config_of(target: impl Into<Target>, drivers: &Drivers) -> Result<QuorumConfig> {
    QuorumConfig::from_parts(target.into().parts()?, drivers)
}

async fn open_all(config: &QuorumConfig, drivers: &Drivers, needs_all: bool) -> Result<Members> {
    let needed = if needs_all { config.members.len() } else { 1 };
    let members = config.members.clone();
    let members = Members::open(members, drivers, needed, config::check_member).await?;
    members.all_tried().await;
    Ok(members)
}

async fn report(members: &Members, config: &QuorumConfig) -> Vec<MemberReport> {
    let looks = admission::look_at_all(members).await;
    let reports = members
        .all()
        .iter()
        .zip(looks)
        .map(|(member, look)| MemberReport {
            name: member.name().to_owned(),
            url: member.masked_url().to_owned(),
            marker: look.map(|look| told(&look, member.name(), config)),
        });
    reports.collect()
}

fn told(look: &Look, member: &str, config: &QuorumConfig) -> Option<MarkerReport> {
    let (_, marker) = look.marked.as_ref()?;
    let age = look.age_since_loss();
    let difference = match marker.is_of(marker.quorum, config.agreement.digest(), member) {
        Err(difference) => Some(difference),
        Ok(()) if age.is_none() => {
            Some("the member was restarted or lost its locks, and the next client admits it again")
        }
        Ok(()) => None,
    };
    let left = |age: Duration| {
        let silence = silence(Duration::from_millis(marker.longest_lease_ms));
        if marker.at_once {
            Duration::ZERO
        } else {
            silence.saturating_sub(age)
        }
    };
    Some(MarkerReport {
        quorum: marker.quorum,
        votes_in: age.filter(|_| difference.is_none()).map(left),
        difference,
    })
}
