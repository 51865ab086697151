//! The steps of clients, members and publishers.

use super::{
    Guard, Lease, Pending, Put, Request, Ring, Seen, State, TOKENS_PER_TICK, Variant, View,
};

impl Ring {
    /// The executed read of the view.
    pub(super) fn answer(&self, state: &mut State, of: usize) {
        let client = &mut state.clients[of];
        let Some(sent) = client.reading.take() else {
            return;
        };
        let Some(view) = &state.stored else { return };
        if let Some(seen) = client.seen.filter(|seen| seen.number < view.number) {
            client.before = seen.until - seen.terms.view + 1;
        }
        let (quarantine, floor) = self.quarantine(view, client.before, state.now - sent);
        client.seen = Some(Seen {
            number: view.number,
            owner: view.owner,
            terms: view.terms,
            until: sent + view.terms.view,
            quarantine,
            floor,
        });
    }

    /// Rules 3 and 8: the last moment of the name's quarantine, and its token floor.
    fn quarantine(&self, view: &View, before: u8, waited: u8) -> (Option<u8>, u8) {
        let moved = view
            .pending
            .iter()
            .filter(|it| it.owner != Some(view.owner));
        let longest = moved.map(|it| it.remains).max();
        let counts = view.is_confirmed || self.variant == Variant::UnconfirmedCounts;
        let ends = longest.map(|remains| match self.variant {
            Variant::QuarantineFromOwnRead if before == 0 => 0,
            Variant::QuarantineFromOwnRead => before - 1 + view.terms.sum(),
            Variant::QuarantineFromSending if counts => {
                (view.written + remains).saturating_sub(waited)
            }
            _ if counts => view.written + remains,
            _ => u8::MAX,
        });
        let quarantine = match self.variant {
            Variant::NoQuarantine | Variant::ModuloAlone => None,
            _ => ends,
        };
        let floor = match self.variant {
            Variant::NoFloor | Variant::ModuloAlone => 0,
            Variant::FloorOfLastLook => view.floor,
            // The earlier owners of a name that does not move now granted before this view was
            // written.
            _ => {
                let from = ends.map_or(view.written, |ends| ends.saturating_add(1));
                from.saturating_add(view.lead)
                    .saturating_mul(TOKENS_PER_TICK)
            }
        };
        (quarantine, if self.tokens { floor } else { 0 })
    }

    /// Rules 1 to 4: the member that the client may ask now, and the view that says so.
    pub(super) fn allowed(&self, state: &State, of: usize) -> Option<(u8, Seen)> {
        let client = &state.clients[of];
        let seen = client.seen?;
        let is_over = seen.quarantine.is_none_or(|ends| ends < state.now);
        let is_fresh = state.now <= seen.until
            || matches!(
                self.variant,
                Variant::ViewUsedTooLong | Variant::ModuloAlone
            );
        if !is_fresh {
            return None;
        }
        match client.guard {
            None => is_over.then_some((seen.owner, seen)),
            Some(_) if !self.renewals => None,
            // The answer may be lost. The client would not know that its lease has become shorter.
            Some(guard)
                if state.now + seen.terms.lease < guard.until
                    && self.variant != Variant::RenewalShortens =>
            {
                None
            }
            Some(guard) if self.variant == Variant::RenewalFollows => Some((guard.member, seen)),
            Some(guard) => {
                let may_renew = is_over || self.variant == Variant::RenewalInQuarantine;
                (may_renew && guard.member == seen.owner).then_some((guard.member, seen))
            }
        }
    }

    /// Stamps a grant, or a renewal, and sends it.
    pub(super) fn send(&self, state: &mut State, of: usize) {
        let Some((member, seen)) = self.allowed(state, of) else {
            return;
        };
        let client = &mut state.clients[of];
        let is_renewal = client.guard.is_some();
        client.request = Some(Request {
            member,
            is_renewal,
            stamp: state.now,
            lease: seen.terms.lease,
            floor: if is_renewal { 0 } else { seen.floor },
        });
    }

    /// The member executes the client's request, and the client learns the answer.
    pub(super) fn execute(&self, state: &mut State, of: u8) {
        let now = state.now;
        let client = &mut state.clients[usize::from(of)];
        let Some(request) = client.request.take() else {
            return;
        };
        let member = &mut state.members[usize::from(request.member)];
        let until = match self.variant {
            Variant::CountedFromAnswer => now + request.lease,
            _ => request.stamp + request.lease,
        };
        let lease = Lease {
            client: of,
            ends: now + request.lease,
        };
        if request.is_renewal {
            let is_held = member.lease.is_some_and(|lease| lease.client == of);
            match &mut client.guard {
                Some(guard) if is_held => {
                    member.lease = Some(lease);
                    // Not shorter: this is also a client that does not learn the answer.
                    guard.until = guard.until.max(until);
                }
                guard => *guard = None,
            }
            return;
        }
        if member.lease.is_some() {
            return;
        }
        member.lease = Some(lease);
        if self.tokens {
            let clock = (now + member.ahead) * TOKENS_PER_TICK;
            member.counter = (member.counter + 1).max(clock).max(request.floor);
        }
        // The client was stopped for too long. Nobody releases the lease, which is the worst case.
        if until < now {
            return;
        }
        state.fell |= self.tokens && member.counter <= state.highest;
        state.highest = state.highest.max(member.counter);
        client.guard = Some(Guard {
            member: request.member,
            until,
        });
    }

    /// A publisher reads the view, and sends another one in which this member owns the name.
    pub(super) fn change(&self, state: &mut State, owner: u8) {
        let now = state.now;
        let ahead = state.members.iter().map(|member| member.ahead).max();
        let ahead = ahead.unwrap_or(0);
        let before = state.stored.as_ref();
        let (lead, floor) = before.map_or((0, 0), |view| (view.lead, view.floor));
        let lead = match self.variant {
            Variant::LeadForgotten => ahead,
            _ => ahead.max(lead),
        };
        let view = View {
            number: state.number + 1,
            owner,
            terms: self.terms,
            pending: before.map_or_else(|| self.unknown(), |view| self.carried(view, now)),
            lead: if self.tokens { lead } else { 0 },
            floor: if self.tokens && self.variant == Variant::FloorOfLastLook {
                floor.max((now + ahead + self.terms.view) * TOKENS_PER_TICK)
            } else {
                0
            },
            // Nobody can see a view that is lost after the loss. So one write is enough where there
            // is no predecessor.
            is_confirmed: before.is_none(),
            written: now,
        };
        state.change = Some(Put {
            expect: before.map(|view| (view.number, view.is_confirmed)),
            view,
        });
    }

    /// The pending views of a view without a predecessor.
    fn unknown(&self) -> Vec<Pending> {
        let remains = match self.variant {
            Variant::FirstViewAtOnce => return Vec::new(),
            Variant::FirstViewByOwnTerms => self.terms.sum(),
            _ => self.longest,
        };
        let owner = None;
        vec![Pending { owner, remains }]
    }

    /// The pending views of the view after this one.
    fn carried(&self, view: &View, now: u8) -> Vec<Pending> {
        let counts = view.is_confirmed || self.variant == Variant::UnconfirmedCounts;
        let passed = if counts { now - view.written } else { 0 };
        let mut pending = match self.variant {
            Variant::PendingForgotten => Vec::new(),
            _ => view.pending.clone(),
        };
        pending.retain(|it| it.remains >= passed);
        for it in &mut pending {
            it.remains -= passed;
        }
        pending.push(Pending {
            owner: Some(view.owner),
            remains: match self.variant {
                Variant::WaitsByNewTerms => self.terms.sum(),
                _ => view.terms.sum(),
            },
        });
        // The longest of each owner.
        pending.sort_unstable_by_key(|it| (it.owner, u8::MAX - it.remains));
        pending.dedup_by_key(|it| it.owner);
        pending
    }

    /// The publisher, or a client that reads the view unconfirmed, sends the second write.
    pub(super) fn confirm(state: &mut State) {
        let Some(view) = &state.stored else { return };
        state.confirmation = Some(Put {
            expect: Some((view.number, false)),
            view: View {
                is_confirmed: true,
                written: state.now,
                ..view.clone()
            },
        });
    }

    /// The ring store makes a write visible, if its condition holds.
    pub(super) fn commit(state: &mut State, put: Option<Put>) {
        let Some(put) = put else { return };
        let stored = state.stored.as_ref();
        if put.expect == stored.map(|view| (view.number, view.is_confirmed)) {
            state.number = state.number.max(put.view.number);
            state.stored = Some(put.view);
        }
    }

    /// Time passes: leases run out at members and at clients.
    pub(super) fn tick(state: &mut State) {
        state.now += 1;
        let now = state.now;
        for member in &mut state.members {
            member.lease = member.lease.filter(|lease| now <= lease.ends);
        }
        for client in &mut state.clients {
            client.guard = client.guard.filter(|guard| now <= guard.until);
        }
    }

    /// Removes what cannot change anything any longer, so that fewer states differ.
    pub(super) fn tidy(&self, state: &mut State) {
        let now = state.now;
        let stored = state.stored.as_ref();
        let version = stored.map(|view| (view.number, view.is_confirmed));
        // No version comes back.
        let is_possible = |put: &Put| put.expect == version;
        state.change = state.change.take().filter(is_possible);
        state.confirmation = state.confirmation.take().filter(is_possible);
        let is_from_own_read = self.variant == Variant::QuarantineFromOwnRead;
        let keeps_views = is_from_own_read
            || matches!(
                self.variant,
                Variant::ViewUsedTooLong | Variant::ModuloAlone
            );
        for client in &mut state.clients {
            client.seen = client.seen.filter(|seen| keeps_views || now <= seen.until);
            if let Some(seen) = &mut client.seen {
                seen.quarantine = seen.quarantine.filter(|ends| now <= *ends);
            }
            if !is_from_own_read {
                client.before = 0;
                if let Some(seen) = &mut client.seen {
                    seen.number = 0;
                }
            }
            // A renewal of a guard that has ended extends nothing.
            let has_guard = client.guard.is_some();
            let is_over = |it: &Request| {
                it.is_renewal && !has_guard
                    || it.stamp + it.lease < now && self.variant != Variant::CountedFromAnswer
            };
            client.request = client.request.filter(|it| !is_over(it));
        }
        // What every later token is above, whatever the clocks say.
        let below = now * TOKENS_PER_TICK;
        for member in &mut state.members {
            member.counter = if member.counter < below {
                0
            } else {
                member.counter
            };
        }
        state.highest = if state.highest < below {
            0
        } else {
            state.highest
        };
        let Some(view) = &mut state.stored else {
            return;
        };
        // A quarantine that is over matters no longer, except to the floor of a token.
        if view.is_confirmed && !self.tokens && !is_from_own_read {
            view.pending.retain(|it| now <= view.written + it.remains);
            if view.pending.is_empty() {
                view.written = 0;
            }
        }
    }
}
