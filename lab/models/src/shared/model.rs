//! The steps that are possible in a state, the promises, and the words of a path.

use std::fmt::Write as _;

use stateright::{Model, Path, Property};

use super::{CLIENTS, LEASE, Phase, Put, Shared, State, Variant};
use crate::search::Protocol;

/// One step. The numbers are clients, unless the step says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Tick,
    Begin(u8),
    TakeSlot(u8),
    /// Reads the record, and sends the write that follows from it.
    Attempt(u8),
    /// The store executes the write that a client waits for.
    Answer(u8),
    TakeLine(u8),
    SayWaiting(u8),
    /// The head contends for the slot of an entry with this token.
    Contend(u8, u8, u8),
    Leave(u8),
    /// Another reader of the same process joins.
    Join(u8),
    /// A slot that was kept is released.
    GiveUp(u8),
    Downgrade(u8),
    /// A holder looks for its entry.
    Look(u8),
    Crash(u8),
    /// The lease of a slot ends.
    SlotEnds(u8),
    LineEnds,
    TimeOut(u8),
    Cancel(u8),
    Late(Put),
    /// A removal of `waiting` with this version is executed.
    Unsay(u8),
    Failover,
}

pub(super) const COMPATIBLE: &str = "holders are compatible";
pub(super) const TOKENS_RISE: &str = "tokens rise";
pub(super) const NOT_PASSED: &str = "no newcomer passes the head of the line";
pub(super) const NOBODY_BETWEEN: &str = "no writer between writer and reader";
pub(super) const HELD: &str = "held";
pub(super) const HELD_AFTER_DEATH: &str = "held to the full after a holder died";
pub(super) const DOWNGRADED: &str = "downgraded";

impl Shared {
    fn faults(&self, state: &State, steps: &mut Vec<Step>) {
        let left = state.left;
        for (of, client) in (0..).zip(&state.clients) {
            // Whoever begins no round stays to the end.
            let is_mortal = client.is_alive && self.rounds[usize::from(of)] > 0;
            if is_mortal && client.phase != Phase::Idle && left.crashes > 0 {
                steps.push(Step::Crash(of));
            }
            if state.slots[usize::from(of)].is_held && (!client.is_alive || left.stops > 0) {
                steps.push(Step::SlotEnds(of));
            }
            if client.pending.is_some() && left.timeouts > 0 {
                steps.push(Step::TimeOut(of));
            }
            let acquires = [Phase::Entering, Phase::Waiting, Phase::Writing];
            if client.is_alive && acquires.contains(&client.phase) && left.cancels > 0 {
                steps.push(Step::Cancel(of));
            }
        }
        let head = state.line.map(|of| &state.clients[usize::from(of)]);
        if head.is_some_and(|head| !head.is_alive || left.stops > 0) {
            steps.push(Step::LineEnds);
        }
        if left.failovers > 0 && state.record != state.before {
            steps.push(Step::Failover);
        }
    }

    /// The steps of a live client.
    fn client(&self, state: &State, of: u8, steps: &mut Vec<Step>) {
        let client = &state.clients[usize::from(of)];
        if client.pending.is_some() {
            steps.push(Step::Answer(of));
            return;
        }
        let is_head = state.line == Some(of);
        let is_acquiring = matches!(client.phase, Phase::Entering | Phase::Waiting);
        if is_acquiring && !client.has_slot && !state.slots[usize::from(of)].is_held {
            steps.push(Step::TakeSlot(of));
        }
        match client.phase {
            Phase::Idle => {
                if client.round < self.rounds[usize::from(of)] {
                    steps.push(Step::Begin(of));
                }
                if client.has_slot {
                    steps.push(Step::GiveUp(of));
                }
            }
            Phase::Entering if client.has_slot => steps.push(Step::Attempt(of)),
            Phase::Waiting if is_head => {
                if client.has_slot {
                    steps.push(Step::Attempt(of));
                }
                if !client.has_said {
                    steps.push(Step::SayWaiting(of));
                }
                let contends = self.contended(state, of).into_iter();
                steps.extend(contends.map(|entry| Step::Contend(of, entry.client, entry.slot)));
            }
            Phase::Waiting if state.line.is_none() => steps.push(Step::TakeLine(of)),
            Phase::Holding => {
                if self.leave {
                    steps.push(Step::Leave(of));
                }
                if self.keeps && client.mode == super::Mode::Read && client.guards < 2 {
                    steps.push(Step::Join(of));
                }
                if self.downgrade && client.mode == super::Mode::Write {
                    steps.push(Step::Downgrade(of));
                }
                if self.last_tick > 0 && self.variant != Variant::NotLookedForAgain {
                    steps.push(Step::Look(of));
                }
            }
            Phase::Downgrading | Phase::Leaving => steps.push(Step::Attempt(of)),
            Phase::Entering | Phase::Waiting | Phase::Writing => {}
        }
    }
}

impl Model for Shared {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (of, client) in (0..).zip(&state.clients) {
            if client.is_alive {
                self.client(state, of, steps);
            }
        }
        self.faults(state, steps);
        steps.extend(state.late.iter().cloned().map(Step::Late));
        steps.extend(state.unsaid.iter().copied().map(Step::Unsay));
        if state.now < self.last_tick {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Begin(of) => self.begin(&mut state, of),
            Step::TakeSlot(of) => state.take_slot(of),
            Step::Attempt(of) => self.attempt(&mut state, of),
            Step::Answer(of) => self.answer(&mut state, of),
            Step::TakeLine(of) => state.line = Some(of),
            Step::SayWaiting(of) => self.say_waiting(&mut state, of),
            Step::Contend(of, client, slot) => self.contend(&mut state, of, (client, slot)),
            Step::Leave(of) => self.leave(&mut state, of),
            Step::Join(of) => state.client(of).guards += 1,
            Step::GiveUp(of) => state.release_slot(of),
            Step::Downgrade(of) => {
                state.client(of).phase = Phase::Downgrading;
                self.attempt(&mut state, of);
            }
            Step::Look(of) => state.look(of),
            Step::Crash(of) => state.crash(of),
            Step::SlotEnds(of) => state.slot_ends(of),
            Step::LineEnds => state.line_ends(),
            Step::TimeOut(of) => {
                state.left.timeouts -= 1;
                state.time_out(of);
            }
            Step::Cancel(of) => {
                state.left.cancels -= 1;
                state.cancel(of);
            }
            Step::Late(put) => {
                state.late.retain(|it| *it != put);
                state.put(put);
            }
            Step::Unsay(version) => {
                state.unsaid.retain(|it| *it != version);
                state.waiting = state.waiting.filter(|it| *it != version);
            }
            Step::Failover => {
                state.left.failovers -= 1;
                state.failed = Some(state.now);
                state.record = state.before.clone();
            }
        }
        self.tidy(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Shared>> {
        let mut all: Vec<Property<Shared>> = vec![
            Property::always(COMPATIBLE, |model: &Shared, state: &State| {
                // After a lost write, until the guards that it concerns have looked.
                let is_excused = state.failed.is_some_and(|then| state.now < then + LEASE);
                is_excused || model.are_compatible(state)
            }),
            Property::always(TOKENS_RISE, |_, state: &State| !state.fell),
            Property::always(NOT_PASSED, |_, state: &State| !state.passed),
            Property::always(NOBODY_BETWEEN, |_, state: &State| !state.between),
            Property::sometimes(HELD, |_, state: &State| state.entered),
        ];
        if self.start.left.crashes > 0 {
            all.push(Property::sometimes(
                HELD_AFTER_DEATH,
                |model: &Shared, state: &State| state.died && model.is_full(state),
            ));
        }
        if self.downgrade {
            all.push(Property::sometimes(DOWNGRADED, |_, state: &State| {
                state.downgraded
            }));
        }
        all
    }
}

impl Protocol for Shared {
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
    let name = |client: u8| char::from(b'A' + client);
    for (state, step) in path.into_vec() {
        let Some(step) = step else {
            let holding = (0..CLIENTS).filter(|of| state.clients[*of].holds());
            let holding: Vec<_> = holding.map(|of| (of, state.clients[of].mode)).collect();
            let _ = writeln!(text, "  then hold: {holding:?}");
            break;
        };
        let line = match step {
            Step::Tick => format!("it is {}", state.now + 1),
            Step::Begin(of) => format!("{} begins", name(of)),
            Step::TakeSlot(of) => format!("{} takes its slot", name(of)),
            Step::Attempt(of) => format!("{} reads {:?}", name(of), state.record),
            Step::Answer(of) => format!("{} gets the answer to its write", name(of)),
            Step::TakeLine(of) => format!("{} is the head of the line", name(of)),
            Step::SayWaiting(of) => format!("{} says that it waits", name(of)),
            Step::Contend(of, at, _) => format!("{} contends for {}'s slot", name(of), name(at)),
            Step::Leave(of) => format!("{} leaves", name(of)),
            Step::Join(of) => format!("another reader of {} joins", name(of)),
            Step::GiveUp(of) => format!("{} gives up the slot that it kept", name(of)),
            Step::Downgrade(of) => format!("{} downgrades", name(of)),
            Step::Look(of) => format!("{} looks for its entry", name(of)),
            Step::Crash(of) => format!("{} dies", name(of)),
            Step::SlotEnds(of) => format!("{}'s slot ends", name(of)),
            Step::LineEnds => "the lease of the line ends".to_owned(),
            Step::TimeOut(of) => format!("{} gives up waiting for an answer", name(of)),
            Step::Cancel(of) => format!("{}'s caller gives up", name(of)),
            Step::Late(put) => format!("a late write arrives: {put:?}"),
            Step::Unsay(_) => "`waiting` is removed".to_owned(),
            Step::Failover => "the last write is lost".to_owned(),
        };
        let _ = writeln!(text, "  {line}");
    }
    text
}
