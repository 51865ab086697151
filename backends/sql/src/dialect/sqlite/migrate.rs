//! Brings the tables of a file up to date.

use distlock_core::Result;

use super::{
    connect::{SetUpError, connect},
    connection::OpenConnection,
    context::StoreContext,
    file::FileId,
    tables::{PresentVersion, check, present, upgrade, version},
};
use crate::migrate::LATEST;

/// Brings the tables up to date and returns the version before.
pub(super) async fn migrate(context: &StoreContext) -> Result<i64> {
    let present = match FileId::of(&context.path) {
        Ok(Some(_)) => present(context).await?,
        _ => PresentVersion::Version(version(context).await?),
    };
    let version = match present {
        PresentVersion::Version(version) => version,
        // Each step creates the missing parts and names a new history.
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
