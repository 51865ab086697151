//! Rings of Redis servers: what a ring costs one caller beside one of its members, what a change of
//! the members does to names that move and to others, and the work of four members beside one.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use distlock::{Registry, ring::Terms};
use distlock_core::{Attempt, Clock as _, ErrorKind, Locker, Moment, Store, SystemClock};
use distlock_report::{Arm, LockerSubject, Options, Report, Workload, measure};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    counts::as_f64,
    peers::{redis, target::Link},
    processor_time::processor_seconds,
    ring::RingServers,
};

/// Members of a ring.
const MEMBERS: usize = 4;
/// No member writes to the disk, because that would cost all arms the same time.
const IN_MEMORY: [&str; 1] = ["appendonly no"];
/// A view is used for 2 s, and a lease is 5 s at most: a quarantine of 7.14 s.
const TERMS: Terms = Terms {
    validity: Duration::from_secs(2),
    max_lease: Duration::from_secs(5),
};

/// Measures one member alone, and the ring. The servers are private ones. `delay` is added to each
/// direction between the client and the members.
pub(crate) async fn run(
    workload: Workload,
    options: Options,
    delay: Option<Duration>,
) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let servers = RingServers::start(MEMBERS, &IN_MEMORY)?;
    let links = servers.addresses().map(|to| {
        let link = delay.map(|delay| Link::start(to, delay)).transpose()?;
        let address = link.as_ref().map_or(to, Link::address);
        anyhow::Ok((address, link))
    });
    let links: Vec<_> = links.collect::<Result<_, _>>()?;
    let url = servers.url_at(links.iter().map(|(address, _)| *address));
    RingServers::init(&url, TERMS).await?;
    let alone = redis::open(&servers.members[0].url_at(links[0].0)).await?;
    let ring = distlock::open(&*url).await?;
    let mut arms = Vec::new();
    for (name, lock) in [("distlock-redis", alone.lock()), ("ring", ring.backend())] {
        let subject = LockerSubject::new(lock);
        subject.locker().ready().await?;
        arms.push(Arm::new(name, subject));
    }
    let report = measure(&arms, workload, &options).await?;
    ensure!(!report.has_errors(), "cycles failed: {report}");
    Ok(report)
}

/// Callers that cycle while the members change, each with names of its own.
const CALLERS: u32 = 8;
/// Their pause between two cycles, so that they do not use up the processor.
const PAUSE: Duration = Duration::from_millis(1);
/// Time for which they cycle after the quarantine.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// What adding a fourth member did, by rounds.
#[derive(Debug, Serialize)]
pub(super) struct Moves {
    rounds: Vec<Move>,
}

/// One change of the members.
#[derive(Debug, Serialize)]
struct Move {
    names: u32,
    /// Names that were refused because they moved.
    moved: usize,
    /// The shortest and the longest time from the end of the change to the first grant of a name
    /// that moved, in seconds.
    blocked_seconds: [f64; 2],
    /// The 99th percentile of the cycles of all other names, before the change and during the
    /// quarantine, in microseconds.
    others_p99_us: [f64; 2],
    /// Cycles of the other names in both times.
    others: [usize; 2],
}

/// A cycle of a name that began at a moment.
struct Cycle {
    name: u32,
    begun: Moment,
    /// How long it took; `None` if the name was refused because it moves.
    took: Option<Duration>,
}

/// Lets callers cycle for `time`, adds a member to three, and lets them go on. All of it once for
/// each round.
pub(super) async fn run_moves(names: u32, time: Duration, rounds: u32) -> anyhow::Result<Moves> {
    let mut moves = Moves { rounds: Vec::new() };
    for _ in 0..rounds {
        moves.rounds.push(move_once(names, time).await?);
    }
    Ok(moves)
}

async fn move_once(names: u32, time: Duration) -> anyhow::Result<Move> {
    let servers = RingServers::start(MEMBERS, &IN_MEMORY)?;
    RingServers::init(
        &servers.url_at(servers.addresses().take(MEMBERS - 1)),
        TERMS,
    )
    .await?;
    let url = servers.url();
    let store = distlock::open(&*url).await?;
    let quarantine = (TERMS.validity + TERMS.max_lease).mul_f32(1.02);
    let begun = SystemClock.now();
    let ends = begun + time + quarantine + AFTERWARDS;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let own = (caller..names).step_by(CALLERS as usize);
        callers.spawn(cycle_until(ends, store.locker(), own.collect()));
    }
    SystemClock.sleep(time).await;
    let (registry, asked) = (Registry::builtin(), SystemClock.now());
    distlock::ring::add(url.as_str(), registry.drivers(), "d").await?;
    let added = SystemClock.now();
    let mut cycles = Vec::new();
    while let Some(ended) = callers.join_next().await {
        cycles.extend(ended??);
    }
    store.close().await;
    // By name: the first grant after a refusal, if there is one.
    let mut moved: BTreeMap<u32, Option<Moment>> = BTreeMap::new();
    for cycle in cycles.iter().filter(|it| it.took.is_none()) {
        moved.insert(cycle.name, None);
    }
    for cycle in cycles.iter().filter(|it| it.took.is_some()) {
        let is_after = cycle.begun > added + quarantine / 2;
        if let Some(granted) = moved.get_mut(&cycle.name)
            && is_after
        {
            let first = granted.map_or(cycle.begun, |it| it.min(cycle.begun));
            *granted = Some(first);
        }
    }
    let granted: Option<Vec<Moment>> = moved.values().copied().collect();
    let granted = granted.context("a name that moved was not granted again")?;
    let blocked = granted.iter().map(|it| it.since(added).as_secs_f64());
    let (shortest, longest) = blocked.fold((f64::MAX, 0.0_f64), |(least, most), it| {
        (least.min(it), most.max(it))
    });
    let others = |from: Moment, to: Moment| {
        let all = cycles.iter().filter(|it| !moved.contains_key(&it.name));
        let all = all.filter(|it| from <= it.begun && it.begun < to);
        let mut times: Vec<Duration> = all.filter_map(|it| it.took).collect();
        times.sort_unstable();
        let p99 = times.get(times.len() * 99 / 100).copied();
        (times.len(), p99.unwrap_or_default().as_secs_f64() * 1e6)
    };
    let (before, during) = (others(begun, asked), others(asked, added + quarantine));
    Ok(Move {
        names,
        moved: moved.len(),
        blocked_seconds: [shortest, longest],
        others_p99_us: [before.1, during.1],
        others: [before.0, during.0],
    })
}

/// Takes and releases these names one after the other, again and again.
async fn cycle_until(ends: Moment, locker: Locker, names: Vec<u32>) -> anyhow::Result<Vec<Cycle>> {
    let mut cycles = Vec::new();
    while SystemClock.now() < ends {
        for name in &names {
            let begun = SystemClock.now();
            let took = match locker.lock(format!("moving:{name}")).try_acquire().await {
                Ok(Attempt::Acquired(guard)) => {
                    let released = guard.release().await;
                    ensure!(released.is_clean(), "{released:?}");
                    Some(SystemClock.now().since(begun))
                }
                Ok(Attempt::Busy(holder)) => anyhow::bail!("{name} is held by {holder:?}"),
                Err(error) if error.kind() == ErrorKind::Unavailable => None,
                Err(error) => return Err(error.into()),
            };
            let name = *name;
            cycles.push(Cycle { name, begun, took });
            SystemClock.sleep(PAUSE).await;
        }
    }
    Ok(cycles)
}

impl fmt::Display for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for it in &self.rounds {
            writeln!(
                f,
                "{} of {} names moved, blocked for {:.2} to {:.2} s; p99 of the others {:.0} us \
                 before ({} cycles) and {:.0} us during it ({} cycles)",
                it.moved,
                it.names,
                it.blocked_seconds[0],
                it.blocked_seconds[1],
                it.others_p99_us[0],
                it.others[0],
                it.others_p99_us[1],
                it.others[1],
            )?;
        }
        Ok(())
    }
}

/// Callers of [`run_capacity`].
const MANY: u32 = 256;

/// The work of rings with one member and with several, by members and rounds.
#[derive(Debug, Serialize)]
pub(super) struct Capacity {
    names: u32,
    callers: u32,
    lease_seconds: u64,
    rounds: Vec<CapacityRound>,
}

#[derive(Debug, Serialize)]
struct CapacityRound {
    members: usize,
    /// Acquires and releases a second.
    operations_a_second: f64,
    /// The processor time of the members and of the ring store, in cores.
    server_cores: f64,
    operations_a_server_core: f64,
}

/// Cycles over all names, each with a lease of 5 s, on a ring of one member and on one of four, in
/// turns.
pub(super) async fn run_capacity(
    names: u32,
    time: Duration,
    rounds: u32,
) -> anyhow::Result<Capacity> {
    let mut rings = Vec::new();
    for members in [1, MEMBERS] {
        let servers = RingServers::start(members, &IN_MEMORY)?;
        RingServers::init(&servers.url(), TERMS).await?;
        let store = distlock::open(&*servers.url()).await?;
        rings.push((servers, store));
    }
    let mut capacity = Capacity {
        names,
        callers: MANY,
        lease_seconds: TERMS.max_lease.as_secs(),
        rounds: Vec::new(),
    };
    for _ in 0..rounds {
        for (servers, store) in &rings {
            let round = capacity_of(servers, store, names, time / rounds).await?;
            capacity.rounds.push(round);
        }
    }
    Ok(capacity)
}

async fn capacity_of(
    servers: &RingServers,
    store: &Store,
    names: u32,
    time: Duration,
) -> anyhow::Result<CapacityRound> {
    let next = Arc::new(AtomicU64::new(0));
    let (spent, begun) = (processor_seconds_of(servers)?, SystemClock.now());
    let mut callers = JoinSet::new();
    for _ in 0..MANY {
        let (next, locker) = (Arc::clone(&next), store.locker());
        callers.spawn(async move {
            while SystemClock.now() < begun + time {
                let name = next.fetch_add(1, Ordering::Relaxed) % u64::from(names);
                let lock = locker.lock(format!("{name:032}")).ttl(TERMS.max_lease);
                let guard = lock
                    .try_acquire()
                    .await?
                    .acquired()
                    .context("a free name")?;
                let released = guard.release().await;
                ensure!(released.is_clean(), "{released:?}");
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    let seconds = SystemClock.now().since(begun).as_secs_f64();
    let server_seconds = processor_seconds_of(servers)? - spent;
    let operations = as_f64(next.load(Ordering::Relaxed) * 2);
    Ok(CapacityRound {
        members: servers.members.len(),
        operations_a_second: operations / seconds,
        server_cores: server_seconds / seconds,
        operations_a_server_core: operations / server_seconds,
    })
}

/// The processor time of all servers of a ring so far.
fn processor_seconds_of(servers: &RingServers) -> anyhow::Result<f64> {
    let ids = servers.process_ids();
    ids.map(|id| processor_seconds(id.context("a server runs")?))
        .sum()
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for it in &self.rounds {
            writeln!(
                f,
                "{} members: {:.0} operations a second over {} names, {:.2} cores of the servers, \
                 {:.0} operations a second for each of these cores",
                it.members,
                it.operations_a_second,
                self.names,
                it.server_cores,
                it.operations_a_server_core,
            )?;
        }
        Ok(())
    }
}
