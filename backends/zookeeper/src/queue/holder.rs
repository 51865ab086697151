//! Asks the ensemble who a node belongs to.

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

/// Asks the ensemble who a node belongs to; `None` when it is gone.
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
        // It stands in the queue all the same, and when it was created is no secret.
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

/// Who holds it, for people; not worth failing for.
pub(crate) async fn try_read_holder(
    session: &Session,
    parent: &str,
    child: &str,
    until: Moment,
) -> Option<HolderInfo> {
    let path = format!("{parent}/{child}");
    read_holder(session, &path, until).await.ok().flatten()
}
