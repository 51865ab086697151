//! What each step changes.

use super::{CLIENTS, Client, Entry, LEASE, Mode, Phase, Put, Record, Shared, State, Variant};

/// A version that no record has any more.
const STALE: u8 = u8::MAX;

impl Client {
    /// Whether one of its callers believes that it holds.
    pub(super) fn holds(&self) -> bool {
        self.phase == Phase::Holding || self.guards > 0
    }
}

impl State {
    pub(super) fn client(&mut self, of: u8) -> &mut Client {
        &mut self.clients[usize::from(of)]
    }

    pub(super) fn take_slot(&mut self, of: u8) {
        let slot = &mut self.slots[usize::from(of)];
        slot.counter += 1;
        slot.is_held = true;
        let token = slot.counter;
        let client = self.client(of);
        (client.slot, client.has_slot) = (token, true);
    }

    /// The store executes a write. Returns the new version, or `None` for a conflict.
    pub(super) fn put(&mut self, put: Put) -> Option<u8> {
        if self.record.version != put.expect {
            return None;
        }
        self.versions += 1;
        let version = if put.entries.is_empty() {
            0
        } else {
            self.versions
        };
        let record = Record {
            version,
            entries: put.entries,
        };
        let before = std::mem::replace(&mut self.record, record);
        if self.left.failovers > 0 {
            self.before = before;
        }
        Some(self.versions)
    }

    fn own_entry(&self, of: u8) -> Option<Entry> {
        let slot = self.clients[usize::from(of)].slot;
        let mut entries = self.record.entries.iter().copied();
        entries.find(|entry| (entry.client, entry.slot) == (of, slot))
    }

    /// Another client may become the head.
    fn free_line(&mut self, of: u8) {
        if self.line != Some(of) {
            return;
        }
        self.line = None;
        self.client(of).has_said = false;
        for client in &mut self.clients {
            client.behind = client.behind.filter(|head| *head != of);
        }
    }

    pub(super) fn look(&mut self, of: u8) {
        let now = self.now;
        if self.own_entry(of).is_some() {
            self.client(of).seen = now;
        } else {
            self.lose(of);
        }
    }

    /// The guard of a holder is lost. Its entry stays; the slot ends by itself or is released.
    fn lose(&mut self, of: u8) {
        self.client(of).phase = Phase::Idle;
        self.client(of).pending = None;
        self.client(of).guards = 0;
        self.release_slot(of);
    }

    pub(super) fn release_slot(&mut self, of: u8) {
        if std::mem::take(&mut self.client(of).has_slot) {
            self.slots[usize::from(of)].is_held = false;
        }
    }

    pub(super) fn crash(&mut self, of: u8) {
        self.left.crashes -= 1;
        self.died |= self.client(of).phase == Phase::Holding;
        self.time_out(of);
        let client = self.client(of);
        (client.is_alive, client.phase, client.guards) = (false, Phase::Idle, 0);
        client.dead.clear();
        // Nobody is behind a dead head, which cannot be passed.
        for client in &mut self.clients {
            client.behind = client.behind.filter(|head| *head != of);
        }
    }

    pub(super) fn slot_ends(&mut self, of: u8) {
        self.slots[usize::from(of)].is_held = false;
        let client = self.client(of);
        client.has_slot = false;
        if !client.is_alive {
            return;
        }
        let holds = matches!(client.phase, Phase::Holding | Phase::Downgrading);
        self.left.stops -= 1;
        if holds {
            self.time_out(of);
            self.lose(of);
        }
    }

    pub(super) fn line_ends(&mut self) {
        let Some(of) = self.line else { return };
        if self.client(of).is_alive {
            self.left.stops -= 1;
        }
        self.free_line(of);
    }

    /// The write of a client goes on without it.
    pub(super) fn time_out(&mut self, of: u8) {
        if let Some(put) = self.client(of).pending.take() {
            self.late.push(put);
        }
        if self.client(of).phase == Phase::Writing {
            self.client(of).phase = self.acquiring(of);
        }
    }

    pub(super) fn cancel(&mut self, of: u8) {
        self.time_out(of);
        self.client(of).phase = Phase::Idle;
        self.release_slot(of);
        self.free_line(of);
    }

    /// The phase of a client that has to read the record again.
    fn acquiring(&self, of: u8) -> Phase {
        if self.line == Some(of) {
            Phase::Waiting
        } else {
            Phase::Entering
        }
    }
}

impl Shared {
    fn fits(&self, entries: &[Entry], mode: Mode) -> bool {
        match mode {
            Mode::Write => entries.is_empty(),
            Mode::Read => entries.iter().all(|entry| entry.mode == Mode::Read),
            Mode::Permits(wanted) => {
                permits(entries.iter().map(|it| it.mode)) + wanted <= self.capacity
            }
        }
    }

    pub(super) fn are_compatible(&self, state: &State) -> bool {
        let holding = || state.clients.iter().filter(|it| it.holds());
        let writers = holding().filter(|it| it.mode == Mode::Write).count();
        (writers == 0 || holding().count() == 1)
            && permits(holding().map(|it| it.mode)) <= self.capacity
    }

    /// Whether nobody else could hold, counting those that live.
    pub(super) fn is_full(&self, state: &State) -> bool {
        let mut holding = state.clients.iter().filter(|it| it.phase == Phase::Holding);
        let taken = permits(holding.clone().map(|it| it.mode));
        holding.any(|it| it.mode == Mode::Write) || taken > 0 && taken == self.capacity
    }

    /// The entries for whose slots the head contends.
    pub(super) fn contended(&self, state: &State, of: u8) -> Vec<Entry> {
        let client = &state.clients[usize::from(of)];
        let entries = state.record.entries.iter().copied();
        let alive = entries.filter(|entry| !self.is_dead(client, of, entry));
        let alive: Vec<Entry> = alive.collect();
        if self.fits(&alive, client.mode) || self.variant == Variant::DeadEntriesCounted {
            return Vec::new();
        }
        let mut blockers = alive;
        if client.mode == Mode::Read {
            blockers.retain(|entry| entry.mode == Mode::Write);
        }
        if self.variant == Variant::OneBlockerWatched {
            blockers.truncate(1);
        }
        blockers
    }

    /// Whether the client knows that the holder of an entry is gone.
    fn is_dead(&self, client: &Client, of: u8, entry: &Entry) -> bool {
        // An earlier entry of its own: it has the slot with a higher token.
        let is_own = entry.client == of && client.has_slot && entry.slot < client.slot;
        is_own
            || client.dead.iter().any(|(dead, slot)| {
                *dead == entry.client
                    && (*slot == entry.slot || self.variant == Variant::RemovedByName)
            })
    }

    pub(super) fn begin(&self, state: &mut State, of: u8) {
        let head = state.line.filter(|head| {
            let head = &state.clients[usize::from(*head)];
            head.is_alive && head.has_said
        });
        let mode = match (of, state.client(of).round) {
            (0, 1..) => self.later,
            _ => self.modes[usize::from(of)],
        };
        let client = state.client(of);
        client.round += 1;
        client.phase = Phase::Entering;
        client.mode = mode;
        client.dead.clear();
        client.behind = head;
    }

    /// Reads the record, and sends the write that follows from it.
    pub(super) fn attempt(&self, state: &mut State, of: u8) {
        let own = state.own_entry(of);
        match state.client(of).phase {
            Phase::Leaving => match own {
                Some(_) => self.send(state, of, None),
                None => state.client(of).phase = Phase::Idle,
            },
            Phase::Downgrading => self.attempt_downgrade(state, of, own),
            _ => self.attempt_enter(state, of, own),
        }
    }

    fn attempt_enter(&self, state: &mut State, of: u8, own: Option<Entry>) {
        // A write without an answer has arrived. It is written once more: a store may forget what
        // it has not acknowledged.
        let mode = state.client(of).mode;
        let trusts = self.variant == Variant::EarlierModeTrusted;
        if let Some(entry) = own.filter(|entry| entry.mode == mode || trusts) {
            self.send(state, of, Some(entry.mode));
            state.client(of).phase = Phase::Writing;
            return;
        }
        let is_head = state.line == Some(of);
        let must_queue =
            state.waiting.is_some() && !is_head && self.variant != Variant::WaitingIgnored;
        let client = &state.clients[usize::from(of)];
        // An entry of its own with another mode is of an earlier use of the slot.
        let entries = state.record.entries.iter().copied();
        let alive = entries.filter(|entry| !self.is_dead(client, of, entry) && own != Some(*entry));
        let alive: Vec<Entry> = alive.collect();
        if must_queue || !self.fits(&alive, client.mode) {
            state.client(of).phase = Phase::Waiting;
            return;
        }
        let mode = client.mode;
        self.send(state, of, Some(mode));
        state.client(of).phase = Phase::Writing;
    }

    fn attempt_downgrade(&self, state: &mut State, of: u8, own: Option<Entry>) {
        let in_two = self.variant == Variant::DowngradeInTwoWrites;
        match own.map(|entry| entry.mode) {
            Some(Mode::Write) if in_two => self.send(state, of, None),
            Some(_) => self.send(state, of, Some(Mode::Read)),
            None if in_two && self.fits(&state.record.entries, Mode::Read) => {
                self.send(state, of, Some(Mode::Read));
            }
            None if in_two => {}
            None => state.lose(of),
        }
    }

    /// Sends the record without the dead entries, and with the client's own in this mode.
    fn send(&self, state: &mut State, of: u8, mode: Option<Mode>) {
        let client = &state.clients[usize::from(of)];
        let entries = state.record.entries.iter().copied();
        let others = entries.filter(|entry| {
            (entry.client, entry.slot) != (of, client.slot) && !self.is_dead(client, of, entry)
        });
        let mut entries: Vec<Entry> = others.collect();
        entries.extend(mode.map(|mode| Entry {
            client: of,
            slot: client.slot,
            mode,
        }));
        let put = Put {
            expect: state.record.version,
            entries,
            sent: state.now,
        };
        state.client(of).pending = Some(put);
    }

    /// The store executes the write that a client waits for.
    pub(super) fn answer(&self, state: &mut State, of: u8) {
        let Some(put) = state.client(of).pending.take() else {
            return;
        };
        let sent = put.sent;
        let shown = put.entries.iter().any(|entry| entry.client == of);
        match (state.put(put), state.client(of).phase) {
            (Some(version), Phase::Writing) => self.hold(state, of, version, sent),
            (Some(version), Phase::Downgrading) if shown => {
                state.client(of).mode = Mode::Read;
                self.hold(state, of, version, sent);
            }
            (Some(_), Phase::Leaving) => state.client(of).phase = Phase::Idle,
            (None, Phase::Writing) if self.variant == Variant::OlderVersion => {
                let mode = state.client(of).mode;
                self.send(state, of, Some(mode));
            }
            (None, Phase::Writing) => state.client(of).phase = state.acquiring(of),
            // The client reads the record again.
            (_, _) => {}
        }
    }

    /// The client holds from now on, if the guard of its slot is valid.
    fn hold(&self, state: &mut State, of: u8, token: u8, seen: u8) {
        if !state.client(of).has_slot && self.variant != Variant::SlotNotChecked {
            state.client(of).phase = state.acquiring(of);
            return;
        }
        if seen + LEASE <= state.now && self.last_tick > 0 {
            state.lose(of);
            state.free_line(of);
            return;
        }
        let mut others = (0..).zip(&state.clients).filter(|(other, _)| *other != of);
        let are_downgrading =
            others.any(|(_, it)| it.is_alive && it.has_slot && it.phase == Phase::Downgrading);
        let behind = state.clients[usize::from(of)].behind;
        let mode = state.clients[usize::from(of)].mode;
        let was_writer = state.clients[usize::from(of)].phase == Phase::Downgrading;
        state.entered = true;
        state.passed |= behind.is_some() && state.line != Some(of);
        state.between |= mode == Mode::Write && are_downgrading;
        state.downgraded |= was_writer;
        state.fell |= match mode {
            Mode::Write => token <= state.highest,
            Mode::Read | Mode::Permits(_) => token <= state.highest_write,
        };
        state.highest = state.highest.max(token);
        if mode == Mode::Write {
            state.highest_write = state.highest_write.max(token);
        }
        let client = state.client(of);
        client.phase = Phase::Holding;
        client.guards = client.guards.max(1);
        client.dead.clear();
        (client.seen, client.behind) = (seen, None);
        if state.line == Some(of) {
            // Whoever waits behind it says so again, under another version.
            state.unsaid.extend(state.waiting);
            state.free_line(of);
        }
    }

    pub(super) fn say_waiting(&self, state: &mut State, of: u8) {
        if state.waiting.is_none() || self.variant != Variant::WaitingOfAnotherTrusted {
            state.said += 1;
            state.waiting = Some(state.said);
        }
        state.client(of).has_said = true;
    }

    /// The head gets the slot of an entry. It gives the slot back at once, and removes the entry
    /// later.
    pub(super) fn contend(&self, state: &mut State, of: u8, entry: (u8, u8)) {
        let slot = &mut state.slots[usize::from(entry.0)];
        let is_got = !slot.is_held;
        slot.counter += u8::from(is_got);
        if is_got || self.variant == Variant::RemovedWithoutSlot {
            let dead = &mut state.client(of).dead;
            dead.push(entry);
            dead.sort_unstable();
        }
    }

    /// The slot is released while the removal of the entry is under way, or kept until the record
    /// lacks the entry, at least.
    pub(super) fn leave(&self, state: &mut State, of: u8) {
        let client = state.client(of);
        client.guards -= 1;
        if client.guards > 0 && self.variant != Variant::FirstRemoves {
            return;
        }
        client.phase = Phase::Leaving;
        if !self.keeps {
            state.release_slot(of);
        }
        self.attempt(state, of);
    }

    /// Time passes. A guard that has not seen its entry for a lease is lost.
    pub(super) fn tick(&self, state: &mut State) {
        state.now += 1;
        for of in 0..CLIENTS {
            let client = &state.clients[of];
            let is_over = client.phase == Phase::Holding && client.seen + LEASE <= state.now;
            if is_over && self.variant != Variant::NotLookedForAgain {
                state.lose(u8::try_from(of).unwrap_or(u8::MAX));
            }
        }
    }

    /// Removes what cannot change anything any longer, and numbers versions and tokens anew in
    /// their order, so that fewer states differ.
    pub(super) fn tidy(&self, state: &mut State) {
        let version = state.record.version;
        if state.left.failovers == 0 {
            state.before = Record::default();
            // No version comes back, except that of no record and one before a lost write.
            state
                .late
                .retain(|put| put.expect == 0 || put.expect == version);
        }
        for put in &mut state.late {
            put.sent = 0;
        }
        let waiting = state.waiting;
        state.unsaid.retain(|it| Some(*it) == waiting);
        for client in &mut state.clients {
            if client.phase == Phase::Idle {
                client.dead.clear();
                client.behind = None;
            }
            if self.last_tick == 0 {
                client.seen = 0;
            }
        }
        renumber_versions(state);
        for of in 0..CLIENTS {
            renumber_tokens(state, of);
        }
        // Only the present word of a head can be removed.
        state.said = u8::from(state.waiting.is_some());
        state.waiting = state.waiting.map(|_| 1);
        state.unsaid.fill(1);
        state.unsaid.dedup();
        state.late.sort_unstable();
        state.late.dedup();
    }
}

impl State {
    fn puts(&mut self) -> impl Iterator<Item = &mut Put> {
        let pending = self.clients.iter_mut().flat_map(|it| &mut it.pending);
        pending.chain(&mut self.late)
    }
}

fn renumber_versions(state: &mut State) {
    let (version, before) = (state.record.version, state.before.version);
    for put in state.puts() {
        if ![0, version, before].contains(&put.expect) {
            put.expect = STALE;
        }
    }
    let mut used = vec![0, version, before, state.highest, state.highest_write];
    used.sort_unstable();
    used.dedup();
    let number = |version: &mut u8| {
        let place = used.iter().position(|it| it == version);
        if let Some(place) = place.and_then(|place| u8::try_from(place).ok()) {
            *version = place;
        }
    };
    number(&mut state.record.version);
    number(&mut state.before.version);
    number(&mut state.highest);
    number(&mut state.highest_write);
    for put in state.puts() {
        number(&mut put.expect);
    }
    state.versions = u8::try_from(used.len() - 1).unwrap_or(u8::MAX);
}

/// The tokens of one slot.
fn renumber_tokens(state: &mut State, of: usize) {
    let mut used = Vec::new();
    each_token(state, of, &mut |token| used.push(*token));
    used.push(0);
    used.sort_unstable();
    used.dedup();
    let mut number = |token: &mut u8| {
        let place = used.iter().position(|it| it == token);
        if let Some(place) = place.and_then(|place| u8::try_from(place).ok()) {
            *token = place;
        }
    };
    each_token(state, of, &mut number);
    state.slots[of].counter = u8::try_from(used.len() - 1).unwrap_or(u8::MAX);
}

/// All tokens of one slot that are compared with others.
fn each_token(state: &mut State, of: usize, visit: &mut dyn FnMut(&mut u8)) {
    let is_its = |client: u8| usize::from(client) == of;
    visit(&mut state.clients[of].slot);
    for client in &mut state.clients {
        for (dead, token) in &mut client.dead {
            if is_its(*dead) {
                visit(token);
            }
        }
    }
    let mut entries: Vec<&mut Entry> = Vec::new();
    entries.extend(&mut state.record.entries);
    entries.extend(&mut state.before.entries);
    let pending = state.clients.iter_mut().flat_map(|it| &mut it.pending);
    for put in pending.chain(&mut state.late) {
        entries.extend(&mut put.entries);
    }
    for entry in entries {
        if is_its(entry.client) {
            visit(&mut entry.slot);
        }
    }
}

fn permits(modes: impl Iterator<Item = Mode>) -> u8 {
    let permits = modes.map(|mode| match mode {
        Mode::Permits(permits) => permits,
        Mode::Read | Mode::Write => 0,
    });
    permits.sum()
}
