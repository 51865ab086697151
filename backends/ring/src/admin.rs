//! What an operator does with a ring: makes it, looks at its view, and changes its members.
//!
//! Invariant: a view is changed by compare-and-swap only, and then confirmed by a second write. A
//! publisher that dies between the two changes nothing: the next reader confirms the view.

use std::{collections::BTreeSet, time::Duration};

use distlock_backend_kit::{Drivers, Member, Members, Target};
use distlock_core::{
    AcquireRequest, Attempt, Clock, Entry, Error, ErrorKind, Expect, HolderLabel, Lease, LockName,
    OwnerId, RecordKey, Records, Result, Store, Ttl, Written, at_most, unix_time,
};
use uuid::Uuid;

use crate::{
    config::{self, RingConfig},
    reads::no_view,
    shared::NAME,
    view::{LONGEST_LEASE, LONGEST_VALIDITY, Reading, Removal, Seen, View},
};

/// The tries to write a view that others change at the same time.
const TRIES: u32 = 5;

/// The lock at each member whose token tells the member's clock. It is held for a moment.
const PROBE: &str = "distlock:ring";

/// The lease of that lock, for a process that dies meanwhile.
const PROBE_LEASE: Duration = Duration::from_secs(2);

/// The longest time that a member has to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The record by which the ring store's clock is read before there is a view.
const CLOCK: &str = "ring-clock";

/// The times that all clients of a ring agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a client may use the view without reading it again, up to 10 s. A short time costs
    /// reads, and a long one keeps names that move blocked for longer.
    pub validity: Duration,
    /// The longest lease, 1 s to 60 s. A name that moves is blocked for as long.
    pub max_lease: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            validity: Duration::from_secs(2),
            max_lease: Duration::from_secs(10),
        }
    }
}

/// The view of a ring.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RingReport {
    /// The id of the ring.
    pub ring: Uuid,
    /// The number of the view.
    pub number: u64,
    /// The members of the configuration, and those that it lacks.
    pub members: Vec<RingMember>,
    /// The times that all clients agree on.
    pub terms: Terms,
    /// The earlier views whose names may still be held.
    pub pending: Vec<PendingReport>,
}

/// A member of a ring.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RingMember {
    /// The name.
    pub name: String,
    /// The URL without its password; `None` if the configuration has no such member.
    pub url: Option<String>,
    /// Whether it has a part of the names.
    pub active: bool,
}

/// An earlier view. A name that had another owner there cannot be locked yet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingReport {
    /// The members; empty if the view was lost and all names wait.
    pub members: Vec<String>,
    /// What is left of the quarantine.
    pub left: Duration,
}

/// Makes a ring of all members of the configuration. All of them must answer.
///
/// All names are blocked for 71 s, because the ring store may have lost an earlier view of the same
/// ring. With `new`, the caller says that no lock was granted at these members.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a wrong URL or wrong terms, for two members that are one
/// server, and for a ring that exists; the error of a member or of the ring store that does not
/// answer.
///
/// # Cancel safety
/// Safe: the view is written in one step.
pub async fn init(
    target: impl Into<Target>,
    drivers: &Drivers,
    terms: Terms,
    new: bool,
) -> Result<RingReport> {
    check_terms(terms)?;
    let ring = Opened::open(target, drivers).await?;
    let made = ring.init(terms, new).await;
    ring.close().await;
    made
}

/// Reads the view.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a wrong URL and without a view; the errors of the ring store.
///
/// # Cancel safety
/// Safe.
pub async fn show(target: impl Into<Target>, drivers: &Drivers) -> Result<RingReport> {
    let config = config_of(target, drivers)?;
    let store = config.open_records(drivers).await?;
    let seen = read(&*store.records(), &*store.clock()).await;
    let report = seen.and_then(|seen| seen.ok_or_else(no_view));
    let report = report.map(|seen| report_of(&seen, &config, &*store.clock()));
    store.close().await;
    report
}

/// Adds a member of the configuration to the ring. It must answer.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a member that the configuration lacks, that is active already,
/// or that is the server of another member; the errors of the ring store.
///
/// # Cancel safety
/// Safe: the change is one step, and clients confirm it.
pub async fn add(target: impl Into<Target>, drivers: &Drivers, member: &str) -> Result<RingReport> {
    let ring = Opened::open(target, drivers).await?;
    let changed = ring
        .change(|members, removals| {
            removals.retain(|it| it.member != member);
            if ring.member(member).is_none() {
                let problem = format!("the configuration has no member {member:?}");
                return Err(wrong(problem));
            }
            if !members.insert(member.to_owned()) {
                return Err(wrong(format!("member {member:?} is active already")));
            }
            Ok(Some(member.to_owned()))
        })
        .await;
    ring.close().await;
    changed
}

/// Removes a member from the ring. It need not answer.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a member that is not active, and for the last one; the errors
/// of the ring store.
///
/// # Cancel safety
/// Safe: the change is one step, and clients confirm it.
pub async fn remove(
    target: impl Into<Target>,
    drivers: &Drivers,
    member: &str,
) -> Result<RingReport> {
    let ring = Opened::open(target, drivers).await?;
    let changed = ring
        .change(|members, removals| {
            removals.retain(|it| it.member != member);
            if !members.remove(member) {
                return Err(wrong(format!("member {member:?} is not active")));
            }
            if members.is_empty() {
                let problem = format!("member {member:?} is the last one, and stays");
                return Err(wrong(problem));
            }
            Ok(None)
        })
        .await;
    ring.close().await;
    changed
}

fn wrong(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, problem).on(NAME)
}

fn check_terms(terms: Terms) -> Result<()> {
    let validities = Duration::from_millis(200)..=LONGEST_VALIDITY;
    let leases = Duration::from_secs(1)..=LONGEST_LEASE;
    if !validities.contains(&terms.validity) {
        return Err(wrong("the validity of a view is 200 ms to 10 s"));
    }
    if !leases.contains(&terms.max_lease) {
        return Err(wrong("the longest lease of a ring is 1 s to 60 s"));
    }
    Ok(())
}

fn config_of(target: impl Into<Target>, drivers: &Drivers) -> Result<RingConfig> {
    RingConfig::from_parts(target.into().parts()?, drivers)
}

/// Reads the view once; `None` without one.
async fn read(records: &dyn Records, clock: &dyn Clock) -> Result<Option<Seen>> {
    let sent = clock.now();
    let entry = records.get(&View::key()?).await?;
    entry
        .map(|entry| Seen::new(entry, sent, clock.now()))
        .transpose()
}

/// Reads the ring store's clock, by a record that is there for a moment.
async fn read_clock(records: &dyn Records, clock: &dyn Clock) -> Result<Reading> {
    let key = RecordKey::new(CLOCK)?;
    records.put(&key, b"", Expect::Absent).await?;
    let entry = records.get(&key).await?;
    let received = clock.now();
    let Some(Entry {
        version,
        store_time: Some(store_time),
        ..
    }) = entry
    else {
        let problem = "the ring store does not tell its clock, or another operator works on it";
        return Err(Error::new(ErrorKind::Unavailable, problem).on(NAME));
    };
    records.delete(&key, version).await?;
    Ok(Reading {
        store_time,
        received,
    })
}

/// A ring that an operator, or the watch, works on.
#[derive(Debug)]
pub(crate) struct Opened {
    config: RingConfig,
    pub(crate) store: Store,
    pub(crate) members: Members,
}

impl Opened {
    pub(crate) async fn open(target: impl Into<Target>, drivers: &Drivers) -> Result<Self> {
        let config = config_of(target, drivers)?;
        let store = config.open_records(drivers).await?;
        let opening = Members::open(config.members.clone(), drivers, 0, config::check_member);
        match opening.await {
            Ok(members) => {
                members.all_tried().await;
                Ok(Self {
                    config,
                    store,
                    members,
                })
            }
            Err(error) => {
                store.close().await;
                Err(error)
            }
        }
    }

    pub(crate) async fn close(&self) {
        self.members.close().await;
        self.store.close().await;
    }

    /// The view, if there is one.
    pub(crate) async fn read(&self) -> Result<Option<Seen>> {
        read(&*self.store.records(), &*self.store.clock()).await
    }

    fn member(&self, name: &str) -> Option<&Member> {
        let mut members = self.members.all().iter();
        members
            .find(|member| member.name() == name)
            .map(|member| &**member)
    }

    async fn init(&self, terms: Terms, new: bool) -> Result<RingReport> {
        let (records, clock) = (self.store.records(), self.store.clock());
        if self.read().await?.is_some() {
            let problem = "the ring exists: change it with `distlock ring add` and `remove`";
            return Err(wrong(problem));
        }
        let mut members: Vec<_> = self
            .members
            .all()
            .iter()
            .map(|member| member.name().to_owned())
            .collect();
        members.sort_unstable();
        let names = members.iter().cloned().collect();
        let lead_us = self
            .lead(&read_clock(&*records, &*clock).await?, &names, &names)
            .await?;
        let view = View {
            ring: Uuid::new_v4(),
            number: whole_millis(unix_time(&*clock)),
            validity_ms: whole_millis(terms.validity),
            max_lease_ms: whole_millis(terms.max_lease),
            pending: Vec::new(),
            removals: Vec::new(),
            lead_us,
            confirmed: true,
            members,
        };
        let stored = view.first(new).stored()?;
        match records.put(&View::key()?, &stored, Expect::Absent).await? {
            Written::Stored(_) => self.report().await,
            Written::Conflict => Err(wrong("another operator has made the ring meanwhile")),
        }
    }

    /// Changes the members by `step`, which returns the member that must answer.
    pub(crate) async fn change(
        &self,
        step: impl Fn(&mut BTreeSet<String>, &mut Vec<Removal>) -> Result<Option<String>>,
    ) -> Result<RingReport> {
        let (records, clock) = (self.store.records(), self.store.clock());
        for _ in 0..TRIES {
            let seen = self.read().await?.ok_or_else(no_view)?;
            let before: BTreeSet<String> = seen.view.members.iter().cloned().collect();
            let (mut after, mut removals) = (before.clone(), seen.view.removals.clone());
            let needed: BTreeSet<String> = step(&mut after, &mut removals)?.into_iter().collect();
            // Somebody else has made the same change.
            if after == before {
                return self.report().await;
            }
            let all: BTreeSet<String> = before.union(&after).cloned().collect();
            let lead = self.lead(&seen.reading(), &all, &needed).await?;
            let number = whole_millis(unix_time(&*clock));
            let after = after.into_iter().collect();
            let mut next = seen.view.next(seen.age, after, number);
            next.removals = removals;
            // A raised token of an earlier view may be as far ahead, so it never falls.
            next.lead_us = next.lead_us.max(lead);
            let expect = Expect::Version(seen.entry.version);
            if records.put(&View::key()?, &next.stored()?, expect).await? == Written::Conflict {
                continue;
            }
            // The first write is seen by everybody now, so the quarantine can begin.
            if let Some(seen) = self.read().await?
                && !seen.view.confirmed
            {
                let expect = Expect::Version(seen.entry.version);
                let stored = seen.view.confirmed().stored()?;
                records.put(&View::key()?, &stored, expect).await?;
            }
            return self.report().await;
        }
        let problem = "others change the ring again and again";
        Err(Error::new(ErrorKind::Unavailable, problem).on(NAME))
    }

    async fn report(&self) -> Result<RingReport> {
        let seen = self.read().await?.ok_or_else(no_view)?;
        Ok(report_of(&seen, &self.config, &*self.store.clock()))
    }

    /// How far the tokens of the members in `all` are ahead of the ring store's clock, in
    /// microseconds. Those that do not answer are left out, unless they are `needed`.
    ///
    /// A lock at each member tells it, because its token is the member's clock, or above it. All
    /// are held at the same time, so two members that are one server are found.
    async fn lead(
        &self,
        ring_store: &Reading,
        all: &BTreeSet<String>,
        needed: &BTreeSet<String>,
    ) -> Result<u64> {
        let clock = self.store.clock();
        let mut held = Vec::new();
        let mut result = Ok(0);
        for name in all {
            let Some(member) = self.member(name) else {
                continue;
            };
            // By now at least, the ring store's clock has gone on since it was read.
            let store = ring_store.at(clock.now());
            let told = probe(member, &*clock).await.and_then(|probed| {
                let told = probed.clock;
                held.push((member, probed));
                told.ok_or_else(|| {
                    let problem = "it is the server of another member, or another operator \
                                   changes the ring now";
                    member.of_this(wrong(problem))
                })
            });
            match told {
                Ok(token) => result = result.map(|lead| token.saturating_sub(store).max(lead)),
                Err(error) if needed.contains(name) && result.is_ok() => result = Err(error),
                Err(error) => {
                    tracing::warn!(member = name, %error, "the clock of a member is unknown");
                }
            }
        }
        for (member, probed) in held {
            probed.release(member).await;
        }
        result
    }
}

/// What a lock at a member has told, that is held until [`release`](Self::release).
#[derive(Debug)]
pub(crate) struct Probed {
    lease: Option<Lease>,
    /// The clock of the member by its tokens, in microseconds; `None` if somebody else has the
    /// lock.
    pub(crate) clock: Option<u64>,
}

impl Probed {
    pub(crate) async fn release(&self, member: &Member) {
        if let Some(lease) = &self.lease
            && let Ok((handle, sent)) = member.begin_although_silent()
        {
            // It ends by itself in a moment.
            let _ = handle.lock.release(lease).await;
            sent.answered();
        }
    }

    #[cfg(test)]
    pub(crate) const fn of_clock(micros: u64) -> Self {
        Self {
            lease: None,
            clock: Some(micros),
        }
    }
}

/// Takes a lock at a member for a moment.
pub(crate) async fn probe(member: &Member, clock: &dyn Clock) -> Result<Probed> {
    let (handle, sent) = member.begin_although_silent()?;
    let (name, owner) = (LockName::new(PROBE)?, OwnerId::new());
    let holder = HolderLabel::new("ring")?;
    let request = AcquireRequest::new(name.clone(), owner, Ttl::new(PROBE_LEASE)?, holder);
    let asked = at_most(clock, PATIENCE, handle.lock.try_acquire(&request));
    let answer = asked.await.unwrap_or_else(|| {
        let problem = format!("it did not answer within {PATIENCE:?}");
        Err(Error::new(ErrorKind::Unavailable, problem))
    });
    let answer = answer.map_err(|error| member.of_this(error))?;
    sent.answered();
    Ok(match answer {
        Attempt::Acquired(grant) => Probed {
            lease: Some(Lease::new(name, owner, Some(grant.token))),
            clock: Some(grant.token.get()),
        },
        Attempt::Busy(_) => Probed {
            lease: None,
            clock: None,
        },
    })
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn report_of(seen: &Seen, config: &RingConfig, clock: &dyn Clock) -> RingReport {
    let view = &seen.view;
    let now = clock.now();
    let configured = config.members.iter().map(|member| RingMember {
        name: member.name.clone(),
        url: Some(member.target.masked_url()),
        active: view.members.contains(&member.name),
    });
    let mut members: Vec<_> = configured.collect();
    for name in &view.members {
        if members.iter().all(|member| member.name != *name) {
            members.push(RingMember {
                name: name.clone(),
                url: None,
                active: true,
            });
        }
    }
    let pending = view.pending.iter().map(|pending| PendingReport {
        members: pending.members.clone(),
        left: seen.left(pending, now),
    });
    RingReport {
        ring: view.ring,
        number: view.number,
        members,
        terms: Terms {
            validity: view.validity(),
            max_lease: view.max_lease(),
        },
        pending: pending.filter(|pending| !pending.left.is_zero()).collect(),
    }
}
