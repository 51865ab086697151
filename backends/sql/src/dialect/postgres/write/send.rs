//! Sends a batch until its outcome is known or its time limit has passed.
//!
//! A batch is sent again only if the server rolled it back, or if the connection was lost and every
//! operation may be repeated. If the answer after a lost connection does not determine the outcome
//! of both sends, the outcome is unknown.

use std::time::Duration;

use distlock_backend_kit::{
    batch::{Failure, Reply},
    operation::{Answer, Operation, OperationKind},
};
use distlock_core::{Error, Result};

use super::batch::Batch;
use crate::{
    dialect::postgres::{
        connect::with_statement_timeout, context::StoreContext, pool::ConnectionPool,
    },
    resend::{answer_after_resend, may_be_resent},
    statement_error::Access,
};

/// Sends a batch on a connection of `pool`.
pub(crate) async fn send(
    context: &StoreContext,
    pool: &ConnectionPool,
    kind: OperationKind,
    ops: &[Operation],
) -> Result<Vec<Reply<Answer>>, Failure> {
    let deadline = context.common.clock.now() + context.config.statement_timeout;
    // The error of the first send, if the batch was sent twice.
    let mut earlier_error: Option<Error> = None;
    loop {
        let connection = pool.lend(context).await;
        let connection = connection.map_err(|error| earlier_error.clone().unwrap_or(error));
        let mut connection = connection.map_err(Failure::Whole)?;
        let mut broke = false;
        let batch = Batch {
            ops,
            context,
            connection: connection.connection(),
            broke: &mut broke,
        };
        let answers = with_statement_timeout(context, Access::Write, batch.send(kind)).await;
        let answers = if broke && answers.is_ok() {
            drop(connection);
            answers
        } else {
            connection.give_back(answers)
        };
        match answers {
            Ok(answers) => {
                return Ok(match &earlier_error {
                    Some(earlier_error) => answers
                        .into_iter()
                        .map(|it| answer_after_resend(it, earlier_error))
                        .collect(),
                    None => answers,
                });
            }
            Err(failed) if failed.meaning.retry && context.common.clock.now() < deadline => {
                context.common.counters.count_retry();
                let pause = Duration::from_micros(fastrand::u64(500..5000));
                context.common.clock.sleep(pause).await;
            }
            // For example after a restart of the server.
            Err(failed)
                if earlier_error.is_none()
                    && failed.lost_connection()
                    && context.common.clock.now() < deadline
                    && ops.iter().all(may_be_resent) =>
            {
                context.common.counters.count_retry();
                earlier_error = Some(failed.into_error());
            }
            // After a lost connection, the error of the first send is reported, because the first
            // send may have been carried out.
            Err(failed) => {
                return Err(earlier_error.map_or_else(|| context.failure(failed), Failure::Whole));
            }
        }
    }
}
