//! The checking half of fencing, in the ensemble: changes of nodes that only the latest holder can make.
//!
//! The bar is what stands in a node beside the data. It is raised in one multi-request with the change, under the version that
//! the caller was judged by; somebody else who raised it in between is looked at again. So no earlier holder can write
//! afterwards.
//!
//! The node of the bar must be there: create it, empty and persistent, together with the data.

use distlock_core::{Error, ErrorKind, Fence, FenceError, FenceGuard};
use zookeeper_client::{self as zk, Client, MultiWriteError, MultiWriteResult, MultiWriter};

use crate::error::{Access, translate};

/// How often the bar may be raised by others between the look at it and the change.
const ATTEMPTS: u32 = 32;

/// Makes a change if `fence` is the latest that was shown to the bar in the node `bar`, which it raises; or refuses it and
/// changes nothing. The [module](self) has an example. `change` says what is to be done, and may be
/// asked again; what came of each of its steps is the answer.
///
/// # Errors
/// [`FenceError::Refused`] for an earlier holder; [`FenceError::Failed`] when the ensemble cannot be asked or refuses, or when
/// a step of the change fails, with [`ErrorKind::Corrupt`] when something else stands in `bar`, or there is no such node. After
/// [`ErrorKind::OutcomeUnknown`] the change may have been made.
///
/// # Cancel safety
/// The change may or may not be made when the future is dropped; it is made as a whole or not at all.
pub async fn write(
    client: &Client,
    bar: &str,
    fence: &Fence,
    change: impl Fn(&mut MultiWriter<'_>) -> Result<(), zk::Error>,
) -> Result<Vec<MultiWriteResult>, FenceError> {
    let read = |error| failed(bar, error, Access::Read);
    for _ in 0..ATTEMPTS {
        let (kept, stat) = client.get_data(bar).await.map_err(read)?;
        let kept = std::str::from_utf8(&kept).map_err(|error| {
            Error::new(
                ErrorKind::Corrupt,
                format!("the fence {bar:?} is not a text"),
            )
            .on("zookeeper")
            .caused_by(error)
        })?;
        let kept = Some(kept).filter(|kept| !kept.is_empty());
        let raised = FenceGuard::raised(kept, bar, fence)?;
        let mut all = client.new_multi_writer();
        all.add_set_data(bar, raised.as_bytes(), Some(stat.version))
            .and_then(|()| change(&mut all))
            .map_err(read)?;
        match all.commit().await {
            Ok(mut results) => {
                results.remove(0);
                return Ok(results);
            }
            // The server that we asked may have been behind, too.
            Err(MultiWriteError::OperationFailed {
                index: 0,
                source: zk::Error::BadVersion,
            }) => client.sync(bar).await.map_err(read)?,
            Err(MultiWriteError::OperationFailed { index, source }) if index > 0 => {
                let refused = translate(source, Access::Write);
                let step = format!("step {index} of the change was refused");
                let refused = Error::new(refused.kind(), step).caused_by(refused);
                return Err(FenceError::Failed(refused.on("zookeeper")));
            }
            Err(error) => return Err(failed(bar, error.into(), Access::Write)),
        }
    }
    Err(FenceError::Failed(
        Error::new(
            ErrorKind::Unavailable,
            format!("others kept raising the fence {bar:?}"),
        )
        .on("zookeeper"),
    ))
}

fn failed(bar: &str, error: zk::Error, access: Access) -> FenceError {
    FenceError::Failed(match error {
        zk::Error::NoNode if access == Access::Read => Error::new(
            ErrorKind::Corrupt,
            format!("the fence {bar:?} is not there: create its node together with the data"),
        )
        .on("zookeeper"),
        error => translate(crate::error::as_connection_loss(error), access),
    })
}
