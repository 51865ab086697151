//! Keeps one background task running for all callers of a handle.
//!
//! The task runs on the runtime of the caller that needed the task first. That runtime may stop
//! polling the task at any time, without notice. So the task announces the time of its next sign of
//! life, and a caller starts another task when that time has passed. Each task has a number, called
//! its turn. Only the task with the latest number is the current task; an older task must end.

use std::time::Duration;

use distlock_core::{Moment, sync::Mutex};

/// The allowed delay of an announced sign of life. A task on a busy machine must not be replaced.
const GRACE: Duration = Duration::from_secs(1);

/// The slot of one background task.
#[derive(Debug, Default)]
pub(crate) struct SingletonTask {
    // A blocking mutex: no caller holds this mutex across an await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the current task, counted from 1; 0 before the first task.
    turn: u64,
    /// The time of the current task's next sign of life; `None` when no task runs.
    due: Option<Moment>,
}

impl SingletonTask {
    /// Makes the caller's new task the current task, unless the current task still gives signs of
    /// life. Returns the turn of the new task; `None` when the caller must start no task.
    pub(crate) fn start(&self, now: Moment) -> Option<u64> {
        let mut state = self.state.lock();
        if state.due.is_some_and(|due| now.since(due) <= GRACE) {
            return None;
        }
        state.turn += 1;
        state.due = Some(now);
        Some(state.turn)
    }

    /// Gives a sign of life for the task `turn`, and announces the next sign of life at `due`.
    /// Returns whether this task is still the current task.
    pub(crate) fn extend(&self, turn: u64, due: Moment) -> bool {
        let mut state = self.state.lock();
        let mine = state.turn == turn;
        if mine {
            state.due = Some(due);
        }
        mine
    }

    /// Notes the end of the task `turn`, if this task is still the current task.
    pub(crate) fn finish(&self, turn: u64) {
        let mut state = self.state.lock();
        if state.turn == turn {
            state.due = None;
        }
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
