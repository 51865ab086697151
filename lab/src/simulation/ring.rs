//! A ring whose members and ring store are simulated stores: its target, and the steps of those who
//! change its members.

use std::{sync::Arc, time::Duration};

use distlock::{Error, Expect, Target};
use distlock_ring::{Terms, Watch};
use serde_json::Value;

use super::{
    executor::Owner,
    members::drivers,
    setting::{LONGEST_DELAY, RingSetting},
    time::MachineClock,
    world::World,
};

/// Pause of the watch between two looks, and of an operator after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// Time without an answer after which the watch removes a member.
const DEAD_AFTER: Duration = Duration::from_secs(1);

/// Returns the target of the ring. The store after the members is the ring store.
pub(super) fn target(ring: &RingSetting, clock: &MachineClock) -> Target {
    let members = (0..ring.members).map(|member| format!("&member=m{member}=simulated:{member}"));
    let url = format!(
        "ring:?records=simulated:{}{}",
        ring.members,
        members.collect::<String>()
    );
    Target::new(url).clock(Arc::new(clock.clone()))
}

/// Makes the ring, as an operator does.
pub(super) async fn make(world: &Arc<World>, ring: &RingSetting) {
    let (drivers, clock) = (drivers(world, Owner::Course), world.draw_clock());
    let terms = Terms {
        validity: ring.validity,
        max_lease: ring.max_lease,
    };
    let target = || target(ring, &clock);
    while distlock_ring::init(target(), &drivers, terms, true)
        .await
        .is_err()
    {
        world.time.sleep(PAUSE).await;
    }
}

/// Starts those who change the members until the faults are over.
pub(super) fn start_changes(world: &Arc<World>, ring: &RingSetting) {
    for _ in 0..ring.administrators {
        start(world, "administrator", administer(Arc::clone(world)));
    }
    if ring.watched {
        start(world, "watch", watch(Arc::clone(world)));
    }
}

fn start(
    world: &Arc<World>,
    what: &'static str,
    changing: impl Future<Output = ()> + Send + 'static,
) {
    world.counts.lock().changing += 1;
    let ends = Arc::clone(world);
    world.spawner.spawn(Owner::Course, what, async move {
        changing.await;
        ends.counts.lock().changing -= 1;
    });
}

/// Adds and removes members. An administrator that takes too long dies, and its requests may still
/// arrive; the next one begins anew.
async fn administer(world: Arc<World>) {
    let Some(ring) = &world.setting.ring else {
        return;
    };
    let (drivers, clock) = (drivers(&world, Owner::Course), world.draw_clock());
    let long = u64::try_from(3 * ring.bound().as_millis()).unwrap_or_default();
    let mut last = 0;
    while !world.are_faults_over() {
        let held_at = world.judge.lock().last_member();
        let (pause, limit, member) = world.draw(|random| {
            // Many changes follow each other within one quarantine, and after others a name is
            // granted by its new owner.
            let longest = if random.u32(0..3) == 0 { 400 } else { long };
            let member = match random.u32(0..5) {
                0..2 => held_at.unwrap_or(0),
                2 => last,
                _ => random.usize(0..ring.members),
            };
            (random.u64(0..=longest), random.u64(20..=2_000), member)
        });
        last = member;
        world.time.sleep(Duration::from_millis(pause)).await;
        let change = async {
            let name = format!("m{member}");
            let shown = distlock_ring::show(target(ring, &clock), &drivers).await?;
            let mut members = shown.members.iter();
            if members.any(|it| it.active && it.name == name) {
                distlock_ring::remove(target(ring, &clock), &drivers, &name).await
            } else {
                distlock_ring::add(target(ring, &clock), &drivers, &name).await
            }
        };
        let limit = world.time.sleep(Duration::from_millis(limit));
        tokio::select! {
            biased;
            _ = change => {}
            () = limit => {}
        }
    }
}

/// Watches the members, as `distlock ring watch` does. A watch that takes too long dies.
async fn watch(world: Arc<World>) {
    let Some(ring) = &world.setting.ring else {
        return;
    };
    let (drivers, clock) = (drivers(&world, Owner::Course), world.draw_clock());
    while !world.are_faults_over() {
        let limit = world.draw(|random| random.u64(1_000..=20_000));
        let watching = async {
            let mut watch = Watch::open(target(ring, &clock), &drivers, DEAD_AFTER).await?;
            while !world.are_faults_over() {
                watch.look().await?;
                world.time.sleep(PAUSE).await;
            }
            watch.close().await;
            Ok::<(), Error>(())
        };
        let limit = world.time.sleep(Duration::from_millis(limit));
        tokio::select! {
            biased;
            _ = watching => {}
            () = limit => {}
        }
        world.time.sleep(PAUSE).await;
    }
}

/// Tells whether an administrator or a watch dies after this write.
pub(super) fn dies_now(world: &World, expect: Expect) -> bool {
    let dies = world.setting.ring.as_ref().is_some_and(|ring| ring.deaths);
    dies && matches!(expect, Expect::Version(_)) && world.draw(|random| random.u32(0..4) == 0)
}

/// Counts a written view, if it has other members than the one before.
pub(super) fn record_written(world: &World, value: &[u8]) {
    let view: Value = serde_json::from_slice(value).unwrap_or_default();
    if view["confirmed"] == false {
        world.counts.lock().changes += 1;
        world.add_trace_line(Owner::Network, "the members change", None, None, None);
    }
}

/// Returns the numbers of the stores that are members in a view.
pub(super) fn members_in(view: &[u8]) -> Vec<usize> {
    let view: Value = serde_json::from_slice(view).unwrap_or_default();
    let members = view["members"].as_array().into_iter().flatten();
    let numbers = members.filter_map(|it| it.as_str()?.strip_prefix('m')?.parse().ok());
    numbers.collect()
}

/// Returns the longest time after the last fault in which a write of the view may still come.
pub(super) const fn late_writes() -> Duration {
    LONGEST_DELAY.saturating_mul(2)
}
