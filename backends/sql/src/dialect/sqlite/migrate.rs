//! Brings the tables of a file up to date.

use distlock_core::Result;

use super::{
    connect::{SetUp, connect},
    connection::Open,
    context::Shared,
    file::FileId,
    tables::{Present, check, present, upgrade, version},
};
use crate::migrate::LATEST;

/// Brings the tables up to date and says from which version it went.
pub(super) async fn migrate(shared: &Shared) -> Result<i64> {
    let present = match FileId::of(&shared.path) {
        Ok(Some(_)) => present(shared).await?,
        _ => Present::Version(version(shared).await?),
    };
    let version = match present {
        Present::Version(version) => version,
        // Each step makes what is not there, and names a new history.
        Present::Emptied => 0,
    };
    if present == Present::Version(0) {
        let _created = Open::new(shared).await?;
    } else if version < LATEST {
        let mut connection = connect(shared).await.map_err(SetUp::into_error)?;
        let upgraded = async {
            upgrade(&mut connection, shared).await?;
            check(&mut connection, shared, LATEST).await
        };
        upgraded.await.map_err(SetUp::into_error)?;
    }
    Ok(version)
}
