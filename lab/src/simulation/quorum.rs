//! A quorum whose members are simulated stores: its target, and the steps of an operator.

use std::{ops::Range, sync::Arc, time::Duration};

use distlock::Target;

use super::{executor::Owner, members::drivers, time::MachineClock, world::World};

/// Pause after a failed try to change a quorum.
const PAUSE: Duration = Duration::from_millis(200);

/// Returns the target with which a process opens the quorum.
pub(super) fn target_of_process(world: &World, clock: &MachineClock) -> Target {
    target(world, clock, members(world, world.is_moved()))
}

/// Makes the quorum, as an operator does.
pub(super) async fn make(world: &Arc<World>) {
    let (drivers, clock) = (drivers(world, Owner::Course), world.draw_clock());
    let target = || target(world, &clock, members(world, false));
    while distlock_quorum::init(target(), &drivers, false)
        .await
        .is_err()
    {
        world.time.sleep(PAUSE).await;
    }
}

/// Moves the quorum to the last stores, as an operator does.
pub(super) async fn move_to_others(world: &Arc<World>) {
    let (drivers, clock) = (drivers(world, Owner::Course), world.draw_clock());
    let target = |moved| target(world, &clock, members(world, moved));
    loop {
        let moved = distlock_quorum::reconfigure(target(false), target(true), &drivers, false);
        match moved.await {
            Ok(_) => return,
            Err(_) => world.time.sleep(PAUSE).await,
        }
    }
}

/// Returns the numbers of the members.
fn members(world: &World, moved: bool) -> Range<usize> {
    let (stores, listed) = match &world.setting.quorum {
        Some(quorum) => (quorum.stores, quorum.listed),
        None => (1, 1),
    };
    if moved {
        stores - listed..stores
    } else {
        0..listed
    }
}

fn target(world: &World, clock: &MachineClock, members: Range<usize>) -> Target {
    let max_lease = world.setting.quorum.as_ref().map(|it| it.max_lease);
    let max_lease = max_lease.unwrap_or_default().as_millis();
    let members = members.map(|member| format!("&member=m{member}=simulated:{member}"));
    let url = format!(
        "quorum:?max_lease={max_lease}ms{}",
        members.collect::<String>()
    );
    Target::new(url).clock(Arc::new(clock.clone()))
}
