//! The nodes that a session needs before anything else: the parents, and a probe that tells whose a connection is.

use distlock_core::Epoch;
use zookeeper_client as zk;

use crate::{config::AclPolicy, names::Layout};

/// The access list of all nodes that are created.
pub(crate) fn acls(policy: AclPolicy) -> zk::Acls<'static> {
    match policy {
        AclPolicy::Creator => zk::Acls::creator_all(),
        AclPolicy::Open => zk::Acls::anyone_all(),
    }
}

/// Creates a node that vanishes with its session, and tells whose it is.
pub(crate) async fn probe_session(
    client: &zk::Client,
    layout: &Layout,
    acls: zk::Acls<'_>,
) -> Result<i64, zk::Error> {
    let options = zk::CreateMode::EphemeralSequential.with_acls(acls);
    let (stat, sequence) = match client.create(&layout.probe, &[], &options).await {
        Err(zk::Error::NoNode) => {
            let parents = zk::CreateMode::Persistent.with_acls(acls);
            client.mkdir(&layout.root, &parents).await?;
            client.create(&layout.probe, &[], &options).await?
        }
        created => created?,
    };
    // RequestStart right away; nobody waits for it. What a lost connection leaves behind vanishes with the session.
    drop(client.delete(&format!("{}{sequence}", layout.probe), None));
    Ok(stat.ephemeral_owner)
}

/// Names the ensemble's history by the birth of the node that all locks are under, which is made when it is absent: an
/// ensemble that was built anew, or whose tree was removed, has another one.
pub(crate) async fn read_epoch(
    client: &zk::Client,
    layout: &Layout,
    acls: zk::Acls<'_>,
) -> Result<Epoch, zk::Error> {
    let parents = zk::CreateMode::Persistent.with_acls(acls);
    loop {
        client.mkdir(&layout.locks, &parents).await?;
        if let Some(stat) = client.check_stat(&layout.locks).await? {
            return Ok(Epoch::new(format!("{:x}-{:x}", stat.czxid, stat.ctime)));
        }
    }
}
