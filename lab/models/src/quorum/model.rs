//! The steps that are possible in a state, the promises, and the words of a path.

use std::fmt::Write as _;

use stateright::{Model, Path, Property};

use super::{Left, Owner, Phase, Quorum, Request, State, Variant};
use crate::search::Protocol;

/// One step. A place is an index in the list of members.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Tick,
    Begin(u8),
    GiveUp(u8),
    Release(u8),
    Renew(u8, u8),
    Execute(usize, Owner, Request),
    Forget(usize),
    Failover(usize),
    ForceRelease(usize),
    Admit(usize, u8),
    FirstClient,
    Die,
    Replace(usize),
    WriteNew(usize),
}

pub(super) const ONE_HOLDER: &str = "one holder";
pub(super) const TOKENS_RISE: &str = "tokens rise";
pub(super) const HELD: &str = "held";
pub(super) const HELD_AFTER_WAIT: &str = "held by a member that waited";
pub(super) const HELD_AFTER_DEATH: &str = "held after a first client died";

impl Quorum {
    /// The members that got no marker of the old quorum yet, if a first client may write them: all
    /// members answer, and none has another quorum's marker.
    fn blanks(&self, state: &State) -> Vec<usize> {
        let places = 0..state.members.len();
        let blank: Vec<usize> = places.filter(|at| state.members[*at].is_blank()).collect();
        let written = state.members.len() - blank.len();
        let may_complete = self.variant != Variant::FirstClientMustFinish
            && state.count_markers(0, 0) == written
            && written < state.majority(0);
        if self.first_client && (written == 0 || may_complete) {
            blank
        } else {
            Vec::new()
        }
    }

    /// Whether a client may begin a round. A client of the new quorum starts when it sees that
    /// quorum on a majority.
    fn may_begin(&self, state: &State, client: u8) -> bool {
        let of = usize::from(client);
        let quorum = self.quorum[of];
        let is_started = quorum == 0 || state.count_markers(1, 1) >= state.majority(1);
        is_started && state.clients[of].round < self.rounds[of]
    }

    /// Whether members can forget.
    fn has_losses(&self) -> bool {
        self.start.left.forgets + self.start.left.failovers > 0 || self.first_client
    }

    fn faults(&self, state: &State, steps: &mut Vec<Step>) {
        let Left {
            forgets,
            failovers,
            forced_releases,
            deaths,
            ..
        } = state.left;
        for (at, member) in state.members.iter().enumerate() {
            // A member that knows nothing has nothing to forget, and a repair is the fast one's.
            let is_blank = member.marker.is_none() && member.lease.is_none();
            if forgets > 0 && !is_blank && (!self.repaired || member.ahead > 0) {
                steps.push(Step::Forget(at));
            }
            if failovers > 0 {
                steps.push(Step::Failover(at));
            }
            if forced_releases > 0 && member.lease.is_some() {
                steps.push(Step::ForceRelease(at));
            }
        }
        let blank = state
            .members
            .iter()
            .filter(|member| member.is_blank())
            .count();
        let written = state.members.len() - blank;
        if deaths > 0 && (1..state.majority(0)).contains(&written) {
            steps.push(Step::Die);
        }
    }

    fn markers(&self, state: &State, steps: &mut Vec<Step>) {
        let replaced = state.count_markers(0, 1) >= state.majority(0);
        for (at, member) in state.members.iter().enumerate() {
            for quorum in [0, 1] {
                let in_list = member.lists[usize::from(quorum)];
                let is_known = state.count_markers(quorum, quorum) >= state.majority(quorum);
                if self.has_losses() && in_list && member.is_blank() && is_known {
                    steps.push(Step::Admit(at, quorum));
                }
            }
            if self.reconfigure {
                let is_old = member.marker.is_some_and(|marker| marker.quorum == 0);
                if member.lists[0] && is_old && self.variant != Variant::NewListFirst {
                    steps.push(Step::Replace(at));
                }
                // Those of the new list come only then: two majorities would not meet before.
                let may_write = replaced || self.variant == Variant::NewListFirst;
                if !member.lists[0] && member.marker.is_none() && may_write {
                    steps.push(Step::WriteNew(at));
                }
            }
        }
        if !self.blanks(state).is_empty() {
            steps.push(Step::FirstClient);
        }
    }
}

impl Model for Quorum {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut start = self.start.clone();
        self.tidy(&mut start);
        vec![start]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (at, member) in state.members.iter().enumerate() {
            let requests = member.under_way.iter();
            steps.extend(requests.map(|(owner, request)| Step::Execute(at, *owner, *request)));
        }
        for (client, it) in (0..).zip(&state.clients) {
            match it.phase {
                Phase::Idle if self.may_begin(state, client) => steps.push(Step::Begin(client)),
                Phase::Asking if self.hasty => steps.push(Step::GiveUp(client)),
                Phase::Holding if self.hasty => steps.push(Step::Release(client)),
                Phase::Idle | Phase::Asking | Phase::Holding => {}
            }
            if it.phase == Phase::Holding && state.left.renewals > 0 {
                steps.extend(self.ttls.iter().map(|ttl| Step::Renew(client, *ttl)));
            }
        }
        self.faults(state, steps);
        self.markers(state, steps);
        if state.now < self.last_tick {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Begin(client) => self.begin(&mut state, client),
            Step::GiveUp(client) | Step::Release(client) => self.end(&mut state, client),
            Step::Renew(client, ttl) => self.renew(&mut state, client, ttl),
            Step::Execute(at, owner, request) => self.execute(&mut state, at, owner, request),
            Step::Forget(at) => {
                state.left.forgets -= 1;
                let member = &mut state.members[at];
                member.lose_lease();
                member.marker = None;
                if self.repaired {
                    member.ahead = 0;
                }
            }
            Step::Failover(at) => {
                state.left.failovers -= 1;
                let member = &mut state.members[at];
                member.lose_lease();
                member.epoch += 1;
            }
            Step::ForceRelease(at) => {
                state.left.forced_releases -= 1;
                state.members[at].lease = None;
            }
            Step::Admit(at, quorum) => self.admit(&mut state, at, quorum),
            Step::FirstClient => {
                for at in self.blanks(last) {
                    let epoch = state.members[at].epoch;
                    let marker = self.new_marker(0, epoch, 0);
                    state.members[at].send(super::NOBODY, Request::Admit { marker });
                }
            }
            Step::Die => {
                state.left.deaths -= 1;
                state.died = true;
                for member in &mut state.members {
                    let admits = |it: &Request| matches!(it, Request::Admit { .. });
                    member.under_way.retain(|(_, request)| !admits(request));
                }
            }
            Step::Replace(at) | Step::WriteNew(at) => self.replace(&mut state, at),
        }
        self.tidy(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Quorum>> {
        let mut all: Vec<Property<Quorum>> = vec![
            Property::always(TOKENS_RISE, |_, state: &State| !state.fell),
            Property::sometimes(HELD, |_, state: &State| state.held != 0),
        ];
        if !self.forced {
            all.push(Property::always(ONE_HOLDER, |_, state: &State| {
                let holding = state.clients.iter().filter(|it| it.phase == Phase::Holding);
                holding.count() < 2
            }));
        }
        if self.markers {
            all.push(Property::sometimes(HELD_AFTER_WAIT, |_, state: &State| {
                state.waited
            }));
        }
        if self.start.left.deaths > 0 {
            all.push(Property::sometimes(HELD_AFTER_DEATH, |_, state: &State| {
                state.died && state.waited
            }));
        }
        all
    }
}

impl Protocol for Quorum {
    type Variant = Variant;

    fn without(&self, rule: Variant) -> Self {
        Self {
            variant: rule,
            ..self.clone()
        }
    }

    fn in_words(path: Path<State, Step>) -> String {
        in_words(path)
    }
}

/// The steps of a path, one a line.
fn in_words(path: Path<State, Step>) -> String {
    let mut text = String::new();
    for (state, step) in path.into_vec() {
        let Some(step) = step else {
            let _ = writeln!(text, "  then: {:?}", state.clients);
            break;
        };
        let member = |at: usize| state.members[at].name.0;
        let client = |client: u8| char::from(b'A' + client);
        let line = match step {
            Step::Tick => format!("it is {}", state.now + 1),
            Step::Begin(it) => format!("{} begins a round", client(it)),
            Step::GiveUp(it) => format!("{} gives its round up", client(it)),
            Step::Release(it) => format!("{} releases", client(it)),
            Step::Renew(it, ttl) => format!("{} renews by {ttl}", client(it)),
            Step::Execute(at, owner, Request::Admit { .. }) if owner == super::NOBODY => {
                format!("member {} is admitted", member(at))
            }
            Step::Execute(at, owner, request) => {
                let (of, round) = (client(owner.client), owner.round);
                format!("member {} executes {request:?} of {of}{round}", member(at))
            }
            Step::Forget(at) => format!("member {} forgets everything", member(at)),
            Step::Failover(at) => format!("member {} fails over and lacks its lease", member(at)),
            Step::ForceRelease(at) => format!("an operator frees member {}", member(at)),
            Step::Admit(at, _) => format!("a new client wants to admit member {}", member(at)),
            Step::FirstClient => "a first client writes the markers".to_owned(),
            Step::Die => "the first client dies".to_owned(),
            Step::Replace(at) => format!("member {} gets the new marker", member(at)),
            Step::WriteNew(at) => format!("new member {} gets the new marker", member(at)),
        };
        let _ = writeln!(text, "  {line}");
    }
    text
}
