//! Lock recipes of other libraries in the same queue. A contender of another recipe excludes a
//! contender of distlock, and a contender of distlock excludes the other.

use std::process::Command;

use distlock_core::Attempt;
use distlock_harness::{Process, servers::zookeeper::ZooKeeper};
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix};

use crate::fixtures::{
    SOON, container_path, contenders, count_waiters, enter_queue, eventually, hold, locker,
    raw_client, release_cleanly, within,
};

#[tokio::test(flavor = "multi_thread")]
async fn other_recipes_share_the_queue() {
    let ensemble = ZooKeeper::start().unwrap();
    the_recipe_of_the_client_library_shares_the_queue(&ensemble).await;
    kazoo_shares_the_queue(&ensemble).await;
}

/// The recipe of the client library `zookeeper-client`, which names its nodes like Curator.
async fn the_recipe_of_the_client_library_shares_the_queue(ensemble: &ZooKeeper) {
    let ours = locker(&ensemble.servers()).await;
    let client = raw_client(&ensemble.servers()).await;
    let path = container_path("shared");
    let recipe = || {
        let prefix = LockPrefix::new_curator(&path, "lock-").unwrap();
        let options = LockOptions::new(Acls::creator_all())
            .with_ancestor_options(CreateMode::Container.with_acls(Acls::creator_all()))
            .unwrap();
        client.lock(prefix, b"somebody", options)
    };
    for _ in 0..3 {
        let theirs = recipe().await.unwrap();
        match ours.lock("shared").try_acquire().await.unwrap() {
            Attempt::Busy(holder) => assert_eq!(holder.unwrap().holder, "somebody"),
            Attempt::Acquired(guard) => panic!("{guard:?}"),
        }
        let next = enter_queue(&ours, "shared").await;
        assert!(!next.is_finished());
        drop(theirs);
        let (guard, _) = within("the waiter gets the lock", next).await.unwrap();

        // Now the other recipe waits for a lock that distlock holds.
        let mut theirs = std::pin::pin!(recipe());
        tokio::select! {
            biased;
            _ = &mut theirs => panic!("got a lock that is held"),
            () = async {
                let is_queued = async || (count_waiters(&ours, "shared").await == 1).then_some(());
                eventually("the contender is in the queue", is_queued).await;
            } => {}
        }
        assert!(guard.is_valid());
        release_cleanly(guard).await;
        let theirs = within("the waiter gets the lock", theirs).await.unwrap();
        drop(theirs);
        eventually("no node is left", async || {
            contenders(&client, "shared").await.is_empty().then_some(())
        })
        .await;
    }
    release_cleanly(hold(&ours, "shared").await).await;
}

const KAZOO: &str = r#"
import os, sys, time
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL

path, go_on = sys.argv[1:]
user, servers = os.environ["SERVERS"].rsplit("@", 1)
client = KazooClient(
    hosts=servers, auth_data=[("digest", user)], default_acl=CREATOR_ALL_ACL
)
client.start()
lock = client.Lock(path, "kazoo", extra_lock_patterns=["-lock-"])
lock.acquire()
print("held", flush=True)
while not os.path.exists(go_on):
    time.sleep(0.01)
lock.release()
print("released", flush=True)
client.stop()
"#;

/// The recipe of kazoo, the most used client for Python. kazoo's option `extra_lock_patterns` names
/// the form of distlock's nodes, as the documentation of distlock advises.
async fn kazoo_shares_the_queue(ensemble: &ZooKeeper) {
    let ours = locker(&ensemble.servers()).await;
    let folder = tempfile::tempdir().unwrap();
    let go_on = folder.path().join("go-on");
    let guard = hold(&ours, "python").await;
    // This is the system's Python, because another Python does not find Debian's packages.
    let mut python = Command::new("/usr/bin/python3");
    python
        // The text of the servers contains a password, and every user can read the arguments of a
        // process.
        .env("SERVERS", ensemble.servers())
        .args(["-c", KAZOO, &container_path("python")])
        .arg(&go_on);
    let mut theirs = Process::spawn(&mut python).unwrap();
    eventually("the contender is in the queue", async || {
        let running = theirs.is_running().unwrap();
        let missing = "python3-kazoo is needed (Debian: apt-get install python3-kazoo)";
        assert!(running, "{missing}\n{}", theirs.output());
        (count_waiters(&ours, "python").await == 1).then_some(())
    })
    .await;
    assert_eq!(theirs.output(), "", "it waits");
    release_cleanly(guard).await;
    let says = |theirs: &Process, word: &str| {
        theirs.wait_for_line(SOON, |line| line == word).unwrap();
    };
    says(&theirs, "held");
    match ours.lock("python").try_acquire().await.unwrap() {
        Attempt::Busy(holder) => assert_eq!(holder.unwrap().holder, "kazoo"),
        Attempt::Acquired(guard) => panic!("{guard:?}"),
    }
    let next = enter_queue(&ours, "python").await;
    assert!(!next.is_finished());
    std::fs::write(&go_on, "").unwrap();
    let (guard, _) = within("the waiter gets the lock", next).await.unwrap();
    says(&theirs, "released");
    release_cleanly(guard).await;
    theirs.wait(SOON).unwrap();
}
