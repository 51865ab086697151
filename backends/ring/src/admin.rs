//! What an operator does with a ring: makes it, looks at its view, and changes its members.
//!
//! Invariant: a view is changed by compare-and-swap only, and then confirmed by a second write. A
//! publisher that dies between the two changes nothing: the next reader confirms the view.

use std::{collections::BTreeSet, time::Duration};

use distlock_backend_kit::{Drivers, Member, Members, Target};
use distlock_core::{
    AcquireRequest, Attempt, Clock, Entry, Error, ErrorKind, Expect, HolderLabel, Lease, LockName,
    Moment, OwnerId, RecordKey, Records, Result, Store, Ttl, Written, at_most, micros, unix_time,
};
use futures_util::future::join_all;
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

/// The time for which a member is asked again whose lock another operator has, and the pause. A
/// lock that is taken lasts longer than this time and [`PATIENCE`], so all are held together.
const ASKED_AGAIN: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(50);

/// The record by which the ring store's clock is read before there is a view.
const CLOCK: &str = "distlock-ring-clock";

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

/// Where a name belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamePlace {
    /// The member that grants the lock of this name.
    pub member: String,
    /// What is left of the quarantine of a name that moves; zero if the name can be locked.
    pub left: Duration,
}

/// Makes a ring of all members of the configuration. All of them must answer.
///
/// All names are blocked for 71 s, because the ring store may have lost an earlier view of the same
/// ring. With `new`, the caller says that no lock was granted at these members.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a wrong URL or wrong terms, for a member that grants no lease
/// of the longest time, for two members that are one server, and for a ring that exists; the error
/// of a member or of the ring store that does not answer.
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

/// Replaces a view that was restored from a backup by one of the same members and terms. The view
/// that was lost may have had other members, so all names are blocked for 71 s.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a wrong URL and without a view; the errors of the ring store.
///
/// # Cancel safety
/// Safe: the view is replaced in one step, and clients confirm it.
pub async fn reset(target: impl Into<Target>, drivers: &Drivers) -> Result<RingReport> {
    let ring = Opened::open(target, drivers).await?;
    let changed = ring.reset().await;
    let report = ring.reported(changed).await;
    ring.close().await;
    report
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
    let (store, _) = config.open_records(drivers).await?;
    let seen = read(&*store.records(), &*store.clock()).await;
    let report = seen.and_then(|seen| seen.ok_or_else(no_view));
    let report = report.map(|seen| report_of(&seen, &config, &*store.clock()));
    store.close().await;
    report
}

/// Reads the view, and says where a name belongs.
///
/// # Errors
/// As [`show`].
///
/// # Cancel safety
/// Safe.
pub async fn locate(
    target: impl Into<Target>,
    drivers: &Drivers,
    name: &LockName,
) -> Result<NamePlace> {
    let config = config_of(target, drivers)?;
    let (store, _) = config.open_records(drivers).await?;
    let seen = read(&*store.records(), &*store.clock()).await;
    let place = seen.and_then(|seen| seen.ok_or_else(no_view)).map(|seen| {
        let standing = seen.standing(name, store.clock().now());
        NamePlace {
            member: standing.owner.to_owned(),
            left: standing.left,
        }
    });
    store.close().await;
    place
}

/// Adds a member of the configuration to the ring. It must answer.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a member that the configuration lacks, that is active already,
/// that grants no lease of the longest time, or that is the server of another member; the errors of
/// the ring store.
///
/// # Cancel safety
/// Safe: the change is one step, and clients confirm it.
pub async fn add(target: impl Into<Target>, drivers: &Drivers, member: &str) -> Result<RingReport> {
    let ring = Opened::open(target, drivers).await?;
    let changed = ring
        .change(|_, members, removals| {
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
    let report = ring.reported(changed).await;
    ring.close().await;
    report
}

/// Removes a member from the ring. It need not answer. A member that the watch has removed is not
/// added back any more.
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
        .change(|_, members, removals| {
            let watched = removals.len();
            removals.retain(|it| it.member != member);
            if !members.remove(member) && removals.len() == watched {
                return Err(wrong(format!("member {member:?} is not active")));
            }
            Ok(None)
        })
        .await;
    let report = ring.reported(changed).await;
    ring.close().await;
    report
}

fn wrong(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, problem).on(NAME)
}

fn check_terms(terms: Terms) -> Result<()> {
    let validities = Duration::from_millis(200)..=LONGEST_VALIDITY;
    let leases = Duration::from_secs(1)..=LONGEST_LEASE;
    let Terms {
        validity,
        max_lease,
    } = terms;
    if !validities.contains(&validity) {
        let problem = format!("the validity of a view is 200ms to 10s, and not {validity:?}");
        return Err(wrong(problem));
    }
    if !leases.contains(&max_lease) {
        let problem = format!("the longest lease of a ring is 1s to 60s, and not {max_lease:?}");
        return Err(wrong(problem));
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
    /// How long before a crash of the ring store a write may be lost with it.
    loses: Duration,
    pub(crate) members: Members,
}

impl Opened {
    pub(crate) async fn open(target: impl Into<Target>, drivers: &Drivers) -> Result<Self> {
        let config = config_of(target, drivers)?;
        let (store, loses) = config.open_records(drivers).await?;
        let opening = Members::open(config.members.clone(), drivers, 0, config::check_member);
        match opening.await {
            Ok(members) => {
                members.all_tried().await;
                Ok(Self {
                    config,
                    store,
                    loses,
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
        config::check_lease(self.loses, terms.max_lease)?;
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
        self.check_leases(&names, terms.max_lease)?;
        let lead_us = self
            .lead(&read_clock(&*records, &*clock).await?, &names, &names)
            .await?;
        let view = View {
            ring: Uuid::new_v4(),
            number: self.number(),
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

    /// Changes the members of the present view, and those that the watch may add back, by `step`,
    /// which returns the member that must answer. Returns whether anything was changed.
    pub(crate) async fn change(
        &self,
        step: impl Fn(&View, &mut BTreeSet<String>, &mut Vec<Removal>) -> Result<Option<String>>,
    ) -> Result<bool> {
        for _ in 0..TRIES {
            let seen = self.read().await?.ok_or_else(no_view)?;
            let before: BTreeSet<String> = seen.view.members.iter().cloned().collect();
            let (mut after, mut removals) = (before.clone(), seen.view.removals.clone());
            let needed = step(&seen.view, &mut after, &mut removals)?;
            let needed: BTreeSet<String> = needed.into_iter().collect();
            if after == before && removals == seen.view.removals {
                return Ok(false);
            }
            if after.is_empty() {
                let last = seen.view.members.join(", ");
                return Err(wrong(format!("member {last:?} is the last one, and stays")));
            }
            let all: BTreeSet<String> = before.union(&after).cloned().collect();
            self.check_leases(&needed, seen.view.max_lease())?;
            let lead = self.lead(&seen.reading(), &all, &needed).await?;
            let after = after.into_iter().collect();
            let mut next = seen.view.next(seen.age, after, self.number());
            next.removals = removals;
            next.lead_us = next.lead_us.max(lead);
            if self.publish(&seen, &next).await? {
                return Ok(true);
            }
        }
        let problem = "others change the ring again and again";
        Err(Error::new(ErrorKind::Unavailable, problem).on(NAME))
    }

    async fn reset(&self) -> Result<bool> {
        let seen = self.read().await?.ok_or_else(no_view)?;
        let all = seen.view.members.iter().cloned().collect();
        let lead = self.lead(&seen.reading(), &all, &BTreeSet::new()).await?;
        let mut next = seen.view.reset(self.number());
        next.lead_us = next.lead_us.max(lead);
        if self.publish(&seen, &next).await? {
            return Ok(true);
        }
        let problem = "another operator has changed the ring meanwhile";
        Err(Error::new(ErrorKind::Unavailable, problem).on(NAME))
    }

    /// A lower bound of the number of the next view: the operator's clock.
    fn number(&self) -> u64 {
        whole_millis(unix_time(&*self.store.clock()))
    }

    /// Writes the view after the one that was seen, and confirms it. Returns whether the ring store
    /// still had that one.
    async fn publish(&self, seen: &Seen, next: &View) -> Result<bool> {
        config::check_lease(self.loses, next.max_lease())?;
        let (records, key) = (self.store.records(), View::key()?);
        let expect = Expect::Version(seen.entry.version);
        if records.put(&key, &next.stored()?, expect).await? == Written::Conflict {
            return Ok(false);
        }
        // The first write is seen by everybody now, so the quarantine can begin.
        if let Some(seen) = self.read().await?
            && !seen.view.confirmed
        {
            let expect = Expect::Version(seen.entry.version);
            records
                .put(&key, &seen.view.confirmed().stored()?, expect)
                .await?;
        }
        Ok(true)
    }

    /// The view after a step.
    async fn reported(&self, changed: Result<bool>) -> Result<RingReport> {
        changed?;
        self.report().await
    }

    /// Checks that these members grant the longest lease. Those that are away are left out.
    fn check_leases(&self, names: &BTreeSet<String>, longest: Duration) -> Result<()> {
        for member in names.iter().filter_map(|name| self.member(name)) {
            let Ok((handle, _)) = member.begin_although_silent() else {
                continue;
            };
            if let Some(most) = handle.lock.capabilities().max_lease
                && most < longest
            {
                let problem = format!(
                    "the longest lease of the ring is {longest:?}, and this member grants {most:?} \
                     at most"
                );
                return Err(member.of_this(wrong(problem)));
            }
        }
        Ok(())
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
        let label = HolderLabel::new(format!("ring {}", Uuid::new_v4().simple()))?;
        let begun = clock.now();
        // By now at least, the ring store's clock has gone on since it was read.
        let store = ring_store.at(begun);
        let members = all.iter().filter_map(|name| self.member(name));
        let asked = members.map(|member| {
            let (clock, label) = (&*clock, &label);
            async move {
                loop {
                    let probed = probe(member, clock, label, begun).await;
                    let is_taken = matches!(
                        &probed,
                        Ok(Probed {
                            told: Told::Taken,
                            ..
                        })
                    );
                    if !is_taken || clock.now().since(begun) > ASKED_AGAIN {
                        return (member, probed);
                    }
                    clock.sleep(PAUSE).await;
                }
            }
        });
        let asked = join_all(asked).await;
        let mut lead = Ok(0);
        for (member, probed) in &asked {
            // Which of two twins has the lock is a matter of chance, so both are needed then.
            let mut is_needed = needed.contains(member.name());
            let told = match probed {
                Ok(probed) => match probed.told {
                    Told::Clock { latest, .. } => Ok(latest),
                    Told::Twin => {
                        is_needed |= !needed.is_empty();
                        let problem = "it is the server of another member";
                        Err(member.of_this(wrong(problem)))
                    }
                    Told::Taken => {
                        let problem = "another operator, or the watch, looks at it: try again";
                        let error = Error::new(ErrorKind::Unavailable, problem).on(NAME);
                        Err(member.of_this(error))
                    }
                },
                Err(error) => Err(error.clone()),
            };
            match told {
                Ok(clock) => lead = lead.map(|lead| clock.saturating_sub(store).max(lead)),
                Err(error) if is_needed && lead.is_ok() => lead = Err(error),
                Err(error) => {
                    let member = member.name();
                    tracing::warn!(member, %error, "the clock of a member is unknown");
                }
            }
        }
        let held = asked.iter().filter_map(|(member, probed)| {
            let probed = probed.as_ref().ok()?;
            Some(probed.release(member))
        });
        join_all(held).await;
        lead
    }
}

/// What a lock at a member has told, that is held until [`release`](Self::release).
#[derive(Debug)]
pub(crate) struct Probed {
    lease: Option<Lease>,
    pub(crate) told: Told,
}

/// What a lock at a member tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The clock of the member by its token, in microseconds: what it can have been, at the least
    /// and at the most, at a moment before the question. The answer may have come late.
    Clock { earliest: u64, latest: u64 },
    /// The same operator has the lock, as that of another member.
    Twin,
    /// Somebody else has the lock.
    Taken,
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
}

/// Takes a lock at a member for a moment, under this label, to learn the member's clock at the
/// moment `begun`.
pub(crate) async fn probe(
    member: &Member,
    clock: &dyn Clock,
    label: &HolderLabel,
    begun: Moment,
) -> Result<Probed> {
    let (handle, sent) = member.begin_although_silent()?;
    let (name, owner) = (LockName::new(PROBE)?, OwnerId::new());
    let lease = Ttl::new(PROBE_LEASE)?;
    let request = AcquireRequest::new(name.clone(), owner, lease, label.clone());
    let asked = clock.now();
    let asking = at_most(clock, PATIENCE, handle.lock.try_acquire(&request));
    let answer = asking.await.unwrap_or_else(|| {
        let problem = format!("it did not answer within {PATIENCE:?}");
        Err(Error::new(ErrorKind::Unavailable, problem))
    });
    Ok(match sent.ended(answer)? {
        Attempt::Acquired(grant) => {
            let at = |moment: Moment| {
                grant
                    .token
                    .get()
                    .saturating_sub(micros(moment.since(begun)))
            };
            Probed {
                told: Told::Clock {
                    earliest: at(clock.now()),
                    latest: at(asked),
                },
                lease: Some(Lease::new(name, owner, Some(grant.token))),
            }
        }
        Attempt::Busy(holder) => Probed {
            lease: None,
            told: if holder.is_some_and(|holder| holder.holder == label.as_str()) {
                Told::Twin
            } else {
                Told::Taken
            },
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
