//! Checks fencing tokens inside the ensemble: changes of nodes that only the latest holder can
//! make.
//!
//! The fence state has the highest token that was shown so far. The fence state is stored in the
//! fence node, beside the data. One multi-request writes the new fence state and makes the change,
//! on condition that the fence node still has the version that was read. If another client wrote
//! the fence state in between, this client reads the fence state again. So no earlier holder can
//! write after a later one.
//!
//! The fence node must exist: create it, empty and persistent, together with the data.

use distlock_core::{Error, ErrorKind, Fence, FenceError, FenceGuard};
use zookeeper_client::{self as zk, Client, MultiWriteError, MultiWriteResult, MultiWriter};

use crate::error::{Access, translate};

/// The limit of attempts, each of which fails when another client writes the fence state between
/// the read and the change.
const ATTEMPTS: u32 = 32;

/// Makes a change and writes the fence state, unless a later token than that of `fence` was shown
/// to the node `fence_node` before. In that case the change is refused and nothing is written.
/// `change` adds the steps of the change to the request, and may be called several times. The
/// answer has the result of each step.
///
/// # Errors
/// [`FenceError::Refused`] for an earlier holder. [`FenceError::Failed`] when the ensemble cannot
/// be reached or refuses, or when a step of the change fails; with [`ErrorKind::Corrupt`] when the
/// fence node holds other data, or does not exist. After [`ErrorKind::OutcomeUnknown`] the change
/// may have been made.
///
/// The change may or may not be made when the future is dropped. The change is made as a whole or
/// not at all.
pub async fn write(
    client: &Client,
    fence_node: &str,
    fence: &Fence,
    change: impl Fn(&mut MultiWriter<'_>) -> Result<(), zk::Error>,
) -> Result<Vec<MultiWriteResult>, FenceError> {
    let read = |error| failed_error(fence_node, error, Access::Read);
    for _ in 0..ATTEMPTS {
        let (kept, stat) = client.get_data(fence_node).await.map_err(read)?;
        let kept = std::str::from_utf8(&kept).map_err(|error| {
            Error::new(
                ErrorKind::Corrupt,
                format!("the fence {fence_node:?} is not a text"),
            )
            .on("zookeeper")
            .caused_by(error)
        })?;
        let kept = Some(kept).filter(|kept| !kept.is_empty());
        let raised = FenceGuard::raised(kept, fence_node, fence)?;
        let mut all = client.new_multi_writer();
        all.add_set_data(fence_node, raised.as_bytes(), Some(stat.version))
            .and_then(|()| change(&mut all))
            .map_err(read)?;
        match all.commit().await {
            Ok(mut results) => {
                results.remove(0);
                return Ok(results);
            }
            // Another client wrote the fence state, or the server of this client was behind the
            // leader when it answered the read. So the server must catch up with the leader before
            // the next read.
            Err(MultiWriteError::OperationFailed {
                index: 0,
                source: zk::Error::BadVersion,
            }) => client.sync(fence_node).await.map_err(read)?,
            Err(MultiWriteError::OperationFailed { index, source }) if index > 0 => {
                let refused = translate(source, Access::Write);
                let step = format!("step {index} of the change was refused");
                let refused = Error::new(refused.kind(), step).caused_by(refused);
                return Err(FenceError::Failed(refused.on("zookeeper")));
            }
            Err(error) => return Err(failed_error(fence_node, error.into(), Access::Write)),
        }
    }
    Err(FenceError::Failed(
        Error::new(
            ErrorKind::Unavailable,
            format!("others kept raising the fence {fence_node:?}"),
        )
        .on("zookeeper"),
    ))
}

/// Returns the error of a failed request. The error says so if the fence node is absent.
fn failed_error(fence_node: &str, error: zk::Error, access: Access) -> FenceError {
    FenceError::Failed(match error {
        zk::Error::NoNode if access == Access::Read => Error::new(
            ErrorKind::Corrupt,
            format!(
                "the fence {fence_node:?} is not there: create its node together with the data"
            ),
        )
        .on("zookeeper"),
        error => translate(crate::error::as_connection_loss(error), access),
    })
}
