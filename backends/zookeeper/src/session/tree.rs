//! The nodes that a session needs before any lock: the parents, and a probe node that shows the
//! session of a connection.

use distlock_core::Epoch;
use zookeeper_client as zk;

use crate::{config::AclPolicy, names::Layout};

/// Returns the access list of all nodes that this library creates.
pub(crate) fn acls_for(policy: AclPolicy) -> zk::Acls<'static> {
    match policy {
        AclPolicy::Creator => zk::Acls::creator_all(),
        AclPolicy::Open => zk::Acls::anyone_all(),
    }
}

/// Creates an ephemeral node and deletes it at once. Returns the id of the session to which the
/// servers assigned the node.
pub(crate) async fn probe_session(
    client: &zk::Client,
    layout: &Layout,
    acls: zk::Acls<'_>,
) -> Result<i64, zk::Error> {
    let options = zk::CreateMode::EphemeralSequential.with_acls(acls);
    let (stat, sequence) = match client.create(&layout.probe_prefix, &[], &options).await {
        Err(zk::Error::NoNode) => {
            let parents = zk::CreateMode::Persistent.with_acls(acls);
            client.mkdir(&layout.root, &parents).await?;
            client.create(&layout.probe_prefix, &[], &options).await?
        }
        created => created?,
    };
    // The answer to the deletion is not awaited. If the connection is lost now, the node may remain
    // until the session ends.
    drop(client.delete(&format!("{}{sequence}", layout.probe_prefix), None));
    Ok(stat.ephemeral_owner)
}

/// Reads the epoch, and creates the parent node of all locks if it is absent. The epoch is the
/// transaction and the time that created this node. So an ensemble that was rebuilt, or whose tree
/// was removed, has another epoch.
pub(crate) async fn read_or_create_epoch(
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
