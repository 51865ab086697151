//! Runs a real backend through the whole measuring engine.

use std::time::Duration;

use distlock_core::{ErrorKind, Locker};
use distlock_memory::Memory;
use distlock_report::{CountingLock, Options, Report, Workload, bench};

fn short_options() -> Options {
    Options {
        duration: Duration::from_millis(150),
        rounds: 3,
        warmup: Duration::from_millis(5),
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_workload_runs_without_a_failure_and_leaves_nothing_held() {
    for workload in Workload::LOCKS {
        let store = Memory::default();
        let report = bench(store.lock(), workload, &short_options())
            .await
            .unwrap();
        let figures = report.arm("memory").expect("named after the backend");
        assert_eq!(figures.errors, 0, "{workload}: {:?}", figures.first_error);
        assert!(figures.cycles_per_task.0 > 0, "{workload}: {report}");
        // A cycle needs a call that grants and a call that releases, or one call that does both.
        assert!(figures.operations_per_cycle.unwrap() >= 0.9, "{report}");
        assert_eq!(report.samples.len(), 3);

        let locker = Locker::new(store.lock());
        assert!(locker.list("bench:").await.unwrap().is_empty());
        let json = serde_json::to_string(&report).unwrap();
        let back: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(Report::new(back.samples).figures, report.figures);
    }
}

#[tokio::test]
async fn wrong_options_are_refused_before_anything_is_opened() {
    let store = Memory::default();
    let mut options = short_options();
    options.concurrency = Some(9);
    let error = bench(store.lock(), Workload::Uncontended, &options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn every_call_to_the_backend_is_counted_once() {
    let counting = CountingLock::new(Memory::default().lock());
    let locker = Locker::new(std::sync::Arc::new(counting.clone()));
    locker.ready().await.unwrap();
    assert_eq!(counting.calls(), 0);
    let guard = locker
        .lock("order:42")
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .unwrap();
    assert_eq!(counting.calls(), 1, "one attempt");
    // The renewal goes through the handle of the keeper thread, whose calls count too.
    guard.extend(Duration::from_secs(20)).await.unwrap();
    assert_eq!(counting.calls(), 2, "one renewal");
    let _ = guard.release().await;
    assert_eq!(counting.calls(), 3, "one release");
    locker.inspect("order:42").await.unwrap();
    assert_eq!(counting.calls(), 4, "one look");
    locker.close().await;
}
