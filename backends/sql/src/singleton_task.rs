//! Who does something for all: one task at a time, on the runtime of whoever needed it first. A runtime may stand still for
//! as long as it likes, so a task says until when it will be heard of again; when it is not, another takes its place.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::Moment;

/// How much later than it said a task may be heard of: a busy machine is no reason to replace it.
const GRACE: Duration = Duration::from_secs(1);

/// The place of a task.
#[derive(Debug, Default)]
pub(crate) struct SingletonTask {
    // A std mutex: held to look and to change only.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Which task it is, counted from 1.
    turn: u64,
    /// When it is heard of again; `None` when there is none.
    due: Option<Moment>,
}

impl SingletonTask {
    /// Takes the place, unless somebody has it who is heard of. Says which turn it is.
    pub(crate) fn start(&self, now: Moment) -> Option<u64> {
        let mut state = self.state();
        if state.due.is_some_and(|due| now.since(due) <= GRACE) {
            return None;
        }
        state.turn += 1;
        state.due = Some(now);
        Some(state.turn)
    }

    /// Notes that the task of this turn lives, and when it is heard of again. Says whether the place is still its own.
    pub(crate) fn extend(&self, turn: u64, due: Moment) -> bool {
        let mut state = self.state();
        let mine = state.turn == turn;
        if mine {
            state.due = Some(due);
        }
        mine
    }

    /// Leaves the place, if it is still this turn's.
    pub(crate) fn finish(&self, turn: u64) {
        let mut state = self.state();
        if state.turn == turn {
            state.due = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_heard_of_is_replaced() {
        let task = SingletonTask::default();
        let at = |seconds| Moment::from_boot(Duration::from_secs(seconds));
        let first = task.start(at(100)).unwrap();
        assert_eq!(task.start(at(101)), None);
        assert!(task.extend(first, at(110)));
        assert_eq!(task.start(at(111)), None);
        let second = task.start(at(112)).unwrap();
        assert!(!task.extend(first, at(200)));
        task.finish(first);
        assert_eq!(task.start(at(112)), None);
        task.finish(second);
        assert!(task.start(at(112)).is_some());
    }
}
