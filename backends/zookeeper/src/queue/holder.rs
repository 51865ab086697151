//! Reads from the ensemble to which holder a node belongs.

use distlock_core::{HolderInfo, Moment, Result};
use zookeeper_client as zk;

use crate::{
    error::{Access, translate},
    nodes::{
        node_data::{parse, unreadable},
        token,
    },
    session::Session,
};

/// Reads the holder of a node; `None` when the node is gone.
pub(crate) async fn read_holder(
    session: &Session,
    path: &str,
    until: Moment,
) -> Result<Option<HolderInfo>> {
    session.wait_connected(until).await?;
    let client = session.client()?;
    match session
        .answer(Access::Read, until, client.get_data(path))
        .await?
    {
        Ok((data, stat)) => Ok(Some(parse(&data, token(stat.czxid)?))),
        Err(zk::Error::NoNode) => Ok(None),
        // The node is in the queue all the same, and its creation may be read by everybody.
        Err(zk::Error::NoAuth) => {
            let stat = client.check_stat(path);
            let stat = session.answer(Access::Read, until, stat).await?;
            let Some(stat) = stat.map_err(|error| translate(error, Access::Read))? else {
                return Ok(None);
            };
            let mut info = unreadable();
            info.token = Some(token(stat.czxid)?);
            Ok(Some(info))
        }
        Err(error) => Err(translate(error, Access::Read)),
    }
}

/// The holder of a child, for people. A failure to read it must not fail the operation.
pub(crate) async fn try_read_holder(
    session: &Session,
    parent: &str,
    child: &str,
    until: Moment,
) -> Option<HolderInfo> {
    let path = format!("{parent}/{child}");
    read_holder(session, &path, until).await.ok().flatten()
}
