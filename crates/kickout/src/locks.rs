//! The locks of the flow: the leases of nodes and the locks of accounts.
//!
//! Invariant: a lock is renewed only by the task that works under it. The keeper thread of a locker
//! would renew a lock also while the runtime of this node stands still, and the other nodes would
//! then wait for a node that serves nobody. With this module such a lock ends by its TTL, as after
//! a crash.

use std::{convert::Infallible, future::Future, time::Duration};

use distlock_core::{Clock, Guard, LockBuilder, LockName, Locker, Renew};

use crate::model::ident::NodeId;

/// The longest pause after a renewal that failed.
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A wanted lock for a node. Its guard must be passed to [`renewing`] for any work that may take
/// long.
pub(crate) fn wanted_lock(
    locker: &Locker,
    name: &LockName,
    ttl: Duration,
    holder: &NodeId,
) -> LockBuilder {
    locker
        .lock_named(name)
        .ttl(ttl)
        .renew(Renew::Manual)
        .holder(holder.as_str())
}

/// Runs `work` and renews the lock meanwhile, in the task of the caller. A lock that is lost
/// meanwhile does not end the work.
pub(crate) async fn renewing<F: Future>(
    clock: &dyn Clock,
    guard: &Guard,
    ttl: Duration,
    work: F,
) -> F::Output {
    tokio::select! {
        biased;
        output = work => output,
        never = renew(clock, guard, ttl) => match never {},
    }
}

async fn renew(clock: &dyn Clock, guard: &Guard, ttl: Duration) -> Infallible {
    let mut failed = false;
    loop {
        // The store may have granted a shorter lease than the wanted one.
        let granted = guard.ttl().duration();
        // A renewal waits at most a third of the TTL for its answer. So with this pause after a
        // failure, there are at least two tries before the deadline.
        let pause = if failed {
            (granted / 10).min(LONGEST_RETRY_PAUSE)
        } else {
            granted / 3
        };
        clock.sleep(pause).await;
        failed = match guard.extend(ttl).await {
            Ok(()) => false,
            Err(error) if error.is_lost() => std::future::pending().await,
            // The locker has logged and counted this failure.
            Err(_) => true,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use distlock_core::{Store, SystemClock};
    use distlock_memory::Memory;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_lock_ends_by_its_ttl_while_the_runtime_of_its_task_stands_still() {
        let memory = Memory::default();
        let (name, ttl) = (LockName::new("user/anna").unwrap(), Duration::from_secs(1));
        let node = NodeId::new("n1").unwrap();
        let lock = {
            let (memory, name) = (memory.clone(), name.clone());
            move || {
                let store = Store::new(memory.lock(), memory.records());
                wanted_lock(&store.locker(), &name, ttl, &node)
            }
        };
        let (resume, standstill) = mpsc::channel::<()>();
        let (still, ready) = oneshot::channel();
        let ours = lock.clone();
        let held = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let guard = ours().acquire().await.unwrap();
                still.send(()).unwrap();
                let work = async { standstill.recv().unwrap() };
                renewing(&SystemClock, &guard, ttl, work).await;
                guard.is_valid()
            })
        });
        ready.await.unwrap();
        let begun = SystemClock.now();
        let theirs = lock().wait(ttl * 10).acquire().await.unwrap();
        let took = SystemClock.now().since(begun);
        assert!(took < ttl * 2, "{took:?} with a TTL of {ttl:?}");
        resume.send(()).unwrap();
        assert!(!held.await.unwrap() && theirs.is_valid());
    }
}
