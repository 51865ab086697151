//! The settings, each with the rules that it is about.

use super::{
    CLIENTS, Client, Left, MEMBERS, Member, Ring, State, Terms, Variant, View,
    model::{HELD_AFTER_DEATH, ONE_HOLDER, TOKENS_RISE},
};
use crate::search::check;

/// A confirmed view in which member 0 owns the name, and clients that have read nothing.
fn ring(terms: Terms) -> Ring {
    Ring {
        variant: Variant::Whole,
        start: State {
            now: 0,
            stored: Some(View {
                number: 1,
                owner: 0,
                terms,
                pending: Vec::new(),
                lead: 0,
                floor: 0,
                is_confirmed: true,
                written: 0,
            }),
            number: 1,
            change: None,
            confirmation: None,
            members: [Member::default(); MEMBERS],
            clients: [Client::default(); CLIENTS],
            left: Left::default(),
            highest: 0,
            fell: false,
            died: false,
        },
        terms,
        longest: terms.sum(),
        last_tick: 0,
        slow_reads: false,
        renewals: true,
        tokens: false,
    }
}

const SHORT: Terms = Terms { view: 1, lease: 1 };
const LONG: Terms = Terms { view: 1, lease: 2 };

/// Two changes: the name moves there and back, or once, or not at all.
#[test]
fn changes() {
    let mut ring = ring(SHORT);
    ring.last_tick = 4;
    ring.start.left.changes = 2;
    check(
        &ring,
        &[
            (Variant::NoQuarantine, ONE_HOLDER),
            (Variant::QuarantineFromOwnRead, ONE_HOLDER),
            (Variant::UnconfirmedCounts, ONE_HOLDER),
            (Variant::PendingForgotten, ONE_HOLDER),
            (Variant::ViewUsedTooLong, ONE_HOLDER),
            (Variant::RenewalFollows, ONE_HOLDER),
            (Variant::RenewalInQuarantine, ONE_HOLDER),
            (Variant::CountedFromAnswer, ONE_HOLDER),
            (Variant::ModuloAlone, ONE_HOLDER),
        ],
    );
}

/// A publisher dies between its writes.
#[test]
fn a_publisher_dies() {
    let mut ring = ring(SHORT);
    ring.last_tick = 3;
    ring.start.left.changes = 1;
    ring.start.left.deaths = 1;
    check(&ring, &[(Variant::PublisherConfirms, HELD_AFTER_DEATH)]);
}

/// The answers to reads are late.
#[test]
fn late_answers() {
    let mut ring = ring(SHORT);
    ring.last_tick = 4;
    ring.slow_reads = true;
    ring.start.left.changes = 1;
    check(&ring, &[(Variant::QuarantineFromSending, ONE_HOLDER)]);
}

/// A change lowers the longest lease.
#[test]
fn a_lowered_lease() {
    let mut ring = ring(LONG);
    ring.terms = SHORT;
    ring.last_tick = 5;
    ring.start.left.changes = 1;
    check(
        &ring,
        &[
            (Variant::WaitsByNewTerms, ONE_HOLDER),
            (Variant::RenewalShortens, ONE_HOLDER),
        ],
    );
}

/// The ring store loses the view, and an operator writes another one, with a shorter lease.
#[test]
fn a_lost_view() {
    let mut ring = ring(LONG);
    ring.terms = SHORT;
    ring.longest = LONG.sum();
    ring.last_tick = 5;
    ring.start.left.losses = 1;
    check(
        &ring,
        &[
            (Variant::FirstViewAtOnce, ONE_HOLDER),
            (Variant::FirstViewByOwnTerms, ONE_HOLDER),
        ],
    );
}

/// The clock of member 0 is ahead, and is set right at some time.
#[test]
fn a_fast_clock() {
    let mut ring = ring(SHORT);
    ring.last_tick = 3;
    ring.tokens = true;
    ring.renewals = false;
    ring.start.left.changes = 2;
    ring.start.left.repairs = 1;
    ring.start.members[0].ahead = 2;
    if let Some(view) = &mut ring.start.stored {
        view.lead = 2;
    }
    check(
        &ring,
        &[
            (Variant::NoFloor, TOKENS_RISE),
            (Variant::FloorOfLastLook, TOKENS_RISE),
            (Variant::LeadForgotten, TOKENS_RISE),
        ],
    );
}
