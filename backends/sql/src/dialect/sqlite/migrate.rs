//! Upgrades the tables of a file.

use distlock_core::Result;

use super::{
    connect::{SetUpError, connect},
    connection::OpenConnection,
    context::StoreContext,
    file::FileId,
    tables::{PresentVersion, check, present, upgrade, version},
};
use crate::migrate::LATEST;

/// Upgrades the tables, and returns the former version. Creates an absent file and absent tables.
pub(super) async fn migrate(context: &StoreContext) -> Result<i64> {
    let present = match FileId::of(&context.path) {
        Ok(Some(_)) => present(context).await?,
        _ => PresentVersion::Version(version(context).await?),
    };
    let version = match present {
        PresentVersion::Version(version) => version,
        // All migrations run: each one creates what is missing, and the first one inserts a meta
        // row with a new name of the history.
        PresentVersion::Emptied => 0,
    };
    if present == PresentVersion::Version(0) {
        let _created = OpenConnection::new(context).await?;
    } else if version < LATEST {
        let mut connection = connect(context).await.map_err(SetUpError::into_error)?;
        let upgraded = async {
            upgrade(&mut connection, context).await?;
            check(&mut connection, context, LATEST).await
        };
        upgraded.await.map_err(SetUpError::into_error)?;
    }
    Ok(version)
}
