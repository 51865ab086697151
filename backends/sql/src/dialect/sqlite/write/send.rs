//! Sends a batch, and repeats it while other processes write.
//!
//! The batch takes the connection out of its slot. If the future of the batch is dropped before its
//! end, the connection closes, and SQLite rolls back.

use distlock_backend_kit::{
    batch::{Failure, Reply},
    operation::{Answer, Operation, OperationKind},
};
use distlock_core::Result;
use tokio::sync::Mutex;

use super::batch::Batch;
use crate::dialect::sqlite::{
    busy_retry::BusyRetry, connection::ConnectionSlot, context::StoreContext,
};

/// Sends a batch on the connection of `writer`.
pub(crate) async fn send(
    context: &StoreContext,
    writer: &Mutex<ConnectionSlot>,
    kind: OperationKind,
    ops: &[Operation],
) -> Result<Vec<Reply<Answer>>, Failure> {
    let mut slot = writer.lock().await;
    let mut busy_retry: Option<BusyRetry> = None;
    loop {
        let mut open = slot.take(context).await.map_err(Failure::Whole)?;
        let batch = Batch {
            ops,
            context,
            open: &mut open,
            // The clock is read just before sending. The caller has read the clock earlier, so that
            // the caller's deadline is never later than the end of the lease in the store.
            now: context.now(),
            resent: busy_retry.is_some(),
        };
        let answers = batch.send(kind).await;
        let retries_when_busy = open.retries_when_busy;
        slot.put_back(open);
        let failed = match answers {
            Ok(answers) => return Ok(answers),
            Err(failed) => failed,
        };
        let retry = failed.meaning.retry && retries_when_busy;
        let busy_retry = busy_retry.get_or_insert_with(|| BusyRetry::new(context));
        if !(retry && busy_retry.may_retry(context)) {
            return Err(slot.failed(failed).into_failure());
        }
    }
}
