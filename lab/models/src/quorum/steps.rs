//! The steps of members and clients.

use super::{
    Client, Known, Lease, Marker, Member, NOBODY, Owner, Phase, QUARTER, Quorum, Request, Seen,
    State, TOKENS_PER_TICK, Variant,
};

impl Member {
    /// Puts a request on its way.
    pub(super) fn send(&mut self, owner: Owner, request: Request) {
        if let Err(place) = self.under_way.binary_search(&(owner, request)) {
            self.under_way.insert(place, (owner, request));
        }
    }

    fn clock(&self, now: u8) -> u8 {
        now + self.ahead
    }

    fn is_owner(&self, owner: Owner) -> bool {
        self.lease.is_some_and(|lease| lease.owner == owner)
    }

    /// Grants the lock if it is free, and returns the token. It rises with each grant, and restarts
    /// at the clock if the counter was forgotten.
    fn grant(&mut self, owner: Owner, now: u8, ttl: u8) -> Option<u8> {
        if self.lease.is_some() {
            return None;
        }
        self.counter = (self.counter + 1).max(self.clock(now) * TOKENS_PER_TICK);
        self.lease = Some(Lease {
            owner,
            ends: now + ttl,
        });
        Some(self.counter)
    }

    /// Whether its marker is there and was written under its present epoch.
    fn has_marker_of(&self, quorum: u8) -> bool {
        let marker = self.marker.filter(|marker| marker.epoch == self.epoch);
        marker.is_some_and(|marker| marker.quorum == quorum)
    }

    pub(super) fn is_blank(&self) -> bool {
        self.marker.is_none_or(|marker| marker.epoch != self.epoch)
    }

    /// The member loses its lease and its counter.
    pub(super) fn lose_lease(&mut self) {
        self.lease = None;
        self.counter = 0;
    }
}

impl State {
    pub(super) fn majority(&self, quorum: u8) -> usize {
        self.list(quorum).count() / 2 + 1
    }

    fn list(&self, quorum: u8) -> impl Iterator<Item = &Member> {
        let list = usize::from(quorum);
        self.members.iter().filter(move |member| member.lists[list])
    }

    fn list_mut(&mut self, quorum: u8) -> impl Iterator<Item = &mut Member> {
        let list = usize::from(quorum);
        let members = self.members.iter_mut();
        members.filter(move |member| member.lists[list])
    }

    pub(super) fn count_markers(&self, list: u8, of: u8) -> usize {
        let members = self.list(list);
        members.filter(|member| member.has_marker_of(of)).count()
    }

    fn client(&self, client: u8) -> Client {
        self.clients[usize::from(client)]
    }
}

impl Quorum {
    fn quorum_of(&self, client: u8) -> u8 {
        self.quorum[usize::from(client)]
    }

    fn max_lease_of(&self, client: u8) -> u8 {
        self.max_lease[usize::from(self.quorum_of(client))]
    }

    /// The owner that a round has at a member.
    fn owner(&self, client: u8, round: u8, member: &Member) -> Owner {
        let round = match self.variant {
            Variant::OneOwner => 0,
            Variant::OwnerOfPlace if member.first => 0,
            _ => round,
        };
        Owner { client, round }
    }

    /// The phase of the client if the owner is the one of its present round at this member.
    fn phase_of(&self, clients: &[Client], member: &Member, owner: Owner) -> Phase {
        let Some(client) = clients.get(usize::from(owner.client)) else {
            return Phase::Idle;
        };
        if owner == self.owner(owner.client, client.round, member) {
            client.phase
        } else {
            Phase::Idle
        }
    }

    /// Point 2: a round asks all members at once, with a fresh owner.
    pub(super) fn begin(&self, state: &mut State, client: u8) {
        let above = if self.forced { highest(state.held) } else { 0 };
        let round = state.client(client).round + 1;
        state.clients[usize::from(client)] = Client {
            phase: Phase::Asking,
            round,
            since: state.now,
            above,
            ..Client::default()
        };
        for member in state.list_mut(self.quorum_of(client)) {
            let owner = self.owner(client, round, member);
            member.send(owner, Request::Grant);
            if self.variant == Variant::MarkerReadBeforeGrant {
                member.send(owner, Request::Read);
            }
        }
    }

    /// Point 5: the end of a round or a lease releases everywhere, also where no answer came.
    pub(super) fn end(&self, state: &mut State, client: u8) {
        let round = state.client(client).round;
        state.clients[usize::from(client)] = Client {
            round,
            ..Client::default()
        };
        for member in state.list_mut(self.quorum_of(client)) {
            let owner = self.owner(client, round, member);
            member.known[usize::from(client)] = Known::default();
            member.send(owner, Request::Release);
        }
    }

    /// Point 6: a renewal goes to all.
    pub(super) fn renew(&self, state: &mut State, client: u8, ttl: u8) {
        let (now, round) = (state.now, state.client(client).round);
        state.left.renewals -= 1;
        for member in state.list_mut(self.quorum_of(client)) {
            let owner = self.owner(client, round, member);
            // It may arrive at once, and shorten what an earlier one has promised.
            let known = &mut member.known[usize::from(client)];
            known.until = known.until.min(now + ttl);
            member.send(owner, Request::Renew { ttl, sent: now });
        }
        self.extend(state, client);
    }

    /// The lease runs as long as a majority says.
    fn extend(&self, state: &mut State, client: u8) {
        let quorum = self.quorum_of(client);
        let of_client = |member: &Member| member.known[usize::from(client)].until;
        let mut untils: Vec<u8> = state.list(quorum).map(of_client).collect();
        untils.sort_unstable();
        let until = untils[untils.len() - state.majority(quorum)];
        state.clients[usize::from(client)].until = until;
    }

    /// A member executes a request, and the client learns the answer.
    pub(super) fn execute(&self, state: &mut State, at: usize, owner: Owner, request: Request) {
        let now = state.now;
        let member = &mut state.members[at];
        member.under_way.retain(|it| *it != (owner, request));
        let phase = self.phase_of(&state.clients, member, owner);
        let client = owner.client;
        let known = usize::from(client);
        match request {
            Request::Grant => {
                let Some(token) = member.grant(owner, now, self.max_lease_of(client)) else {
                    return;
                };
                match phase {
                    Phase::Asking => {
                        let ahead = member.ahead;
                        let known = &mut member.known[known];
                        (known.granted, known.reached) = (token, token);
                        if !self.markers || self.variant == Variant::MarkerNotRead {
                            known.seen = Seen::Counts { ahead };
                        } else if self.variant != Variant::MarkerReadBeforeGrant {
                            // Sent after the answer, so a member that forgets before this grant
                            // cannot count by the marker that it had.
                            member.send(owner, Request::Read);
                        }
                        self.advance(state, client);
                    }
                    // It comes too late to be counted. The release of the lease frees it.
                    Phase::Holding => {}
                    // Its release may have come before it.
                    Phase::Idle => member.send(owner, Request::Release),
                }
            }
            Request::Raise { floor } => {
                let is_owner = member.is_owner(owner);
                if !is_owner && self.variant != Variant::RaiseWithoutOwner {
                    return;
                }
                if let Some(lease) = member.lease.as_mut().filter(|_| is_owner) {
                    lease.ends = now + self.max_lease_of(client);
                }
                if self.variant != Variant::KvMember {
                    member.counter = member.counter.max(floor);
                }
                if phase == Phase::Asking {
                    let known = &mut member.known[known];
                    known.reached = known.reached.max(floor);
                    self.advance(state, client);
                }
            }
            Request::Read => {
                if phase == Phase::Asking {
                    member.known[known].seen = self.judge(member, client, now);
                    self.advance(state, client);
                }
            }
            Request::Renew { ttl, sent } => self.renew_at(state, at, owner, ttl, sent),
            Request::Regrant => {
                let ttl = self.max_lease_of(client);
                if member.grant(owner, now, ttl).is_none() {
                    return;
                }
                if phase != Phase::Holding {
                    member.send(owner, Request::Release);
                    return;
                }
                let floor = state.clients[known].token;
                member.send(owner, Request::Raise { floor });
            }
            Request::Release => {
                if member.is_owner(owner) {
                    member.lease = None;
                }
            }
            // Compare-and-swap: whoever comes first.
            Request::Admit { marker } => {
                if member.is_blank() {
                    let written = member.clock(now);
                    member.marker = Some(Marker { written, ..marker });
                }
            }
        }
    }

    /// A renewal by owner only. Where the marker is not ours, it counts for nothing.
    fn renew_at(&self, state: &mut State, at: usize, owner: Owner, ttl: u8, sent: u8) {
        let (now, client) = (state.now, owner.client);
        let quorum = self.quorum_of(client);
        let cap = self.cap(state, at, owner);
        let member = &mut state.members[at];
        let is_owner = member.is_owner(owner);
        if let Some(lease) = member.lease.as_mut().filter(|_| is_owner) {
            lease.ends = now + ttl;
        }
        if self.phase_of(&state.clients, member, owner) != Phase::Holding {
            return;
        }
        let is_ours = !self.markers
            || member.has_marker_of(quorum)
            || self.variant == Variant::RenewalIgnoresMarker;
        if is_owner && is_ours {
            let known = &mut member.known[usize::from(client)];
            known.until = known.until.max(sent + ttl.min(cap));
            self.extend(state, client);
        } else if !is_owner && self.regrants {
            member.send(owner, Request::Regrant);
        }
    }

    /// The shortest renewal that may still arrive at a member.
    fn cap(&self, state: &State, at: usize, owner: Owner) -> u8 {
        let quorum = self.quorum_of(owner.client);
        let open = state.list(quorum).count() - state.majority(quorum);
        let renewals = state.members[at].under_way.iter().filter(|it| {
            let unanswered = state.list(quorum).filter(|m| m.under_way.contains(it));
            self.variant != Variant::CapPerLease || unanswered.count() > open
        });
        let ttls = renewals.filter_map(|it| match *it {
            (of, Request::Renew { ttl, .. }) if of == owner => Some(ttl),
            _ => None,
        });
        ttls.min().unwrap_or(u8::MAX)
    }

    /// Whether a member may vote, by its marker and its own clock.
    fn judge(&self, member: &Member, client: u8, now: u8) -> Seen {
        let Some(marker) = member.marker else {
            return Seen::Refused;
        };
        let longest = match self.variant {
            Variant::WaitsByNewLease => self.max_lease_of(client),
            _ => marker.longest,
        };
        // The wait is 1.25 leases.
        let age = member.clock(now).saturating_sub(marker.written);
        let is_old =
            marker.at_once || 4 * age > 5 * longest || self.variant == Variant::AgeNotCompared;
        let is_current = marker.epoch == member.epoch || self.variant == Variant::EpochNotCompared;
        if is_old && is_current && marker.quorum == self.quorum_of(client) {
            let ahead = member.ahead;
            Seen::Counts { ahead }
        } else {
            Seen::Refused
        }
    }

    /// Points 3 and 4: after each answer the client computes its token again, raises those below
    /// it, and holds the lock once a majority is confirmed.
    fn advance(&self, state: &mut State, client: u8) {
        let needed = state.majority(self.quorum_of(client));
        let agreed = self.agreed(state, client, needed);
        let knowns = || {
            (0..)
                .zip(&state.members)
                .map(|(i, m)| (i, m.known[usize::from(client)]))
        };
        let counted: Vec<usize> = match &agreed {
            Some(agreed) => agreed.clone(),
            None => knowns()
                .filter(|(_, known)| known.granted > 0 && known.seen != Seen::Refused)
                .map(|(at, _)| at)
                .collect(),
        };
        if counted.len() < needed {
            return;
        }
        let round = state.client(client).round;
        let token = knowns()
            .filter(|(at, _)| counted.contains(at))
            .map(|(_, known)| known.granted)
            .max()
            .unwrap_or(0);
        let mut confirmed = 0;
        for at in &counted {
            let member = &mut state.members[*at];
            let reached = member.known[usize::from(client)].reached;
            if reached >= token || self.variant == Variant::NoRaise {
                confirmed += 1;
                continue;
            }
            // A far raise waits until the clocks of a majority agree. Otherwise one fast clock
            // raises all others.
            let is_far = token - reached > QUARTER;
            if agreed.is_some() || !is_far || self.variant == Variant::ClocksNotCompared {
                let owner = self.owner(client, round, member);
                member.send(owner, Request::Raise { floor: token });
            }
        }
        if agreed.is_some() && confirmed >= needed {
            self.hold(state, client, token, &counted);
        }
    }

    /// A majority that was granted, whose markers count, and whose clocks agree.
    fn agreed(&self, state: &State, client: u8, needed: usize) -> Option<Vec<usize>> {
        let clocks = state.members.iter().map(|member| {
            let known = member.known[usize::from(client)];
            match known.seen {
                _ if known.granted == 0 => None,
                Seen::Counts { .. } if self.variant == Variant::ClocksNotCompared => Some(0),
                Seen::Counts { ahead } => Some(ahead),
                Seen::Unread | Seen::Refused => None,
            }
        });
        let clocks: Vec<Option<u8>> = clocks.collect();
        clocks.iter().flatten().find_map(|clock| {
            let same = (0..clocks.len()).filter(|at| clocks[*at] == Some(*clock));
            let same: Vec<usize> = same.collect();
            (same.len() >= needed).then_some(same)
        })
    }

    /// The client holds the lock from now on, if its lease has not run out.
    fn hold(&self, state: &mut State, client: u8, token: u8, counted: &[usize]) {
        let since = match self.variant {
            Variant::CountedFromAnswer => state.now,
            _ => state.client(client).since,
        };
        let until = since + self.max_lease_of(client);
        if until <= state.now {
            return;
        }
        for at in counted {
            let member = &mut state.members[*at];
            member.known[usize::from(client)].until = until;
            state.waited |= member.marker.is_some_and(|marker| !marker.at_once);
        }
        let one = &mut state.clients[usize::from(client)];
        (one.phase, one.token, one.until) = (Phase::Holding, token, until);
        let bit = 1 << token;
        if self.forced {
            // Two clients may hold the lock, so only a round that began later has to be above.
            state.fell |= state.held & bit != 0 || token <= one.above;
            state.held |= bit;
        } else {
            state.fell |= token <= highest(state.held);
            state.held = bit;
        }
    }

    /// Time passes: leases run out at members and at clients.
    pub(super) fn tick(&self, state: &mut State) {
        state.now += 1;
        for client in [0, 1] {
            let it = state.client(client);
            let is_over = match it.phase {
                Phase::Idle => false,
                Phase::Asking if self.variant == Variant::CountedFromAnswer => false,
                Phase::Asking => it.since + self.max_lease_of(client) <= state.now,
                Phase::Holding => it.until <= state.now,
            };
            if is_over {
                self.end(state, client);
            }
        }
    }

    /// A marker that is about to be written.
    pub(super) fn new_marker(&self, quorum: u8, epoch: u8, longest: u8) -> Marker {
        Marker {
            quorum,
            epoch,
            longest: match self.variant {
                Variant::WaitsByNewLease => self.max_lease[usize::from(quorum)],
                _ => longest.max(self.max_lease[usize::from(quorum)]),
            },
            written: 0,
            at_once: self.variant == Variant::VotesAtOnce,
        }
    }

    /// A client that sees its quorum on a majority admits a blank member again.
    pub(super) fn admit(&self, state: &mut State, at: usize, quorum: u8) {
        let markers = state
            .list(quorum)
            .filter(|member| member.has_marker_of(quorum));
        let longest = markers
            .filter_map(|member| member.marker)
            .map(|it| it.longest);
        let longest = longest.max().unwrap_or(0);
        let member = &mut state.members[at];
        let marker = self.new_marker(quorum, member.epoch, longest);
        member.send(NOBODY, Request::Admit { marker });
    }

    /// `reconfigure` gives a member the new quorum's marker.
    pub(super) fn replace(&self, state: &mut State, at: usize) {
        let member = &mut state.members[at];
        let longest = self.max_lease[0].max(member.marker.map_or(0, |it| it.longest));
        let written = member.clock(state.now);
        let marker = self.new_marker(1, member.epoch, longest);
        member.marker = Some(Marker { written, ..marker });
    }

    /// Removes what cannot change anything any longer, so that fewer states differ.
    pub(super) fn tidy(&self, state: &mut State) {
        let now = state.now;
        let clients = state.clients;
        for member in &mut state.members {
            member.lease = member.lease.filter(|lease| lease.ends > now);
            let mut under_way = std::mem::take(&mut member.under_way);
            let is_coming = |owner| {
                under_way.iter().any(|(of, request)| {
                    self.hasty
                        && *of == owner
                        && matches!(request, Request::Grant | Request::Regrant)
                })
            };
            let keep = |(owner, request): &(Owner, Request)| {
                let phase = self.phase_of(&clients, member, *owner);
                // Not of a round that has ended, in settings where such requests are lost.
                let is_live = self.hasty || phase != Phase::Idle;
                match request {
                    Request::Grant | Request::Regrant => is_live,
                    Request::Release => member.is_owner(*owner) || is_coming(*owner),
                    Request::Raise { .. } if self.variant == Variant::RaiseWithoutOwner => {
                        member.is_owner(*owner) || phase == Phase::Asking
                    }
                    Request::Raise { .. } => is_live && member.is_owner(*owner),
                    Request::Read => phase == Phase::Asking,
                    Request::Renew { .. } => {
                        phase == Phase::Holding || is_live && member.is_owner(*owner)
                    }
                    Request::Admit { .. } => member.is_blank(),
                }
            };
            let kept: Vec<bool> = under_way.iter().map(keep).collect();
            let mut kept = kept.into_iter();
            under_way.retain(|_| kept.next().unwrap_or(true));
            member.under_way = under_way;
        }
        state.members.sort_unstable();
    }
}

/// The highest token in a set of them.
pub(super) fn highest(held: u64) -> u8 {
    let bits = u64::BITS - held.leading_zeros();
    u8::try_from(bits.saturating_sub(1)).unwrap_or(u8::MAX)
}
