//! Other recipes in the same queue: we exclude them, and they us.

use distlock_core::Attempt;
use distlock_harness::servers::zookeeper::ZooKeeper;
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix};

use crate::rig::{
    container, contenders, eventually, give_back, hold, line_up, locker, stranger, waiters, within,
};

#[tokio::test(flavor = "multi_thread")]
async fn recipes_of_others_take_part() {
    let ensemble = ZooKeeper::start().unwrap();
    the_clients_own_recipe(&ensemble).await;
}

/// The one in Curator's form that comes with the client.
async fn the_clients_own_recipe(ensemble: &ZooKeeper) {
    let ours = locker(&ensemble.servers()).await;
    let client = stranger(&ensemble.servers()).await;
    let path = container("shared");
    let recipe = || {
        let prefix = LockPrefix::new_curator(&path, "lock-").unwrap();
        let options = LockOptions::new(Acls::anyone_all())
            .with_ancestor_options(CreateMode::Container.with_acls(Acls::anyone_all()))
            .unwrap();
        client.lock(prefix, b"somebody", options)
    };
    for _ in 0..3 {
        let theirs = recipe().await.unwrap();
        match ours.lock("shared").try_acquire().await.unwrap() {
            Attempt::Busy(holder) => assert_eq!(holder.unwrap().holder, "somebody"),
            Attempt::Acquired(guard) => panic!("{guard:?}"),
        }
        let next = line_up(&ours, "shared").await;
        assert!(!next.is_finished());
        drop(theirs);
        let (guard, _) = within("its turn", next).await.unwrap();

        // Now the other way round.
        let mut theirs = std::pin::pin!(recipe());
        tokio::select! {
            biased;
            _ = &mut theirs => panic!("got a lock that is held"),
            () = async {
                eventually("in the queue", async || (waiters(&ours, "shared").await == 1).then_some(())).await;
            } => {}
        }
        assert!(guard.is_valid());
        give_back(guard).await;
        let theirs = within("its turn", theirs).await.unwrap();
        drop(theirs);
        eventually("nothing is left", async || {
            contenders(&client, "shared").await.is_empty().then_some(())
        })
        .await;
    }
    give_back(hold(&ours, "shared").await).await;
}
