//! Locks while their slots move by atomic migration, which Redis 8.4 and Valkey 9 have: the whole
//! slot changes its server at one moment.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::common::{SOON, locker, redis, request, take, within};
use distlock_core::{DistLock, FencingToken, Lease, ReleaseOutcome, Renewal, Renewed};
use distlock_harness::{
    eventually,
    servers::redis::{Flavour, RedisCluster},
};
use futures_util::future::join_all;

/// A lease that must be renewed several times during the moves.
const TTL: Duration = Duration::from_secs(3);

/// The tasks that take, renew and free locks during the moves.
const TASKS: usize = 8;

/// The times that the slots move, there and back in turn.
const MOVES: usize = 6;

/// Moves the slots of one server that are in this range to another server, and waits for the end.
fn migrate(cluster: &RedisCluster, flavour: Flavour, [from, to]: [usize; 2], range: [&str; 2]) {
    let [first, last] = range;
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let begun = match flavour {
        // The old server is asked.
        Flavour::Valkey9 => {
            let id = target.command(&["CLUSTER", "MYID"]).unwrap();
            let slots = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last];
            source.command(&[&slots[..], &["NODE", &id]].concat())
        }
        // The new server is asked.
        _ => target.command(&["CLUSTER", "MIGRATION", "IMPORT", first, last]),
    };
    let begun = begun.unwrap();
    assert!(!begun.starts_with("ERR"), "{begun}");
    eventually("the slots have moved", SOON, || {
        let slots = target.command(&["CLUSTER", "NODES"]).unwrap();
        let own = slots.lines().find(|line| line.contains("myself"));
        let known = source.command(&["CLUSTER", "NODES"]).unwrap();
        let theirs = known.lines().find(|line| line.contains("myself"));
        let has = |line: Option<&str>| {
            let ranges = line.unwrap_or_default().split(' ').skip(8);
            ranges
                .filter_map(|range| range.split('-').next())
                .any(|begin| begin == first)
        };
        has(own) && !has(theirs)
    })
    .unwrap_or_else(|error| panic!("{begun}: {error}"));
}

/// The number of rounds that each task has finished, and whether all of them must end.
#[derive(Debug, Default)]
struct Progress {
    rounds: [AtomicUsize; TASKS],
    is_over: AtomicBool,
}

impl Progress {
    fn rounds(&self) -> [usize; TASKS] {
        std::array::from_fn(|task| self.rounds[task].load(Ordering::Acquire))
    }
}

/// Takes, renews and frees one lock after the other until the end. Every operation must succeed,
/// and the tokens of each lock must rise.
async fn cycle(lock: &dyn DistLock, task: usize, progress: &Progress) {
    let names: Vec<_> = (0..16).map(|n| format!("task-{task}-{n}")).collect();
    let mut last: Vec<Option<FencingToken>> = vec![None; names.len()];
    while !progress.is_over.load(Ordering::Acquire) {
        for (name, last) in names.iter().zip(&mut last) {
            let wanted = request(name, TTL);
            let grant = take(lock, &wanted).await;
            assert!(
                Some(grant.token) > *last,
                "{name}: {grant:?} after {last:?}"
            );
            *last = Some(grant.token);
            let lease = Lease::new(wanted.name.clone(), wanted.owner, Some(grant.token));
            let renewed = lock.renew(&lease, &Renewal::plain(wanted.ttl)).await;
            assert!(
                matches!(renewed, Ok(Renewed::Extended { .. })),
                "{name}: {renewed:?}"
            );
            let released = lock.release(&lease).await;
            let done = matches!(released, Ok(ReleaseOutcome::Released { .. }));
            assert!(done, "{name}: {released:?}");
        }
        progress.rounds[task].fetch_add(1, Ordering::AcqRel);
    }
}

async fn locks_survive_moves(flavour: Flavour) {
    let cluster = RedisCluster::start_flavour(flavour, 3).unwrap();
    let lock = redis(&cluster.url()).await.unwrap().lock();
    let locker = locker(&cluster.url()).await;
    // Together these locks are in more than half of the moving slots' buckets.
    let held = (0..200).map(|n| locker.lock(format!("held-{n}")).ttl(TTL).acquire());
    let held: Vec<_> = join_all(held)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let progress = Arc::<Progress>::default();
    let tasks = (0..TASKS).map(|task| {
        let (lock, progress) = (Arc::clone(&lock), Arc::clone(&progress));
        tokio::spawn(async move { cycle(&*lock, task, &progress).await })
    });
    let tasks: Vec<_> = tasks.collect();
    let work = Arc::clone(&progress);
    let cluster = tokio::task::spawn_blocking(move || {
        // The first server has the slots from 0 to 5460, and keeps the upper half of them.
        for at in 0..MOVES {
            let way = if at % 2 == 0 { [0, 1] } else { [1, 0] };
            let before = work.rounds();
            migrate(&cluster, flavour, way, ["0", "2730"]);
            // Each task begins a round during the move or after it, and ends that round.
            eventually("every task works on", SOON, || {
                let now = work.rounds();
                now.iter()
                    .zip(before)
                    .all(|(now, before)| *now > before + 1)
            })
            .unwrap();
        }
        cluster
    });
    let cluster = within(SOON * 4, "the slots move", cluster).await.unwrap();
    progress.is_over.store(true, Ordering::Release);
    for task in join_all(tasks).await {
        task.unwrap();
    }
    let moved = held.iter().filter(|guard| {
        let first = |command: &[&str]| cluster.nodes[0].command(command).unwrap();
        let key = first(&["KEYS", &format!("*:lock:{}", guard.name())]);
        !key.is_empty() && first(&["CLUSTER", "KEYSLOT", &key]).parse::<u16>().unwrap() <= 2730
    });
    assert!(moved.count() > 10, "few of the held locks have moved");
    for guard in held {
        let (name, token) = (guard.name().clone(), guard.token());
        assert!(guard.is_valid(), "{name:?} was lost");
        assert!(guard.release().await.is_clean(), "{name:?}");
        let again = locker.lock(name.as_str()).acquire().await.unwrap();
        assert!(again.token() > token, "{name:?}");
        assert!(again.release().await.is_clean(), "{name:?}");
    }
    lock.close().await;
    locker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn valkey_moves_slots_under_locks() {
    locks_survive_moves(Flavour::Valkey9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_moves_slots_under_locks() {
    locks_survive_moves(Flavour::Redis8).await;
}
