//! The ring: each name belongs to one of several independent stores, and a record says to which.
//!
//! The model is of one name. What is exact: when a view is read, when a request is stamped, when a
//! store executes it, when a write of the view is seen. What is simplified:
//!
//! - A request is answered in the moment in which it is executed. A late answer is the same as a
//!   client that acts late, and a lost one is the same as a client that gives up.
//! - Time is a small number. A limit counts to its end: a view that may be used until 3 may be used
//!   at 3. The margins for clocks that differ in their speed are left out.
//! - A write of the view has the age of the moment in which its sender read the view before it: no
//!   store can stamp it earlier. It is seen at any time later, also when its sender has stopped.
//! - A grant and the raise of its token are one request: both ask who the owner is.
//! - Pending views in which one member owned the name are one, with the longer quarantine.
//!
//! The model found that three sentences of the protocol's first description are wrong:
//!
//! - *A token floor is the highest clock that the publisher knows, plus V.* A publisher can stop
//!   between that look and its write for any time. The old owner grants for V after the write, its
//!   clock goes on, and a late grant is executed up to L later. So the view has the *lead* instead:
//!   how far the tokens of any member may be ahead of the ring store's clock. The floor of a name
//!   is the end of its quarantine by the ring store's clock, plus the lead. Each token that is
//!   given at a moment is below that moment plus the lead, raised ones too. So no later view lowers
//!   the lead.
//! - *Leases are capped at L.* A renewal by a lowered L shortens the lease. If its answer is lost,
//!   the guard is valid for longer than its lease. So a renewal that would shorten the guard,
//!   because L was lowered, is not sent: the guard has more than it asks for.
//! - *A view without a predecessor grants nothing for V + L.* The view that was lost may have had a
//!   longer lease. So such a view waits for the longest V + L that any view may have.

mod model;
mod settings;
mod steps;

const CLIENTS: usize = 2;

/// The members of the ring.
const MEMBERS: usize = 2;

/// How far a member's token rises in one unit of time by its clock alone.
const TOKENS_PER_TICK: u8 = 2;

/// The one rule that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// The protocol as it is written.
    Whole,
    /// A name is free for its new owner at once.
    NoQuarantine,
    /// The quarantine counts from the client's own last read of an earlier view.
    QuarantineFromOwnRead,
    /// The quarantine counts from the sending of the read, not from its answer.
    QuarantineFromSending,
    /// The quarantine counts from the age of a view that may not have been seen at that age.
    UnconfirmedCounts,
    /// A change forgets the pending views before the one that it replaces.
    PendingForgotten,
    /// A view is used for as long as nothing newer was read.
    ViewUsedTooLong,
    /// A quarantine is as long as the new view's V and L.
    WaitsByNewTerms,
    /// Only the publisher confirms its view.
    PublisherConfirms,
    /// A view without a predecessor grants at once.
    FirstViewAtOnce,
    /// A view without a predecessor waits for its own V and L.
    FirstViewByOwnTerms,
    /// Tokens are not raised.
    NoFloor,
    /// The floor is the highest clock that the publisher saw, plus V.
    FloorOfLastLook,
    /// The lead is what the publisher sees, whatever earlier views said.
    LeadForgotten,
    /// A guard is renewed where it was granted, although its name has moved.
    RenewalFollows,
    /// A guard is renewed while its name is in quarantine, if the present view has its owner.
    RenewalInQuarantine,
    /// A renewal is sent although the guard is longer than what it asks for.
    RenewalShortens,
    /// A guard counts from the answer to its grant.
    CountedFromAnswer,
    /// Clients know the newest list that they have read, and nothing else: `hash mod n`.
    ModuloAlone,
}

/// How long a view may be used unseen, and the longest lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Terms {
    view: u8,
    lease: u8,
}

impl Terms {
    /// How long a name may be held by its old owner after a change was seen.
    const fn sum(self) -> u8 {
        self.view + self.lease
    }
}

/// An earlier view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Pending {
    /// The owner of the name in it; `None` after a loss of the view, when nobody knows.
    owner: Option<u8>,
    /// What remained of its quarantine when the present view was written.
    remains: u8,
}

/// The view as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct View {
    number: u8,
    owner: u8,
    terms: Terms,
    /// In order.
    pending: Vec<Pending>,
    /// How far tokens may be ahead of the ring store's clock.
    lead: u8,
    /// The floor of [`Variant::FloorOfLastLook`].
    floor: u8,
    /// Whether this is the second of the two writes.
    is_confirmed: bool,
    /// When it was written, by the ring store's clock.
    written: u8,
}

/// A conditional write of the view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Put {
    /// The number of the view that it replaces, and whether that is confirmed.
    expect: Option<(u8, bool)>,
    view: View,
}

/// What a client knows of a view that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    number: u8,
    owner: u8,
    terms: Terms,
    /// The last moment at which it may be used.
    until: u8,
    /// The last moment of the name's quarantine; `u8::MAX` while the view is not confirmed.
    quarantine: Option<u8>,
    floor: u8,
}

/// A grant or a renewal on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    member: u8,
    is_renewal: bool,
    stamp: u8,
    lease: u8,
    floor: u8,
}

/// A valid guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Guard {
    member: u8,
    until: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// When it sent the read whose answer it waits for.
    reading: Option<u8>,
    seen: Option<Seen>,
    /// When it sent the last read that answered an earlier view, plus one.
    before: u8,
    request: Option<Request>,
    guard: Option<Guard>,
}

/// The lease of the name at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    client: u8,
    ends: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Member {
    /// How far its clock is ahead of the ring store's.
    ahead: u8,
    counter: u8,
    lease: Option<Lease>,
}

/// The faults and commands that may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    changes: u8,
    /// A publisher dies between its two writes.
    deaths: u8,
    /// The ring store loses its view.
    losses: u8,
    /// The clock that is ahead is set right.
    repairs: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    stored: Option<View>,
    /// The last number of a view.
    number: u8,
    /// A change, and a confirmation, that are on their way.
    change: Option<Put>,
    confirmation: Option<Put>,
    members: [Member; MEMBERS],
    clients: [Client; CLIENTS],
    left: Left,
    /// The highest token of all guards.
    highest: u8,
    /// A guard had a token that was not above the earlier ones.
    fell: bool,
    /// The publisher has died.
    died: bool,
}

/// One setting of the model.
#[derive(Clone, Debug)]
struct Ring {
    variant: Variant,
    start: State,
    /// The terms of all views after the first.
    terms: Terms,
    /// The longest V + L that a view may have.
    longest: u8,
    last_tick: u8,
    /// Whether the answer to a read can be late.
    slow_reads: bool,
    renewals: bool,
    /// Whether tokens are compared.
    tokens: bool,
}
