//! One run: the seed decides everything, and every step is checked.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use fastrand::Rng;

use super::{
    batcher, course,
    executor::{Executor, Owner},
    planted_bugs::Variant,
    promise::{Breach, SeedResult, SimulationPromise},
    setting::Place,
    trace::Trace,
    worker,
    world::World,
};

/// Number of steps after which a run counts as one that never ends.
const MAX_STEPS: u64 = 2_000_000;

/// Runs one seed of the engine, or of the quorum, the ring or the batcher if the bug is there.
///
/// # Errors
/// Returns an error if the in-memory store cannot be opened.
pub(super) fn run_seed(seed: u64, variant: Variant, full_trace: bool) -> Result<SeedResult> {
    match variant {
        Variant::Planted(bug) | Variant::Twin(bug) if bug.is_in_the_batcher() => {
            run_batcher_seed(seed, variant, full_trace)
        }
        Variant::Planted(bug) | Variant::Twin(bug) if bug.is_in_the_quorum() => {
            run_quorum_seed(seed, variant, full_trace)
        }
        Variant::Planted(bug) | Variant::Twin(bug) if bug.is_in_the_ring() => {
            run_ring_seed(seed, variant, full_trace)
        }
        _ => catch_panic(|| run_engine(seed, variant, Place::OneStore, full_trace)),
    }
}

/// Runs one seed of the engine with the locks in a quorum.
///
/// # Errors
/// As [`run_seed`].
pub(super) fn run_quorum_seed(seed: u64, variant: Variant, full_trace: bool) -> Result<SeedResult> {
    catch_panic(|| run_engine(seed, variant, Place::Quorum, full_trace))
}

/// Runs one seed of the engine with the locks in a ring.
///
/// # Errors
/// As [`run_seed`].
pub(super) fn run_ring_seed(seed: u64, variant: Variant, full_trace: bool) -> Result<SeedResult> {
    catch_panic(|| run_engine(seed, variant, Place::Ring, full_trace))
}

/// Runs one seed of the batcher.
///
/// # Errors
/// Returns an error if no runtime can be started.
pub(super) fn run_batcher_seed(
    seed: u64,
    variant: Variant,
    full_trace: bool,
) -> Result<SeedResult> {
    catch_panic(|| batcher::run_batcher(seed, variant.bug(), full_trace))
}

/// Turns a panic into a broken promise.
fn catch_panic(run: impl FnOnce() -> Result<SeedResult>) -> Result<SeedResult> {
    let result = catch_unwind(AssertUnwindSafe(run));
    result.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
        Ok(SeedResult {
            broken: Some(Breach {
                promise: SimulationPromise::NoPanic,
                detail: said.unwrap_or("something panicked").to_owned(),
            }),
            steps: 0,
            hash: 0,
            changes: 0,
            moves: 0,
            lines: Vec::new(),
        })
    })
}

/// Runs one seed of the engine to its end, or until a promise is broken.
fn run_engine(seed: u64, variant: Variant, place: Place, full_trace: bool) -> Result<SeedResult> {
    let mut random = Rng::with_seed(seed);
    // A quorum draws its pauses from the generator of the thread.
    fastrand::seed(seed);
    let mut executor = Executor::default();
    let trace = Trace::new(full_trace);
    let spawner = executor.spawner().clone();
    let world = World::new(spawner, random.fork(), variant, place, trace)?;
    if place == Place::OneStore {
        (0..world.setting.processes).for_each(|_| worker::start_process(&world));
    }
    let running = course::run_course(Arc::clone(&world));
    executor.spawner().spawn(Owner::Course, "course", running);
    while world.judge.lock().broken().is_none() && advance(&world, &mut executor, &mut random) {}
    if world.judge.lock().broken().is_none() {
        check_nothing_is_left(&world, &mut executor);
    }
    let broken = world.judge.lock().broken().cloned();
    let mut outcome = SeedResult::with_trace(broken, &world.trace.lock());
    outcome.changes = world.counts.lock().changes;
    outcome.moves = world.judge.lock().moves;
    world.drop_references();
    executor.drop_tasks_of(|_| true);
    Ok(outcome)
}

/// Makes one step, or moves time to the end of the next sleep. `false` means that nothing can
/// happen any more.
fn advance(world: &World, executor: &mut Executor, random: &mut Rng) -> bool {
    let runs = |owner| match owner {
        Owner::Process(number) => world.judge.lock().processes[number].runs(),
        Owner::Network | Owner::Course => true,
    };
    let Some(step) = executor.step(random, runs) else {
        let Some(next) = world.time.next_wake_up() else {
            return false;
        };
        world.time.advance_to(next);
        world.judge.lock().check_waits(world.now());
        return true;
    };
    let now = world.now();
    world.trace.lock().add_poll(now, step);
    world.judge.lock().check(now);
    // Computing takes time as well.
    if random.u32(0..4) == 0 {
        let took = Duration::from_micros(random.u64(1..=40));
        world.time.advance_to(now + took);
    }
    if world.trace.lock().steps() > MAX_STEPS {
        let detail = "the run does not end".to_owned();
        world
            .judge
            .lock()
            .record_breach(SimulationPromise::Recovery, detail);
    }
    true
}

/// Checks that nothing is left after everything is closed and the tasks of killed processes are
/// dropped.
fn check_nothing_is_left(world: &World, executor: &mut Executor) {
    executor.drop_tasks_of(|owner| match owner {
        Owner::Process(number) => !world.judge.lock().processes[number].alive,
        Owner::Network | Owner::Course => false,
    });
    world.drop_references();
    let (tasks, sleepers) = (executor.unfinished(), world.time.sleeper_count());
    let waiters = world.waiter_count();
    if !tasks.is_empty() || sleepers > 0 || waiters > 0 {
        let detail =
            format!("tasks {tasks:?}, {sleepers} timers and {waiters} waiters are left at the end");
        world
            .judge
            .lock()
            .record_breach(SimulationPromise::NothingLeft, detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_of_one_seed_take_the_same_steps() {
        for seed in 0..20 {
            let (one, other) = (
                run_seed(seed, Variant::Honest, true).unwrap(),
                run_seed(seed, Variant::Honest, true).unwrap(),
            );
            assert!(one.steps > 100, "{} steps", one.steps);
            assert_eq!(one.lines, other.lines, "seed {seed}");
            assert_eq!(one.hash, other.hash, "seed {seed}");
            let quorum = || run_quorum_seed(seed, Variant::Honest, false).unwrap();
            assert_eq!(quorum().hash, quorum().hash, "seed {seed} with a quorum");
        }
        for seed in 0..4 {
            let ring = || run_ring_seed(seed, Variant::Honest, false).unwrap();
            assert_eq!(ring().hash, ring().hash, "seed {seed} with a ring");
        }
    }

    #[test]
    fn two_seeds_give_different_histories() {
        let hash = |seed| run_seed(seed, Variant::Honest, false).unwrap().hash;
        assert_ne!(hash(1), hash(2));
    }
}
