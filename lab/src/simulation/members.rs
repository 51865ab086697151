//! The stores that a quorum or a ring is made of: the driver that connects to one of them, and the
//! opening of the whole.
//!
//! The code of the quorum and of the ring is the real one. Its tasks belong to their process, so
//! they stand still with it and end with it.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock::{
    DistLock, Entry, Expect, LockName, RecordKey, Records, Result, Store, Target, Written,
    backend::{Driver, DriverOption, DriverUrl, Drivers, TargetParts},
};
use distlock_conformance::{LockLayer as _, RecordsLayer};
use distlock_quorum::QuorumDriver;
use distlock_ring::RingDriver;

use super::{
    executor::Owner,
    network::SimulatedConnection,
    planted_bugs::{MemberBug, around_member, around_view},
    quorum, ring,
    time::MachineClock,
    world::World,
};

/// Pause after a failed try to open a quorum or a ring.
const PAUSE: Duration = Duration::from_millis(200);

/// Returns the target that a process with this clock opens. `None`: the locks are in one store.
pub(super) fn target(world: &World, clock: &MachineClock) -> Option<Target> {
    match (&world.setting.quorum, &world.setting.ring) {
        (Some(_), _) => Some(quorum::target_of_process(world, clock)),
        (None, Some(setting)) => Some(ring::target(setting, clock)),
        (None, None) => None,
    }
}

/// Opens the quorum or the ring of a process, again and again until that succeeds.
pub(super) fn open(
    world: &Arc<World>,
    process: usize,
    target: Target,
) -> impl Future<Output = Arc<dyn DistLock>> + Send + use<> {
    let drivers = drivers(world, Owner::Process(process));
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

/// Returns the drivers of a process or an operator.
pub(super) fn drivers(world: &Arc<World>, owner: Owner) -> Drivers {
    let member = MemberDriver {
        world: Arc::clone(world),
        owner,
        bug: MemberBug::of(world),
    };
    let spawner = world.spawner.clone();
    Drivers::new()
        .with(Arc::new(QuorumDriver))
        .with(Arc::new(RingDriver))
        .with(Arc::new(member))
        .tasks_on(move |task| spawner.spawn(owner, "store", task))
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
        if self.world.is_ring_store(number) {
            records = around_view(&self.world, self.owner, records);
        }
        Ok(Store::with_clock(lock, records, parts.clock))
    }
}

impl fmt::Debug for MemberDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemberDriver")
    }
}

/// The connection to the records of a store.
#[derive(Clone, Debug)]
struct MemberRecords {
    connection: SimulatedConnection,
    number: usize,
    /// This handle on the records that the store had when the connection was opened. It knows
    /// whether it was closed. Requests go to the records that the store has when they arrive.
    below: Arc<dyn Records>,
}

#[async_trait]
impl RecordsLayer for MemberRecords {
    fn below(&self) -> &Arc<dyn Records> {
        &self.below
    }

    async fn before(&self) -> Result<()> {
        self.below.reopen().await.map(drop)
    }

    async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            below: self.below.reopen().await?,
            ..self.clone()
        })
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let world = &self.connection.world;
        let (store, asked) = (world.stores[self.number].clone(), key.clone());
        let apply = move || {
            let (store, asked) = (store.clone(), asked.clone());
            async move { store.read(&asked).await }
        };
        let name = LockName::new(key.as_str())?;
        let sent = world.now();
        let read = self.connection.send("read", &name, apply).await?;
        if let (Some(entry), Owner::Process(process)) = (&read, self.connection.owner)
            && world.is_ring_store(self.number)
        {
            let members = ring::members_in(&entry.value);
            world.judge.lock().processes[process].record_view(sent, members);
        }
        Ok(read)
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let world = &self.connection.world;
        let stall = world.draw_stall(self.number);
        let (to, number, asked, stored) =
            (Arc::clone(world), self.number, key.clone(), value.to_vec());
        let apply = move || {
            let (world, asked, value) = (Arc::clone(&to), asked.clone(), stored.clone());
            async move {
                let store = &world.stores[number];
                if !stall.is_zero() {
                    world.time.sleep(stall).await;
                }
                let written = store.write(&asked, &value, expect, stall).await?;
                if let Written::Stored(_) = written
                    && world.is_ring_store(number)
                {
                    ring::record_written(&world, &value);
                }
                Ok(written)
            }
        };
        let name = LockName::new(key.as_str())?;
        let written = self.connection.send("write", &name, apply).await?;
        if self.connection.owner == Owner::Course && ring::dies_now(world, expect) {
            // Whoever waits for it gives it up.
            std::future::pending::<()>().await;
        }
        Ok(written)
    }

    async fn close(&self) {
        self.below.close().await;
    }
}
