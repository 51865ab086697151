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
        let again = answers.as_ref().is_err_and(|failed| {
            let busy_retry = busy_retry.get_or_insert_with(|| BusyRetry::new(context));
            busy_retry.allows(&open, failed, context)
        });
        slot.put_back(open);
        if !again {
            return answers.map_err(|failed| slot.failed(failed).into_failure());
        }
    }
}
