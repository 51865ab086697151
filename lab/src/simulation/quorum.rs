//! A quorum whose members are simulated stores: the driver that connects to a member, the quorum of
//! a process, and the steps of an operator.
//!
//! The code of the quorum is the real one. Its tasks belong to their process, so they stand still
//! with it and end with it.

use std::{fmt, future::Future, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock::{
    DistLock, Entry, Expect, LockName, RecordKey, Records, Result, Store, Target, Written,
    backend::{Driver, DriverOption, DriverUrl, Drivers, TargetParts},
};
use distlock_conformance::{LockLayer as _, RecordsLayer};
use distlock_quorum::QuorumDriver;

use super::{
    executor::Owner,
    network::SimulatedConnection,
    planted_bugs::{MemberBug, around_member},
    time::MachineClock,
    world::World,
};

/// Pause after a failed try to open a quorum, or to change one.
const PAUSE: Duration = Duration::from_millis(200);

/// Opens the quorum of a process, again and again until that succeeds.
pub(super) fn open(
    world: &Arc<World>,
    process: usize,
    clock: &MachineClock,
) -> impl Future<Output = Arc<dyn DistLock>> + Send + use<> {
    let drivers = drivers(world, Owner::Process(process));
    let target = target(world, clock, members(world, world.is_moved()));
    let world = Arc::clone(world);
    async move {
        loop {
            let opened = async { drivers.open_parts(target.parts()?).await };
            match opened.await {
                Ok(store) => return store.backend(),
                Err(error) => {
                    world.judge.lock().record_open_failed(&error);
                    world.time.sleep(PAUSE).await;
                }
            }
        }
    }
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

fn drivers(world: &Arc<World>, owner: Owner) -> Drivers {
    let member = MemberDriver {
        world: Arc::clone(world),
        owner,
        bug: MemberBug::of(world),
    };
    let spawner = world.spawner.clone();
    Drivers::new()
        .with(Arc::new(QuorumDriver))
        .with(Arc::new(member))
        .tasks_on(move |task| spawner.spawn(owner, "quorum", task))
}

/// Connects a process or an operator to a member.
struct MemberDriver {
    world: Arc<World>,
    owner: Owner,
    bug: Option<MemberBug>,
}

#[async_trait]
impl Driver for MemberDriver {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["simulated"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &[]
    }

    fn options(&self) -> &'static [DriverOption] {
        &[]
    }

    fn check(&self, _: TargetParts, _: &Drivers) -> Result<()> {
        Ok(())
    }

    async fn open(&self, parts: TargetParts, _: &Drivers) -> Result<Store> {
        let wrong = |_| parts.wrong("it is no number of a store");
        let number: usize = parts.body.parse().map_err(wrong)?;
        let store = &self.world.stores[number];
        let connection = SimulatedConnection::new(&self.world, self.owner, number, store.lock());
        connection.connect().await?;
        let records = MemberRecords {
            connection: connection.clone(),
            number,
            below: store.records(),
        };
        let (mut lock, mut records) = (connection.into_lock(), records.into_records());
        if let Some(bug) = &self.bug {
            (lock, records) = around_member(bug, number, lock, records);
        }
        Ok(Store::with_clock(lock, records, parts.clock))
    }
}

impl fmt::Debug for MemberDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemberDriver")
    }
}

/// The connection to the records of a member.
#[derive(Clone, Debug)]
struct MemberRecords {
    connection: SimulatedConnection,
    number: usize,
    /// The records when the connection was opened. Requests go to those that the member has when
    /// they arrive.
    below: Arc<dyn Records>,
}

#[async_trait]
impl RecordsLayer for MemberRecords {
    fn below(&self) -> &Arc<dyn Records> {
        &self.below
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let (store, asked) = (
            self.connection.world.stores[self.number].clone(),
            key.clone(),
        );
        let apply = move || {
            let (records, asked) = (store.records(), asked.clone());
            async move { records.get(&asked).await }
        };
        let name = LockName::new(key.as_str())?;
        self.connection.send("read", &name, apply).await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let (store, asked) = (
            self.connection.world.stores[self.number].clone(),
            key.clone(),
        );
        let value = value.to_vec();
        let apply = move || {
            let (records, asked, value) = (store.records(), asked.clone(), value.clone());
            async move { records.put(&asked, &value, expect).await }
        };
        let name = LockName::new(key.as_str())?;
        self.connection.send("write", &name, apply).await
    }
}
