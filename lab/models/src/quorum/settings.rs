//! The settings, each with the rules that it is about.

use super::{
    CLIENTS, Client, Known, Lease, Left, Marker, Member, Name, Owner, Phase, Quorum, State,
    TOKENS_PER_TICK, Variant,
    model::{HELD_AFTER_DEATH, ONE_HOLDER, TOKENS_RISE},
};
use crate::search::check;

fn member(name: u8, marker: Option<Marker>) -> Member {
    Member {
        name: Name(name),
        lists: [true, true],
        first: false,
        ahead: 0,
        epoch: 0,
        counter: 0,
        lease: None,
        marker,
        known: [Known::default(); CLIENTS],
        under_way: Vec::new(),
    }
}

/// The marker of a member that votes.
fn voting(longest: u8) -> Marker {
    Marker {
        quorum: 0,
        epoch: 0,
        longest,
        written: 0,
        at_once: true,
    }
}

/// Three members that vote, two clients with one round each, no faults, no time.
fn three(max_lease: u8) -> Quorum {
    let members = (1..=3).map(|name| member(name, Some(voting(max_lease))));
    Quorum {
        variant: Variant::Whole,
        start: State {
            now: 0,
            members: members.collect(),
            clients: [Client::default(); CLIENTS],
            left: Left::default(),
            held: 0,
            fell: false,
            waited: false,
            died: false,
        },
        rounds: [1, 1],
        quorum: [0, 0],
        max_lease: [max_lease; 2],
        last_tick: 0,
        markers: false,
        ttls: &[],
        regrants: false,
        hasty: false,
        first_client: false,
        reconfigure: false,
        repaired: false,
        forced: false,
    }
}

/// Client A holds the lock on the first members since 0.
fn held_by_a(quorum: &mut Quorum, members: usize) {
    let (token, until) = (3, quorum.max_lease[0]);
    quorum.rounds[0] = 0;
    quorum.start.held = 1 << token;
    quorum.start.clients[0] = Client {
        phase: Phase::Holding,
        round: 1,
        token,
        until,
        ..Client::default()
    };
    for member in quorum.start.members.iter_mut().take(members) {
        let owner = Owner {
            client: 0,
            round: 1,
        };
        member.lease = Some(Lease { owner, ends: until });
        member.counter = token;
        member.known[0].until = until;
    }
}

/// Late requests of earlier rounds, without time.
#[test]
fn rounds() {
    let mut quorum = three(2);
    quorum.rounds = [2, 1];
    quorum.hasty = true;
    quorum.start.members[0].first = true;
    check(
        &quorum,
        &[
            (Variant::NoRaise, TOKENS_RISE),
            (Variant::KvMember, TOKENS_RISE),
            (Variant::OneOwner, ONE_HOLDER),
            (Variant::OwnerOfPlace, ONE_HOLDER),
        ],
    );
}

/// An operator frees members by force. Two clients may hold the lock then; the token orders them.
#[test]
fn forced_releases() {
    let mut quorum = three(2);
    quorum.forced = true;
    quorum.hasty = true;
    quorum.start.left.forced_releases = 2;
    quorum.start.members[0].counter = 1;
    check(&quorum, &[(Variant::RaiseWithoutOwner, TOKENS_RISE)]);
}

/// Leases run out. Two members need no raise, which would make their leases longer.
#[test]
fn expiry() {
    let mut quorum = three(2);
    quorum.hasty = true;
    for member in quorum.start.members.iter_mut().take(2) {
        member.counter = 4 * TOKENS_PER_TICK;
    }
    quorum.last_tick = 3;
    check(&quorum, &[(Variant::CountedFromAnswer, ONE_HOLDER)]);
}

/// A member forgets, or fails over to a replica, and is admitted again.
#[test]
fn a_member_forgets() {
    let mut quorum = three(2);
    quorum.markers = true;
    quorum.last_tick = 3;
    quorum.start.left.forgets = 1;
    check(
        &quorum,
        &[
            (Variant::MarkerNotRead, ONE_HOLDER),
            (Variant::MarkerReadBeforeGrant, ONE_HOLDER),
            (Variant::AgeNotCompared, ONE_HOLDER),
            (Variant::VotesAtOnce, ONE_HOLDER),
        ],
    );
}

#[test]
fn a_member_fails_over() {
    let mut quorum = three(2);
    quorum.markers = true;
    quorum.last_tick = 3;
    quorum.start.left.failovers = 1;
    check(&quorum, &[(Variant::EpochNotCompared, ONE_HOLDER)]);
}

/// A member's clock is ahead; it forgets, and its clock is set right.
#[test]
fn a_fast_clock() {
    let mut quorum = three(2);
    quorum.markers = true;
    quorum.last_tick = 3;
    quorum.repaired = true;
    quorum.start.left.forgets = 1;
    quorum.start.members[2].ahead = 5;
    check(&quorum, &[(Variant::ClocksNotCompared, TOKENS_RISE)]);
}

/// Renewals, a shorter one among them.
#[test]
fn renewals() {
    let mut quorum = three(2);
    held_by_a(&mut quorum, 3);
    quorum.hasty = true;
    quorum.regrants = true;
    quorum.last_tick = 4;
    quorum.ttls = &[1, 2];
    quorum.start.left.renewals = 2;
    check(&quorum, &[(Variant::CapPerLease, ONE_HOLDER)]);
}

/// A renewing client takes free members again, and members forget.
#[test]
fn renewals_after_a_loss() {
    let mut quorum = three(2);
    held_by_a(&mut quorum, 2);
    quorum.regrants = true;
    quorum.markers = true;
    quorum.last_tick = 3;
    quorum.ttls = &[2];
    quorum.start.left.renewals = 2;
    quorum.start.left.forgets = 1;
    check(&quorum, &[]);
}

/// The list 1, 2, 3 becomes 3, 4, 5 while client A renews.
#[test]
fn another_list() {
    let mut quorum = three(2);
    held_by_a(&mut quorum, 2);
    quorum.markers = true;
    quorum.reconfigure = true;
    quorum.last_tick = 3;
    quorum.ttls = &[2];
    quorum.quorum = [0, 1];
    quorum.start.left.renewals = 2;
    quorum
        .start
        .members
        .extend([member(4, None), member(5, None)]);
    for member in &mut quorum.start.members {
        member.lists = [member.name.0 <= 3, member.name.0 >= 3];
    }
    check(
        &quorum,
        &[
            (Variant::RenewalIgnoresMarker, ONE_HOLDER),
            (Variant::NewListFirst, ONE_HOLDER),
        ],
    );
}

/// A lower `max_lease` with the same members; a member forgets afterwards.
#[test]
fn a_lowered_max_lease() {
    let mut quorum = three(3);
    held_by_a(&mut quorum, 2);
    quorum.markers = true;
    quorum.reconfigure = true;
    quorum.max_lease = [3, 1];
    quorum.quorum = [0, 1];
    quorum.last_tick = 5;
    quorum.start.left.forgets = 1;
    check(&quorum, &[(Variant::WaitsByNewLease, ONE_HOLDER)]);
}

/// Nobody said that the quorum is new: first clients write the markers, and one dies at it.
#[test]
fn a_first_client() {
    let mut quorum = three(2);
    quorum.markers = true;
    quorum.first_client = true;
    quorum.last_tick = 4;
    quorum.rounds = [1, 0];
    quorum.start.left.deaths = 1;
    for member in &mut quorum.start.members {
        member.marker = None;
    }
    check(
        &quorum,
        &[(Variant::FirstClientMustFinish, HELD_AFTER_DEATH)],
    );
}

/// All members forget: for a first client they look like new ones.
#[test]
fn all_members_forget() {
    let mut quorum = three(2);
    held_by_a(&mut quorum, 2);
    quorum.markers = true;
    quorum.first_client = true;
    quorum.last_tick = 4;
    quorum.start.left.forgets = 3;
    check(&quorum, &[(Variant::VotesAtOnce, ONE_HOLDER)]);
}
