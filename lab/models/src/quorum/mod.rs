//! The lock that is held on a majority of independent stores.
//!
//! What is exact: which request a member executes, in which order and at which time; a request can
//! be late by any time, or lost. What is simplified:
//!
//! - A request is answered in the moment in which it is executed. A late answer is the same as a
//!   client that acts late, and a lost one is the same as a client that gives up.
//! - Time is a small number, equal for all. A member's clock may be ahead of it.
//! - Members have no order: states that differ in the order of members only are one state.

mod model;
mod settings;
mod steps;

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
};

/// Number of clients that take the lock. A client that only admits members is a step of its own.
const CLIENTS: usize = 2;

/// How far a member's token rises in one unit of time by its clock alone.
const TOKENS_PER_TICK: u8 = 4;

/// A quarter of a lease of two ticks, in tokens.
const QUARTER: u8 = TOKENS_PER_TICK / 2;

/// The one rule that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// The protocol as it is written.
    Whole,
    /// Members below the round's token are counted without a raise.
    NoRaise,
    /// A raise does not ask who owns the lease.
    RaiseWithoutOwner,
    /// A client has one owner for all of its rounds.
    OneOwner,
    /// At the member where a client waits, its rounds have the owner of its place in the queue.
    OwnerOfPlace,
    /// A grant counts without a look at the marker.
    MarkerNotRead,
    /// The marker is asked for together with the grant.
    MarkerReadBeforeGrant,
    /// A marker counts from the moment it was written.
    AgeNotCompared,
    /// A marker counts although the member has another epoch by now.
    EpochNotCompared,
    /// A member that forgot gets a marker that says that it may vote at once.
    VotesAtOnce,
    /// A raise changes the lease, not the counter.
    KvMember,
    /// A renewal counts where the marker is another quorum's.
    RenewalIgnoresMarker,
    /// A shorter renewal is over once a majority has answered it.
    CapPerLease,
    /// Nobody completes the markers of a first client that died.
    FirstClientMustFinish,
    /// A lowered `max_lease` shortens all waits at once.
    WaitsByNewLease,
    /// Clocks are not compared, and no raise waits.
    ClocksNotCompared,
    /// `reconfigure` begins with the new list, and dies before it has replaced the old markers.
    NewListFirst,
    /// A lease counts from its last answer.
    CountedFromAnswer,
}

/// The owner of one acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Owner {
    client: u8,
    round: u8,
}

/// The sender of requests that belong to no lease.
const NOBODY: Owner = Owner {
    client: u8::MAX,
    round: 0,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lease {
    owner: Owner,
    ends: u8,
}

/// The record by which a member says that it may vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Marker {
    /// Quorum id with the hash of list and `max_lease`: 0 is the old quorum, 1 the new one.
    quorum: u8,
    epoch: u8,
    /// The longest lease that may still run.
    longest: u8,
    /// By the member's clock.
    written: u8,
    at_once: bool,
}

/// A request to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Request {
    Grant,
    Raise { floor: u8 },
    Read,
    Renew { ttl: u8, sent: u8 },
    Regrant,
    Release,
    Admit { marker: Marker },
}

/// What a client made of a marker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Seen {
    #[default]
    Unread,
    Refused,
    Counts {
        ahead: u8,
    },
}

/// What a client knows of a member in its present round or lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Known {
    /// The token of the grant; 0 without one.
    granted: u8,
    /// The highest token that the member has confirmed to us as its owner.
    reached: u8,
    seen: Seen,
    /// Until when our lease runs there at least.
    until: u8,
}

/// A number for people. It takes no part in comparisons, so that members have no order.
#[derive(Clone, Copy, Debug)]
struct Name(u8);

impl PartialEq for Name {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// A member, the requests that are on their way to it, and what the clients know of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Member {
    name: Name,
    /// Whether it is in the list of the old and of the new quorum.
    lists: [bool; 2],
    /// Whether it is the one where clients wait.
    first: bool,
    /// How far its clock is ahead.
    ahead: u8,
    epoch: u8,
    counter: u8,
    lease: Option<Lease>,
    marker: Option<Marker>,
    known: [Known; CLIENTS],
    /// In order, each at most once.
    under_way: Vec<(Owner, Request)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Phase {
    #[default]
    Idle,
    Asking,
    Holding,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    /// The number of its present or last round.
    round: u8,
    /// When the round's first request was sent.
    since: u8,
    /// The highest token of all holds when the round began, in settings with forced releases.
    above: u8,
    token: u8,
    /// The end of the lease by which it holds the lock.
    until: u8,
}

/// The faults and commands that may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    /// A member loses everything, its marker too.
    forgets: u8,
    /// A member's replica takes over, which has the marker and lacks the lease.
    failovers: u8,
    forced_releases: u8,
    renewals: u8,
    /// A first client dies between two markers.
    deaths: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    members: Vec<Member>,
    clients: [Client; CLIENTS],
    left: Left,
    /// One bit for the token of each hold; without forced releases only the highest.
    held: u64,
    /// A hold had a token that was not above the earlier ones.
    fell: bool,
    /// A hold counted a member that had to wait for its vote.
    waited: bool,
    /// A first client died between two markers.
    died: bool,
}

/// One setting of the model.
#[derive(Clone, Debug)]
struct Quorum {
    variant: Variant,
    start: State,
    /// How many rounds each client may begin.
    rounds: [u8; CLIENTS],
    /// Each client's quorum.
    quorum: [u8; CLIENTS],
    max_lease: [u8; 2],
    last_tick: u8,
    /// Whether markers are read; otherwise everybody may vote.
    markers: bool,
    /// What a renewal may ask for.
    ttls: &'static [u8],
    /// Whether a renewing client takes the members again that are free.
    regrants: bool,
    /// Whether a client gives a round up or releases the lock before its time is over, and requests
    /// of an ended round still arrive.
    hasty: bool,
    /// Whether a first client writes markers on blank members.
    first_client: bool,
    /// Whether the operator replaces the old quorum by the new one.
    reconfigure: bool,
    /// Whether only the member with the fast clock forgets, and its clock is set right then.
    repaired: bool,
    /// Whether forced releases are part of the setting. Then two clients may hold the lock.
    forced: bool,
}
