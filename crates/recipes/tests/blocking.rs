//! Jobs and elections of callers without async code, over the memory store.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use distlock_core::{
    Clock as _, Error, ErrorKind, FencingToken, LockWatch, ManualClock, SystemClock,
    blocking::{Runtime, Store},
    sync::Mutex,
};
use distlock_memory::Memory;
use distlock_recipes::{
    Ran,
    blocking::{Election, Periodic},
    election::Led,
};

const HOUR: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(60);

fn store(memory: &Memory) -> Store {
    let store = distlock_core::Store::new(memory.lock(), memory.records());
    Store::new(store, Runtime::start().unwrap())
}

/// Frees the lock by force, and waits until its holder knows of that.
fn take_away(store: &Store, held: &LockWatch) {
    let locker = store.locker();
    locker.force_release(held.name(), held.token()).unwrap();
    let until = SystemClock.now() + LONG;
    while held.is_valid() {
        assert!(SystemClock.now() < until, "the loss was not noticed");
        thread::yield_now();
    }
}

#[test]
fn a_job_runs_once_per_period_and_a_failed_one_again_if_asked() {
    let clock = ManualClock::new();
    let store = store(&Memory::new(Arc::new(clock.clone())));
    let (jobs, runs) = (Periodic::new(&store).unwrap(), Cell::new(0));
    let run = |jobs: &Periodic, name, fails| {
        jobs.at_most_once(name, HOUR, |held| {
            held.check()?;
            runs.set(runs.get() + 1);
            if fails {
                return Err(Error::new(ErrorKind::Internal, "the work failed"));
            }
            Ok(runs.get())
        })
    };
    assert!(matches!(run(&jobs, "once", false), Ok(Ran::Here(1))));
    assert!(matches!(run(&jobs, "once", false), Ok(Ran::Before(_))));
    clock.advance(HOUR);
    let failed = run(&jobs, "once", true).unwrap_err();
    assert_eq!(failed.to_string(), "the work failed");
    assert!(matches!(run(&jobs, "once", false), Ok(Ran::Before(_))));
    let again = jobs.clone().retry_failed();
    assert!(matches!(run(&again, "once", false), Ok(Ran::Here(3))));
    assert!(matches!(run(&again, "once", false), Ok(Ran::Before(_))));
    store.close().unwrap();
}

#[test]
fn a_job_that_runs_elsewhere_does_not_run_here() {
    let memory = Memory::default();
    let (here, elsewhere) = (store(&memory), store(&memory));
    let ran = Periodic::new(&here)
        .unwrap()
        .at_most_once("job", HOUR, |_| {
            // The other host has a handle of its own.
            let elsewhere = Periodic::new(&elsewhere)?.retry_failed();
            elsewhere.at_most_once("job", HOUR, |_| Ok(()))
        });
    let Ran::Here(Ran::Elsewhere(Some(_))) = ran.unwrap() else {
        panic!("the job ran twice at the same time");
    };
}

#[test]
fn the_loss_of_a_jobs_lock_is_its_error() {
    let store = store(&Memory::default());
    let ran = Periodic::new(&store)
        .unwrap()
        .at_most_once("job", HOUR, |held| {
            take_away(&store, &held);
            Ok(())
        });
    assert_eq!(ran.unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn one_candidate_leads_at_a_time_and_terms_rise() {
    let memory = Memory::default();
    let (leading, terms) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let last: Arc<Mutex<Option<FencingToken>>> = Arc::default();
    let candidates: Vec<_> = (0..4)
        .map(|candidate| {
            let store = store(&memory);
            let name = format!("c{candidate}");
            let (leading, terms, last) =
                (Arc::clone(&leading), Arc::clone(&terms), Arc::clone(&last));
            thread::spawn(move || {
                let election = Election::new(&store, "seat", &name).unwrap().ttl(LONG);
                for _ in 0..10 {
                    let led = election.run_while_leader(|term| {
                        assert!(!leading.swap(true, Ordering::AcqRel), "two lead");
                        let before = last.lock().replace(term.number);
                        assert!(before < Some(term.number), "{before:?} before {term:?}");
                        let leader = election.leader().unwrap().unwrap();
                        assert_eq!(
                            (leader.candidate, leader.term),
                            (name.clone(), Some(term.number))
                        );
                        terms.fetch_add(1, Ordering::AcqRel);
                        leading.store(false, Ordering::Release);
                        term.number
                    });
                    assert!(matches!(led.unwrap(), Led::Done(_)));
                }
            })
        })
        .collect();
    for candidate in candidates {
        candidate.join().unwrap();
    }
    assert_eq!(terms.load(Ordering::Acquire), 40);
    let nobody = Election::new(&store(&memory), "seat", "observer")
        .unwrap()
        .leader();
    assert_eq!(nobody.unwrap(), None);
}

#[test]
fn the_work_of_a_leader_learns_that_its_term_has_ended() {
    let store = store(&Memory::default());
    let election = Election::new(&store, "seat", "a").unwrap();
    let (lost, told) = std::sync::mpsc::channel();
    let led = election.run_while_leader(|term| {
        store
            .runtime()
            .on_lost(&term.seat, move |reason| lost.send(reason).unwrap());
        take_away(&store, &term.seat);
        term.seat.loss()
    });
    let Led::Done(Some(reason)) = led.unwrap() else {
        panic!("the work did not learn of the loss");
    };
    assert_eq!(told.recv_timeout(LONG), Ok(reason));
}

#[tokio::test]
async fn a_call_in_async_code_is_an_error() {
    let store = tokio::task::spawn_blocking(|| store(&Memory::default()));
    let store = store.await.unwrap();
    let ran = Periodic::new(&store)
        .unwrap()
        .at_most_once("job", HOUR, |_| Ok(()));
    assert_eq!(ran.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let election = Election::new(&store, "seat", "a").unwrap();
    let led = election.run_while_leader(|_| ());
    assert_eq!(led.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        election.leader().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}
