//! Loaders that ask a guard for another key, or for their own.
//!
//! This module owns the waits of loaders for loads of this process. Invariant: the waits form no
//! circle. A loader that would close a circle gets an error at once, because every load of the
//! circle would wait for the others until its time limit. Only the task of the loader is seen: a
//! task that the loader spawns, or another process, counts as an independent caller.

use std::sync::Arc;

use distlock_core::{
    Error, ErrorKind, Result,
    sync::{Mutex, MutexGuard},
};

/// The waits that are under way: a loader, and the load that it waits for.
static WAITS: Mutex<Vec<(LoadName, LoadName)>> = Mutex::new(Vec::new());

tokio::task_local! {
    /// The load whose loader runs in this task.
    static RUNNING: LoadName;
}

/// A load of this process: the guard, and the key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct LoadName {
    /// The address of the guard's shared part, which all clones of the guard share.
    guard: usize,
    key: Arc<str>,
}

impl LoadName {
    pub(super) fn new<T>(guard: &Arc<T>, key: &str) -> Self {
        Self {
            guard: Arc::as_ptr(guard).addr(),
            key: key.into(),
        }
    }

    /// Runs a loader of this load.
    pub(super) async fn run<F: Future>(self, loader: F) -> F::Output {
        RUNNING.scope(self, loader).await
    }
}

/// The wait of a running loader for a load. The drop ends the wait.
pub(super) struct LoaderWait(Option<(LoadName, LoadName)>);

impl LoaderWait {
    /// Begins a wait of this task for `load`. A task that runs no loader waits freely.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when `load` waits for the loader of this task.
    pub(super) fn begin(load: &LoadName) -> Result<Self> {
        let Ok(running) = RUNNING.try_with(Clone::clone) else {
            return Ok(Self(None));
        };
        let mut waits = waits();
        // The check and the new wait are one step. Otherwise two loaders that ask for each other at
        // the same moment would both pass the check.
        if let Some(circle) = path(&waits, load, &running) {
            return Err(circle_error(&running, &circle));
        }
        let wait = (running, load.clone());
        waits.push(wait.clone());
        Ok(Self(Some(wait)))
    }
}

impl Drop for LoaderWait {
    fn drop(&mut self) {
        if let Some(wait) = &self.0 {
            let mut waits = waits();
            if let Some(at) = waits.iter().position(|it| it == wait) {
                waits.swap_remove(at);
            }
        }
    }
}

fn waits() -> MutexGuard<'static, Vec<(LoadName, LoadName)>> {
    // No code panics while it holds the mutex.
    WAITS.lock()
}

/// The loads on a way from `from` to `to` along the waits, both included; `None` without a way.
fn path(waits: &[(LoadName, LoadName)], from: &LoadName, to: &LoadName) -> Option<Vec<LoadName>> {
    // Each load is visited once, with the number of the load from which it was reached.
    let mut visited: Vec<(LoadName, Option<usize>)> = vec![(from.clone(), None)];
    let mut next = 0;
    while let Some((load, _)) = visited.get(next).cloned() {
        if load == *to {
            let mut path = vec![load];
            let mut at = visited[next].1;
            while let Some(before) = at {
                path.push(visited[before].0.clone());
                at = visited[before].1;
            }
            path.reverse();
            return Some(path);
        }
        for (waiting, awaited) in waits {
            if *waiting == load && !visited.iter().any(|(seen, _)| seen == awaited) {
                visited.push((awaited.clone(), Some(next)));
            }
        }
        next += 1;
    }
    None
}

/// The error of a loader that asks for a load which waits for this loader.
fn circle_error(running: &LoadName, circle: &[LoadName]) -> Error {
    let keys: Vec<_> = std::iter::once(running)
        .chain(circle)
        .map(|load| format!("{:?}", load.key))
        .collect();
    Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "the loader of {} asks the guarded cache for a value that waits for this loader ({}): \
             load that part without the guard",
            keys[0],
            keys.join(" -> ")
        ),
    )
}
