//! Elections over the memory store. `tests/election` repeats these cases over servers, with
//! processes that die.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use distlock_core::{ErrorKind, LockWatch, LossReason, Store, sync::Mutex};
use distlock_memory::Memory;
use distlock_recipes::election::{Election, Led};
use tokio::{
    sync::Notify,
    task::{JoinSet, yield_now},
};

fn store(memory: &Memory) -> Store {
    Store::new(memory.lock(), memory.records())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_candidate_leads_at_a_time_and_terms_rise() {
    let memory = Memory::default();
    let (leading, term) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let last = Arc::new(Mutex::new(0));
    let mut candidates = JoinSet::new();
    for candidate in 0..8 {
        let election = Election::new(&store(&memory), "seat", &format!("c{candidate}")).unwrap();
        let (leading, term, last) = (Arc::clone(&leading), Arc::clone(&term), Arc::clone(&last));
        candidates.spawn(async move {
            for _ in 0..50 {
                let led = election.run_while_leader(async |now| {
                    assert!(!leading.swap(true, Ordering::AcqRel), "two lead");
                    let number = now.number.get();
                    let before = std::mem::replace(&mut *last.lock(), number);
                    assert!(number > before, "{number} after {before}");
                    yield_now().await;
                    leading.store(false, Ordering::Release);
                    term.fetch_add(1, Ordering::AcqRel)
                });
                assert!(matches!(led.await.unwrap(), Led::Done(_)));
            }
        });
    }
    candidates.join_all().await;
    assert_eq!(term.load(Ordering::Acquire), 400);
}

/// Records whether the lock was still held when the work was dropped.
struct Work(LockWatch, Arc<AtomicBool>);

impl Drop for Work {
    fn drop(&mut self) {
        self.1.store(self.0.is_valid(), Ordering::Release);
    }
}

/// The caller drops the future of `run_while_leader`. The work's future is dropped first, and the
/// lock is released afterwards.
#[tokio::test]
async fn work_ends_before_the_lock_is_released() {
    let memory = Memory::default();
    let election = Election::new(&store(&memory), "seat", "a").unwrap();
    let (held, begun) = (Arc::new(AtomicBool::new(false)), Notify::new());
    let leads = election.run_while_leader(async |term| {
        let _work = Work(term.seat, Arc::clone(&held));
        begun.notify_one();
        pending::<()>().await;
    });
    tokio::select! {
        _ = leads => unreachable!("it leads for ever"),
        () = begun.notified() => {}
    }
    assert!(held.load(Ordering::Acquire), "the lock was released before");
    let other = Election::new(&store(&memory), "seat", "b").unwrap();
    let next = other.campaign().await.unwrap();
    assert_eq!(other.leader().await.unwrap().unwrap().candidate, "b");
    let _ = next.resign().await;
    assert_eq!(other.leader().await.unwrap(), None);
}

#[tokio::test]
async fn work_is_stopped_when_the_lock_is_lost() {
    let memory = Memory::default();
    let election = Election::new(&store(&memory), "seat", "a").unwrap();
    let election = election.ttl(Duration::from_secs(1));
    let locker = store(&memory).locker();
    let led = election.run_while_leader(async |term| {
        let forced = locker.force_release("election/seat", term.number).await;
        forced.unwrap();
        pending::<()>().await;
    });
    match led.await.unwrap() {
        Led::Stopped(reason) => {
            let known = [LossReason::ForceReleased, LossReason::Removed];
            assert!(known.contains(&reason), "{reason:?}");
        }
        Led::Done(()) => unreachable!("it never ends"),
    }
}

#[tokio::test]
async fn an_observer_sees_each_leader() {
    let memory = Memory::default();
    let election = Election::new(&store(&memory), "seat", "a").unwrap();
    let mut observer = election.observe();
    assert_eq!(observer.next().await.unwrap(), None);
    let leadership = election.campaign().await.unwrap();
    let leader = observer.next().await.unwrap().unwrap();
    let number = leadership.term().number;
    assert_eq!(
        (leader.candidate.as_str(), leader.term),
        ("a", Some(number))
    );
    let _ = leadership.resign().await;
    assert_eq!(observer.next().await.unwrap(), None);
}

#[tokio::test]
async fn invalid_input_is_refused_with_its_error_kind() {
    let memory = Memory::default();
    for (name, candidate, kind) in [
        ("a\nb", "a", ErrorKind::InvalidName),
        ("seat", "", ErrorKind::InvalidArgument),
        ("seat", "a\u{7}", ErrorKind::InvalidArgument),
    ] {
        let error = Election::new(&store(&memory), name, candidate).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

/// The nominated candidate leads next, even when other candidates have waited longer.
#[tokio::test]
async fn the_nominated_candidate_leads_next() {
    let memory = Memory::default();
    let candidate = |name: &str| Election::new(&store(&memory), "seat", name).unwrap();
    let leadership = candidate("a").campaign().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let others = ["b", "c", "d"].map(|name| {
        let (election, order) = (candidate(name), Arc::clone(&order));
        tokio::spawn(async move {
            let leadership = election.campaign().await.unwrap();
            order.lock().push(name);
            let _ = leadership.resign().await;
        })
    });
    let error = leadership.nominate("e").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error.to_string().contains("\"e\" does not stand"),
        "{error}"
    );
    // The candidates may not have recorded yet that they take part.
    for name in ["b", "c", "d"] {
        while leadership.nominate(name).await.is_err() {
            yield_now().await;
        }
    }
    let _ = leadership.resign().await;
    for other in others {
        other.await.unwrap();
    }
    let order = order.lock().clone();
    assert_eq!((order[0], order.len()), ("d", 3), "{order:?}");
    let left = memory.records().scan("election/", None, 10).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

/// The nominated candidate dies. The others wait for at most one lease, and then lead.
#[tokio::test]
async fn a_candidate_leads_after_a_lease_when_the_nominated_one_is_dead() {
    let memory = Memory::default();
    let candidate = |name: &str| {
        let election = Election::new(&store(&memory), "seat", name).unwrap();
        election.ttl(Duration::from_millis(300))
    };
    let leadership = candidate("a").campaign().await.unwrap();
    let dead = candidate("dead");
    let dies = tokio::spawn(async move { dead.campaign().await.map(drop) });
    while leadership.nominate("dead").await.is_err() {
        yield_now().await;
    }
    dies.abort();
    let _ = leadership.resign().await;
    let next = candidate("b").campaign().await.unwrap();
    assert_eq!(
        candidate("b").leader().await.unwrap().unwrap().candidate,
        "b"
    );
    let _ = next.resign().await;
    // The nomination has ended.
    let _ = candidate("c").campaign().await.unwrap().resign().await;
}
