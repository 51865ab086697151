//! The course of a run: a phase of faults, the roll call, some turns without faults, and the end.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;

use super::{
    executor::Owner,
    promise::SimulationPromise,
    quorum, ring,
    setting::{LONGEST_TTL, QuorumSetting, REQUEST_TIMEOUT, RingSetting},
    trace::About,
    worker,
    world::{Outages, SimulationPhase, World},
};

/// Time-out for the roll call: a request that is never answered, the lease that it takes, the bound
/// of a step, and a pause for each killed process in the store queue.
const ROLL_CALL_TIMEOUT: Duration = Duration::from_secs(6 + 3 + 5 + 4);
/// Time-out for the move of a quorum after the last fault.
const MOVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time-out for the last change of the members of a ring, after the last fault.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(25);
/// Time-out for the turns without faults.
const CALM_TIMEOUT: Duration = Duration::from_secs(120);
/// Time that background work gets after the last turn.
const BACKGROUND_TIME: Duration = Duration::from_secs(3);
/// The documented bound of `close`.
const CLOSE_BOUND: Duration = Duration::from_secs(10);
/// Pause between two checks of a condition.
const CHECK_PAUSE: Duration = Duration::from_millis(50);

/// Runs one run to its end.
pub(super) async fn run_course(world: Arc<World>) {
    if let Some(quorum) = &world.setting.quorum {
        if quorum.made {
            quorum::make(&world).await;
        }
        (0..world.setting.processes).for_each(|_| worker::start_process(&world));
    }
    if let Some(ring) = &world.setting.ring {
        ring::make(&world, ring).await;
        (0..world.setting.processes).for_each(|_| worker::start_process(&world));
        ring::start_changes(&world, ring);
    }
    run_fault_phase(&world).await;
    if world
        .setting
        .quorum
        .as_ref()
        .is_some_and(QuorumSetting::moves)
    {
        wait_until(&world, MOVE_TIMEOUT, World::is_moved).await;
        // Their locks are in stores that are no quorum any more.
        for process in world.outdated_processes() {
            replace_process(&world, process);
        }
    }
    if world.setting.ring.is_some() {
        wait_until(&world, CHANGE_TIMEOUT, |world| {
            world.counts.lock().changing == 0
        })
        .await;
        world.time.sleep(ring::late_writes()).await;
    }
    let healed = world.now();
    world.phase.send_replace(SimulationPhase::RollCall);
    let tasks = living_tasks(&world);
    let silence = world.setting.quorum.as_ref().map(QuorumSetting::silence);
    // A member that has forgotten may be noticed late.
    // A name of a ring may have moved at last.
    let moving = world.setting.ring.as_ref().map(RingSetting::bound);
    let moving = moving.unwrap_or_default() * 2;
    let at_most = ROLL_CALL_TIMEOUT + silence.unwrap_or_default() * 2 + moving;
    let all_here = wait_until(&world, at_most, |world| {
        world.counts.lock().present == tasks
    })
    .await;
    if !all_here {
        return record_stuck_tasks(&world, "after the last fault");
    }
    let calm = healed + REQUEST_TIMEOUT + LONGEST_TTL + Duration::from_secs(1) + moving;
    world.time.sleep(calm.saturating_sub(world.now())).await;
    world.judge.lock().start_calm(world.now());
    add_trace_line(&world, "calm");
    world.phase.send_replace(SimulationPhase::Calm);
    let all_done = wait_until(&world, CALM_TIMEOUT, |world| {
        world.counts.lock().done == tasks
    })
    .await;
    if !all_done {
        return record_stuck_tasks(&world, "without faults");
    }
    world.time.sleep(BACKGROUND_TIME).await;
    check_no_lock_is_wanted(&world);
    close_lockers(&world).await;
}

/// Adds a line about the course itself to the trace.
fn add_trace_line(world: &World, what: &'static str) {
    world.add_trace_line(Owner::Course, what, None, None, None);
}

/// Returns the number of tasks in processes that are alive.
fn living_tasks(world: &World) -> usize {
    let judge = world.judge.lock();
    let alive = judge.processes.iter().filter(|it| it.alive).count();
    alive * world.setting.tasks
}

/// Waits until a condition holds. `false` means that the condition did not hold within `at_most`.
async fn wait_until(world: &World, at_most: Duration, holds: impl Fn(&World) -> bool) -> bool {
    let end = world.now() + at_most;
    loop {
        if holds(world) {
            return true;
        }
        if world.now() >= end {
            return false;
        }
        world.time.sleep(CHECK_PAUSE).await;
    }
}

/// Records that some tasks do not end, with the present calls of these tasks.
fn record_stuck_tasks(world: &World, when: &str) {
    let mut judge = world.judge.lock();
    let busy = judge.busy_calls().join(", ");
    judge.record_breach(SimulationPromise::Recovery, format!("{when}: {busy}"));
}

/// Injects faults at random times, and heals all of them at the end of the phase.
async fn run_fault_phase(world: &Arc<World>) {
    let end = world.now() + world.setting.fault_time;
    if world
        .setting
        .quorum
        .as_ref()
        .is_some_and(QuorumSetting::moves)
    {
        let after = world.draw(|random| random.u64(500..=5_000));
        let moving = Arc::clone(world);
        world.spawner.spawn(Owner::Course, "move", async move {
            moving.time.sleep(Duration::from_millis(after)).await;
            quorum::move_to_others(&moving).await;
            add_trace_line(&moving, "the quorum is moved");
            moving.record_moved();
            if moving.is_fault_phase() {
                worker::start_process(&moving);
            }
        });
    }
    loop {
        let pause = world.draw(|random| random.u64(20..=800));
        let left = end.saturating_sub(world.now());
        world
            .time
            .sleep(Duration::from_millis(pause).min(left))
            .await;
        if world.now() >= end {
            break;
        }
        inject_fault(world);
    }
    add_trace_line(world, "the last fault is over");
    world.change_outages(|outages| {
        *outages = Outages {
            over: true,
            ..Outages::default()
        };
    });
    let now = world.now();
    let mut judge = world.judge.lock();
    judge.processes.iter_mut().for_each(|it| it.resume(now));
}

/// A function that injects one kind of fault.
type InjectFault = fn(&Arc<World>);

/// Injects a random fault, if the setting has that kind.
fn inject_fault(world: &Arc<World>) {
    let setting = &world.setting;
    let mut kinds: Vec<(bool, InjectFault)> = vec![
        (setting.pauses, pause_process),
        (setting.kills, kill_process),
        (setting.cuts, cut_process_off),
        (setting.outages, start_outage),
        (setting.forced, force_release_random_lock),
    ];
    if let Some(quorum) = &setting.quorum {
        kinds.extend([
            (quorum.forgets, (|world| world.forget()) as InjectFault),
            (setting.cuts, cut_link),
            (setting.outages, cut_store_off),
        ]);
    }
    if setting.ring.is_some() {
        kinds.extend([
            (setting.cuts, cut_link as InjectFault),
            (setting.cuts, keep_on_old_view),
            (setting.outages, cut_store_off),
        ]);
    }
    let (wanted, inject) = kinds[world.draw(|random| random.usize(0..kinds.len()))];
    if wanted {
        inject(world);
    }
}

/// Returns a random process that runs.
fn random_process(world: &World) -> Option<usize> {
    let running: Vec<usize> = {
        let judge = world.judge.lock();
        let all = judge.processes.iter().enumerate();
        all.filter(|(_, it)| it.runs()).map(|(at, _)| at).collect()
    };
    world.draw(|random| random.choice(running))
}

/// Ends a fault later, unless the phase of faults has ended by then.
fn end_later(world: &Arc<World>, most: u64, then: impl FnOnce(&Arc<World>) + Send + 'static) {
    let after = Duration::from_millis(world.draw(|random| random.u64(10..=most)));
    let world = Arc::clone(world);
    let spawner = world.spawner.clone();
    spawner.spawn(Owner::Course, "fault ends", async move {
        world.time.sleep(after).await;
        if world.is_fault_phase() {
            then(&world);
        }
    });
}

/// Pauses a random process for a while.
fn pause_process(world: &Arc<World>) {
    let Some(process) = random_process(world) else {
        return;
    };
    world.add_trace_line(Owner::Process(process), "stands still", None, None, None);
    let now = world.now();
    world.judge.lock().processes[process].pause(now);
    end_later(world, 4_500, move |world| {
        let now = world.now();
        world.judge.lock().processes[process].resume(now);
        world.add_trace_line(Owner::Process(process), "goes on", None, None, None);
    });
}

/// Kills a process, and starts another process in its place. A run kills at most two processes. The
/// queue entries of killed processes stay in the store queue until they expire, and the roll call
/// waits for that.
fn kill_process(world: &Arc<World>) {
    let dead = world
        .judge
        .lock()
        .processes
        .iter()
        .filter(|it| !it.alive)
        .count();
    let Some(process) = random_process(world).filter(|_| dead < 2) else {
        return;
    };
    world.add_trace_line(Owner::Process(process), "is killed", None, None, None);
    replace_process(world, process);
}

/// Ends a process, and starts another one in its place.
fn replace_process(world: &Arc<World>, process: usize) {
    world.judge.lock().processes[process].alive = false;
    worker::start_process(world);
}

/// Cuts a random process off from the store for a while.
fn cut_process_off(world: &Arc<World>) {
    let Some(process) = random_process(world) else {
        return;
    };
    world.add_trace_line(Owner::Process(process), "is cut off", None, None, None);
    world.change_outages(|outages| outages.cut.push(process));
    end_later(world, 3_000, move |world| {
        world.change_outages(|outages| outages.cut.retain(|it| *it != process));
    });
}

/// Cuts a random process off from one store for a while.
fn cut_link(world: &Arc<World>) {
    cut_link_to(
        world,
        world.draw(|random| random.usize(0..world.stores.len())),
    );
}

/// Cuts a random process off from the ring store for a while.
fn keep_on_old_view(world: &Arc<World>) {
    cut_link_to(world, world.stores.len() - 1);
}

fn cut_link_to(world: &Arc<World>, store: usize) {
    let Some(process) = random_process(world) else {
        return;
    };
    let link = (process, store);
    let about = About {
        store: Some(link.1),
        ..About::default()
    };
    world.add_trace_line_about(Owner::Process(process), "loses its way to", about);
    world.change_outages(|outages| outages.links.push(link));
    end_later(world, 5_000, move |world| {
        world.change_outages(|outages| outages.links.retain(|it| *it != link));
    });
}

/// Cuts one store off from everybody for a while.
fn cut_store_off(world: &Arc<World>) {
    let store = world.draw(|random| random.usize(0..world.stores.len()));
    world.add_store_line("nobody reaches", store);
    world.change_outages(|outages| outages.away.push(store));
    end_later(world, 5_000, move |world| {
        world.change_outages(|outages| outages.away.retain(|it| *it != store));
    });
}

/// Cuts all processes off from the store for a while.
fn start_outage(world: &Arc<World>) {
    add_trace_line(world, "the store is away");
    world.change_outages(|outages| outages.outage = true);
    end_later(world, 3_000, |world| {
        world.change_outages(|outages| outages.outage = false);
    });
}

/// Force-releases a random lock, at some of the stores if there are several.
fn force_release_random_lock(world: &Arc<World>) {
    let lock = world.draw(|random| random.usize(0..world.setting.locks));
    for store in 0..world.stores.len() {
        if world.stores.len() == 1 || world.draw(Rng::bool) {
            world.force_release_lock(store, lock);
        }
    }
}

/// Checks that no lock is held or wanted, in the processes or at the store.
fn check_no_lock_is_wanted(world: &World) {
    let lockers = world.lockers.lock().clone();
    let mut judge = world.judge.lock();
    let now = world.now();
    for lock in 0..world.setting.locks {
        if let Some(row) = judge.stored_holder(lock, now) {
            let detail = format!("lock {lock} is held for call {}", row.call);
            judge.record_breach(SimulationPromise::NothingLeft, detail);
        }
    }
    for (process, locker) in lockers {
        let shown = format!("{locker:?}");
        if judge.processes[process].alive && !shown.contains("held_or_wanted: 0") {
            judge.record_breach(
                SimulationPromise::NothingLeft,
                format!("p{process}: {shown}"),
            );
        }
    }
}

/// Closes the locker of each living process, and checks the bound of `close`.
async fn close_lockers(world: &Arc<World>) {
    let lockers = world.lockers.lock().clone();
    for (process, locker) in lockers {
        if world.judge.lock().processes[process].alive {
            let begun = world.now();
            locker.close().await;
            let took = world.now() - begun;
            if took > CLOSE_BOUND {
                let detail = format!("closing took {took:?}");
                world
                    .judge
                    .lock()
                    .record_breach(SimulationPromise::CallsEnd, detail);
            }
        }
    }
    add_trace_line(world, "closed");
}
