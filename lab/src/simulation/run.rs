//! One run: a seed decides everything, and every step is judged.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use fastrand::Rng;

use super::{
    batcher, director,
    plants::Variant,
    promise::{Broken, Promise},
    result::Outcome,
    tasks::{Executor, Owner},
    trace::Trace,
    worker,
    world::World,
};

/// No run needs as many.
const MOST_STEPS: u64 = 2_000_000;

/// Plays one seed of the engine, or of the batcher if the bug is in there.
///
/// # Errors
/// When there is no store in memory.
pub(super) fn play(seed: u64, variant: Variant, all: bool) -> Result<Outcome> {
    match variant {
        Variant::Planted(plant) | Variant::Twin(plant) if plant.is_in_the_batcher() => {
            play_batcher(seed, variant, all)
        }
        _ => guarded(|| engine(seed, variant, all)),
    }
}

/// Plays one seed of the batcher.
///
/// # Errors
/// When there is no runtime.
pub(super) fn play_batcher(seed: u64, variant: Variant, all: bool) -> Result<Outcome> {
    guarded(|| batcher::play(seed, variant.plant(), all))
}

/// A panic is a promise that was broken.
fn guarded(play: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
    let played = catch_unwind(AssertUnwindSafe(play));
    played.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
        Ok(Outcome {
            broken: Some(Broken {
                promise: Promise::NoPanic,
                detail: said.unwrap_or("something panicked").to_owned(),
            }),
            steps: 0,
            hash: 0,
            lines: Vec::new(),
        })
    })
}

fn engine(seed: u64, variant: Variant, all: bool) -> Result<Outcome> {
    let mut random = Rng::with_seed(seed);
    let mut executor = Executor::default();
    let trace = Trace::new(all);
    let world = World::new(executor.spawner().clone(), random.fork(), variant, trace)?;
    for _ in 0..world.setting.processes {
        worker::start(&world)?;
    }
    let direct = director::direct(Arc::clone(&world));
    executor.spawner().spawn(Owner::Director, "course", direct);
    while world.judge().broken().is_none() && turn(&world, &mut executor, &mut random) {}
    if world.judge().broken().is_none() {
        nothing_is_left(&world, &mut executor);
    }
    let broken = world.judge().broken().cloned();
    let outcome = Outcome::of(broken, &world.trace());
    world.forget();
    executor.drop_those(|_| true);
    Ok(outcome)
}

/// One step, or a leap to the end of the next sleep. `false` when nothing can happen any more.
fn turn(world: &World, executor: &mut Executor, random: &mut Rng) -> bool {
    let runs = |owner| match owner {
        Owner::Process(number) => world.judge().processes[number].runs(),
        Owner::Network | Owner::Director => true,
    };
    let Some(step) = executor.step(random, runs) else {
        let Some(next) = world.time.next() else {
            return false;
        };
        world.time.advance_to(next);
        world.judge().check_waits(world.now());
        return true;
    };
    let now = world.now();
    world.trace().polled(now, step);
    world.judge().check(now);
    // To compute takes time as well.
    if random.u32(0..4) == 0 {
        let took = Duration::from_micros(random.u64(1..=40));
        world.time.advance_to(now + took);
    }
    if world.trace().steps() > MOST_STEPS {
        let detail = "it never comes to an end".to_owned();
        world.judge().accuse(Promise::Recovery, detail);
    }
    true
}

/// Once everything is closed, and what the dead left was thrown away.
fn nothing_is_left(world: &World, executor: &mut Executor) {
    executor.drop_those(|owner| match owner {
        Owner::Process(number) => !world.judge().processes[number].alive,
        Owner::Network | Owner::Director => false,
    });
    world.forget();
    let (tasks, sleepers) = (executor.left(), world.time.sleepers());
    let waiters = world.waiters();
    if !tasks.is_empty() || sleepers > 0 || waiters > 0 {
        let detail =
            format!("tasks {tasks:?}, {sleepers} timers and {waiters} waiters are left in the end");
        world.judge().accuse(Promise::NothingLeft, detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_repeated_step_by_step() {
        for seed in 0..20 {
            let (one, other) = (
                play(seed, Variant::Honest, true).unwrap(),
                play(seed, Variant::Honest, true).unwrap(),
            );
            assert!(one.steps > 100, "{} steps", one.steps);
            assert_eq!(one.lines, other.lines, "seed {seed}");
            assert_eq!(one.hash, other.hash, "seed {seed}");
        }
    }

    #[test]
    fn two_seeds_are_two_histories() {
        let hash = |seed| play(seed, Variant::Honest, false).unwrap().hash;
        assert_ne!(hash(1), hash(2));
    }
}
