//! The nodes that a session needs before any lock: the parents, and a probe that shows which
//! session a connection carries.

use distlock_core::Epoch;
use zookeeper_client as zk;

use crate::{config::AclPolicy, names::Layout};

/// The access list of all nodes that this library creates.
pub(crate) fn acls(policy: AclPolicy) -> zk::Acls<'static> {
    match policy {
        AclPolicy::Creator => zk::Acls::creator_all(),
        AclPolicy::Open => zk::Acls::anyone_all(),
    }
}

/// Creates a node that vanishes with its session, and answers with the id of that session.
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
    // Sent at once, without waiting for the answer. A lost connection may leave the node behind; it
    // vanishes with the session.
    drop(client.delete(&format!("{}{sequence}", layout.probe), None));
    Ok(stat.ephemeral_owner)
}

/// The epoch: names the ensemble's history by the creation of the node that all locks are under.
/// The node is created when it is absent. So an ensemble that was rebuilt, or whose tree was
/// removed, has another epoch.
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
