//! The checking half of fencing, inside the ensemble: changes of nodes that only the latest holder
//! can make.
//!
//! The bar is the highest token shown so far. It stands in a node beside the data. One
//! multi-request raises the bar and makes the change, on condition that the bar's node still has
//! the version that was read. If another client raised the bar in between, the bar is read again.
//! So no earlier holder can write afterwards.
//!
//! The node of the bar must exist: create it, empty and persistent, together with the data.

use distlock_core::{Error, ErrorKind, Fence, FenceError, FenceGuard};
use zookeeper_client::{self as zk, Client, MultiWriteError, MultiWriteResult, MultiWriter};

use crate::error::{Access, translate};

/// How often other clients may raise the bar between the read and the change.
const ATTEMPTS: u32 = 32;

/// Makes a change if `fence` is the latest that was shown to the bar in the node `bar`, and raises
/// the bar. Otherwise it refuses and changes nothing. The [module](self) has an example. `change`
/// adds the steps, and may be called again; the answer has the result of each of its steps.
///
/// # Errors
/// [`FenceError::Refused`] for an earlier holder. [`FenceError::Failed`] when the ensemble cannot
/// be reached or refuses, or when a step of the change fails; with [`ErrorKind::Corrupt`] when
/// `bar` holds other data, or does not exist. After [`ErrorKind::OutcomeUnknown`] the change may
/// have been made.
///
/// # Cancel safety
/// The change may or may not be made when the future is dropped; it is made as a whole or not at
/// all.
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
            // Our server may have been behind as well, so catch up with the leader before reading
            // again.
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
