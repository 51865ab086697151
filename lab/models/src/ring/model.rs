//! The steps that are possible in a state, the promises, and the words of a path.

use std::fmt::Write as _;

use stateright::{Model, Path, Property};

use super::{CLIENTS, MEMBERS, Ring, State, Variant};
use crate::search::Protocol;

/// One step. The numbers are clients, unless the step says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Tick,
    /// Sends a read of the view.
    Read(u8),
    /// The read is executed.
    Answer(u8),
    /// Stamps a grant or a renewal.
    Send(u8),
    Execute(u8),
    /// A publisher gives the name to this member.
    Change(u8),
    Confirm,
    SeeChange,
    SeeConfirmation,
    Die,
    LoseView,
    Repair,
}

pub(super) const ONE_HOLDER: &str = "one holder";
pub(super) const TOKENS_RISE: &str = "tokens rise";
pub(super) const HELD_AFTER_MOVE: &str = "held by its new owner";
pub(super) const HELD_AFTER_DEATH: &str = "held by its new owner after the publisher died";

impl Ring {
    fn client(&self, state: &State, of: u8, steps: &mut Vec<Step>) {
        let client = &state.clients[usize::from(of)];
        match client.reading {
            None => steps.push(Step::Read(of)),
            Some(_) => steps.push(Step::Answer(of)),
        }
        if client.request.is_some() {
            steps.push(Step::Execute(of));
        } else if self.allowed(state, usize::from(of)).is_some() {
            steps.push(Step::Send(of));
        }
    }

    fn publishers(&self, state: &State, steps: &mut Vec<Step>) {
        let is_unconfirmed = state.stored.as_ref().is_some_and(|view| !view.is_confirmed);
        let may_change = state.left.changes > 0 || state.stored.is_none();
        if state.change.is_some() {
            steps.push(Step::SeeChange);
        } else if may_change {
            steps.extend((0..).take(MEMBERS).map(Step::Change));
        }
        let may_confirm = !state.died || self.variant != Variant::PublisherConfirms;
        if state.confirmation.is_some() {
            steps.push(Step::SeeConfirmation);
        } else if is_unconfirmed && may_confirm {
            steps.push(Step::Confirm);
        }
        if state.left.deaths > 0 && is_unconfirmed {
            steps.push(Step::Die);
        }
    }
}

impl Model for Ring {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for of in (0..).take(CLIENTS) {
            self.client(state, of, steps);
        }
        self.publishers(state, steps);
        if state.left.losses > 0 {
            steps.push(Step::LoseView);
        }
        if state.left.repairs > 0 {
            steps.push(Step::Repair);
        }
        if state.now < self.last_tick {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Tick => Self::tick(&mut state),
            Step::Read(of) => {
                state.clients[usize::from(of)].reading = Some(state.now);
                if !self.slow_reads {
                    self.answer(&mut state, usize::from(of));
                }
            }
            Step::Answer(of) => self.answer(&mut state, usize::from(of)),
            Step::Send(of) => self.send(&mut state, usize::from(of)),
            Step::Execute(of) => self.execute(&mut state, of),
            Step::Change(owner) => {
                state.left.changes = state.left.changes.saturating_sub(1);
                self.change(&mut state, owner);
            }
            Step::Confirm => Self::confirm(&mut state),
            Step::SeeChange => {
                let put = state.change.take();
                Self::commit(&mut state, put);
            }
            Step::SeeConfirmation => {
                let put = state.confirmation.take();
                Self::commit(&mut state, put);
            }
            Step::Die => {
                state.left.deaths -= 1;
                (state.died, state.confirmation) = (true, None);
            }
            Step::LoseView => {
                state.left.losses -= 1;
                state.stored = None;
            }
            Step::Repair => {
                state.left.repairs -= 1;
                state.members = state
                    .members
                    .map(|member| super::Member { ahead: 0, ..member });
            }
        }
        self.tidy(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Ring>> {
        let mut all: Vec<Property<Ring>> = vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                let guards = state.clients.iter().filter(|it| it.guard.is_some());
                guards.count() < 2
            }),
            Property::always(TOKENS_RISE, |_, state: &State| !state.fell),
            Property::sometimes(HELD_AFTER_MOVE, |_, state: &State| has_moved(state)),
        ];
        if self.start.left.deaths > 0 {
            all.push(Property::sometimes(HELD_AFTER_DEATH, |_, state: &State| {
                state.died && has_moved(state)
            }));
        }
        all
    }
}

impl Protocol for Ring {
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

/// Whether the name is held at another member than in the first view.
fn has_moved(state: &State) -> bool {
    let mut guards = state.clients.iter().filter_map(|client| client.guard);
    guards.any(|guard| guard.member > 0)
}

/// The steps of a path, one a line.
fn in_words(path: Path<State, Step>) -> String {
    let mut text = String::new();
    let name = |client: u8| char::from(b'A' + client);
    for (state, step) in path.into_vec() {
        let Some(step) = step else {
            let _ = writeln!(text, "  then: {:?}", state.clients);
            break;
        };
        let line = match step {
            Step::Tick => format!("it is {}", state.now + 1),
            Step::Read(of) => format!("{} reads the view", name(of)),
            Step::Answer(of) => format!("{}'s read is answered", name(of)),
            Step::Send(of) => format!("{} sends a request", name(of)),
            Step::Execute(of) => {
                let request = state.clients[usize::from(of)].request;
                format!("{}'s request is executed: {request:?}", name(of))
            }
            Step::Change(owner) => format!("a publisher gives the name to member {owner}"),
            Step::Confirm => "the view is to be confirmed".to_owned(),
            Step::SeeChange => "the change is seen".to_owned(),
            Step::SeeConfirmation => "the confirmation is seen".to_owned(),
            Step::Die => "the publisher dies".to_owned(),
            Step::LoseView => "the ring store loses the view".to_owned(),
            Step::Repair => "the clocks are set right".to_owned(),
        };
        let _ = writeln!(text, "  {line}");
    }
    text
}
