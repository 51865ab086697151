//! Keeps one background task running for all callers of a handle.
//!
//! The task runs on the runtime of the caller that needed it first. That runtime may stop polling
//! it at any time, without notice. So the task announces the time of its next sign of life, and a
//! caller starts another task when that time has passed. At most one task owns the current turn; a
//! task that lost its turn must end.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::Moment;

/// How late the announced sign of life may be: a busy machine is no reason to replace a task.
const GRACE: Duration = Duration::from_secs(1);

/// The slot of one background task.
#[derive(Debug, Default)]
pub(crate) struct SingletonTask {
    // A std mutex: it is held only to read or change two fields, never across an await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the present task, counted from 1.
    turn: u64,
    /// The time of the task's next sign of life; `None` when no task runs.
    due: Option<Moment>,
}

impl SingletonTask {
    /// Starts a turn, unless the present task still gives signs of life. Returns the number of the
    /// turn.
    pub(crate) fn start(&self, now: Moment) -> Option<u64> {
        let mut state = self.state();
        if state.due.is_some_and(|due| now.since(due) <= GRACE) {
            return None;
        }
        state.turn += 1;
        state.due = Some(now);
        Some(state.turn)
    }

    /// Gives a sign of life of this turn, and announces the next one at `due`. Returns whether the
    /// turn is still the present one.
    pub(crate) fn extend(&self, turn: u64, due: Moment) -> bool {
        let mut state = self.state();
        let mine = state.turn == turn;
        if mine {
            state.due = Some(due);
        }
        mine
    }

    /// Ends the turn, if it is still the present one.
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
    fn a_task_without_a_sign_of_life_is_replaced() {
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
