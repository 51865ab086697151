//! Acquires and releases in one transaction, so that they share its sync.

use distlock_backend_kit::batch::Reply;
use distlock_core::{AcquireRequest, Lease};
use futures_util::TryStreamExt as _;
use sqlx::{Either, Executor as _};

use super::{
    acquire::differ_in_owner_only,
    batch::{Batch, BatchResult, BatchStatement, answers_or_error},
};
use crate::{
    dialect::sqlite::parameters::{self, IdBlob, json},
    operation::{Operation, OperationKind},
    statement_error::{Access, StatementError},
};

impl Batch<'_> {
    /// Sends a batch of acquires, releases, or both. Each name is in it once, so that the order
    /// does not matter.
    pub(super) async fn acquire_and_release(mut self) -> BatchResult {
        let (mut requests, mut leases) = (Vec::new(), Vec::new());
        for op in self.ops {
            match op {
                Operation::Acquire(request) => requests.push(request),
                Operation::Release(lease) => leases.push(lease),
                _ => {}
            }
        }
        if leases.is_empty() {
            let taken = self.take(&requests).await?;
            let answers = self.acquired(&requests, taken).await?;
            return Ok(answers.into_iter().map(Reply::Done).collect());
        }
        if requests.is_empty() {
            let freed = self.free(&leases).await?;
            let answers = self.released(&leases, freed).await?;
            return Ok(answers.into_iter().map(Reply::Done).collect());
        }
        let (taken, freed) = self.take_and_free(&requests, &leases).await?;
        // The transaction is committed now: a later failure concerns its own part only. The rows of
        // released locks are read first, before others take the locks.
        let released = self.released(&leases, freed).await;
        let acquired = self.acquired(&requests, taken).await;
        let is_broken = |failed: &StatementError| failed.meaning.reconnect;
        self.open.is_spent =
            released.as_ref().is_err_and(is_broken) || acquired.as_ref().is_err_and(is_broken);
        let mut acquired = answers_or_error(acquired, requests.len()).into_iter();
        let mut released = answers_or_error(released, leases.len()).into_iter();
        let answers = self.ops.iter().filter_map(|op| match op {
            Operation::Acquire(_) => acquired.next(),
            _ => released.next(),
        });
        Ok(answers.map(Reply::Done).collect())
    }

    /// Takes the free locks, frees those that no other process waits for, and returns both numbers.
    async fn take_and_free(
        &mut self,
        requests: &[&AcquireRequest],
        leases: &[&Lease],
    ) -> Result<(usize, usize), StatementError> {
        let context = self.context;
        self.count(OperationKind::Acquire);
        self.count(OperationKind::Release);
        let statements = &context.statements;
        let (sql, rows, ttl, holder, meta) = if differ_in_owner_only(requests) {
            let names: Vec<_> = requests.iter().map(|it| it.name.as_str()).collect();
            let (_, ttl, holder, meta) = parameters::request(requests[0]);
            let (holder, meta) = (Some(holder.to_owned()), meta.map(str::to_owned));
            (
                &statements.take_and_free_alike,
                json(&names),
                ttl,
                holder,
                meta,
            )
        } else {
            let rows: Vec<_> = requests.iter().map(|it| parameters::request(it)).collect();
            (&statements.take_and_free, json(&rows), 0, None, None)
        };
        let names: Vec<_> = leases.iter().map(|lease| lease.name.as_str()).collect();
        let query = BatchStatement {
            sql,
            context,
            now: self.now,
        }
        .bind_first(rows, IdBlob::of(requests.iter().map(|it| &it.owner)))
        .bind(context.wait_group.hint_id())
        .bind(ttl.cast_signed())
        .bind(holder)
        .bind(meta)
        .bind(json(&names))
        .bind(IdBlob::of(leases.iter().map(|lease| &lease.owner)))
        .bind(parameters::tokens(leases.iter().map(|lease| lease.token)));
        let mut ended = Vec::with_capacity(4);
        let outcome = {
            let mut steps = self.open.connection.fetch_many(query);
            loop {
                match steps.try_next().await {
                    Ok(Some(Either::Left(step))) => ended.push(step.rows_affected()),
                    Ok(Some(Either::Right(_))) => {}
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(StatementError::sqlite(error, Access::Write)),
                }
            }
        };
        // If the transaction was begun and not committed, the connection is closed, and SQLite
        // rolls back.
        self.open.is_spent = !ended.is_empty() && ended.len() < 4;
        outcome.map_err(|failed| {
            if ended.is_empty() {
                failed
            } else {
                failed.without_retry()
            }
        })?;
        let rows = |step: usize| {
            let rows = ended.get(step).copied().unwrap_or(0);
            usize::try_from(rows).unwrap_or(usize::MAX)
        };
        Ok((rows(1), rows(2)))
    }
}
