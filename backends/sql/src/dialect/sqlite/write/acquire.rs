//! Acquires locks.
//!
//! The short statement takes locks that are plainly free and reports only a number. If it took
//! fewer, the rows are read, and the full statement judges the rest.

use std::{collections::HashMap, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Error, ErrorKind, FencingToken, Grant, Lease, Moment, Result,
};

use super::batch::{Batch, answers_or_error, unknown};
use crate::{
    dialect::{
        LockRow,
        sqlite::{
            busy_retry::BusyRetry,
            parameters::{self, IdBlob, json},
        },
    },
    operation::{Answer, OperationKind},
    statement_error::StatementError,
};

impl Batch<'_> {
    /// The answers to these requests, of which `taken` were taken.
    pub(super) async fn acquired(
        &mut self,
        requests: &[&AcquireRequest],
        taken: usize,
    ) -> Result<Vec<Result<Answer>>, StatementError> {
        let mut answers = self.answers(requests, taken).await?;
        // Rows that others used since the clock was read may be reaped already, and with them their
        // tokens, which were higher.
        if self.context.clock.now().since(self.clock_read_at()) >= self.context.config.reap_after {
            self.give_back(requests, &mut answers).await;
        }
        Ok(answers)
    }

    async fn answers(
        &mut self,
        requests: &[&AcquireRequest],
        taken: usize,
    ) -> Result<Vec<Result<Answer>>, StatementError> {
        if taken == requests.len() {
            let token = FencingToken::new(self.now.wall.unsigned_abs());
            let answers = requests.iter().map(|request| {
                let token = token.clone()?;
                Ok(Answer::Acquired(Attempt::Acquired(
                    self.grant(token, request),
                )))
            });
            return Ok(answers.collect());
        }
        let mut refused_rows = self
            .refused_rows(requests.iter().map(|request| &request.name).collect())
            .await;
        // The rest: locks that are ours already, and free locks whose token the wall clock has not
        // reached.
        let open_to_us = |request: &&&AcquireRequest| match refused_rows
            .as_ref()
            .map(|refused_rows| refused_rows.get(&request.name))
        {
            Ok(Some(Ok(row))) => {
                !self.took(row, request) && (row.held.is_none() || row.owner == Some(request.owner))
            }
            _ => false,
        };
        let again: Vec<_> = requests.iter().filter(open_to_us).copied().collect();
        let mut granted = match self.acquire_again(&again).await {
            Ok(granted) => granted,
            Err(failed) if taken == 0 => return Err(failed),
            Err(failed) => {
                let error = failed.into_error();
                let failed = again
                    .iter()
                    .map(|request| (request.name.as_str().to_owned(), Err(error.clone())));
                failed.collect()
            }
        };
        let answers = requests.iter().map(|request| {
            if let Some(token) = granted.remove(request.name.as_str()) {
                return Ok(Attempt::Acquired(self.grant(token?, request)));
            }
            match refused_rows
                .as_mut()
                .map(|refused_rows| refused_rows.remove(&request.name))
            {
                Ok(Some(Ok(row))) if self.took(&row, request) => {
                    Ok(Attempt::Acquired(self.grant(row.last_token, request)))
                }
                Ok(Some(Ok(row))) => Ok(Attempt::Busy(row.held)),
                Ok(Some(Err(error))) => Err(error),
                // The row was reaped or removed meanwhile: the lock was held when the statement
                // asked.
                Ok(None) => Ok(Attempt::Busy(None)),
                // Some were granted, but it is unknown which: each caller asks again as the same
                // owner.
                Err(error) if taken > 0 => Err(unknown(error)),
                Err(error) => Err(error.clone()),
            }
        });
        Ok(answers.map(|answer| answer.map(Answer::Acquired)).collect())
    }

    /// Takes the free locks, and returns their number.
    pub(super) async fn take(
        &mut self,
        requests: &[&AcquireRequest],
    ) -> Result<usize, StatementError> {
        let hint_id = self.context.wait_group.hint_id();
        let statements = &self.context.statements;
        let Some(first) = requests.first() else {
            return Ok(0);
        };
        if differ_in_owner_only(requests) {
            let owners = IdBlob::of(requests.iter().map(|request| &request.owner));
            let (sql, names) = if requests.len() == 1 {
                (&statements.take_one, first.name.as_str().to_owned())
            } else {
                let names: Vec<_> = requests.iter().map(|it| it.name.as_str()).collect();
                (&statements.take_alike, json(&names))
            };
            let (_, ttl, holder, meta) = parameters::request(first);
            let (holder, meta) = (holder.to_owned(), meta.map(str::to_owned));
            return self
                .changes(OperationKind::Acquire, sql, |query| {
                    query
                        .bind_first(names, owners)
                        .bind(hint_id)
                        .bind(ttl.cast_signed())
                        .bind(holder)
                        .bind(meta)
                })
                .await;
        }
        let rows: Vec<_> = requests.iter().map(|it| parameters::request(it)).collect();
        let owners = IdBlob::of(requests.iter().map(|request| &request.owner));
        self.changes(OperationKind::Acquire, &statements.take, |query| {
            query.bind_first(json(&rows), owners).bind(hint_id)
        })
        .await
    }

    /// Takes the locks that only the full statement can judge.
    async fn acquire_again(
        &mut self,
        requests: &[&AcquireRequest],
    ) -> Result<HashMap<String, Result<FencingToken>>, StatementError> {
        if requests.is_empty() {
            return Ok(HashMap::new());
        }
        let rows: Vec<_> = requests.iter().map(|it| parameters::request(it)).collect();
        let owners = IdBlob::of(requests.iter().map(|request| &request.owner));
        let hint_id = self.context.wait_group.hint_id();
        let mut busy_retry = BusyRetry::new(self.context);
        loop {
            let taken = self.tokens(OperationKind::Acquire, |query| {
                query.bind_first(json(&rows), owners.clone()).bind(hint_id)
            });
            match taken.await {
                Err(failed) if self.may_retry(&failed, &mut busy_retry) => {}
                taken => return taken.map_err(StatementError::without_retry),
            }
        }
    }

    /// The reading of the clock that the tokens come from.
    fn clock_read_at(&self) -> Moment {
        Moment::from_boot(Duration::from_micros(self.now.boot.unsigned_abs()))
    }

    /// Frees the locks that were granted with the time of asking as their token, and answers that
    /// nothing was granted.
    async fn give_back(&mut self, requests: &[&AcquireRequest], answers: &mut [Result<Answer>]) {
        let outdated = self.now.wall.unsigned_abs();
        let (mut granted, mut leases) = (Vec::new(), Vec::new());
        for (request, answer) in requests.iter().zip(answers) {
            if let Ok(Answer::Acquired(Attempt::Acquired(grant))) = answer
                && grant.token.get() == outdated
            {
                let name = request.name.clone();
                leases.push(Lease::new(name, request.owner, Some(grant.token)));
                granted.push(answer);
            }
        }
        self.now = self.context.now();
        let leases: Vec<_> = leases.iter().collect();
        let mut busy_retry = BusyRetry::new(self.context);
        let released = loop {
            match self.free(&leases).await {
                Ok(freed) => break self.released(&leases, freed).await,
                // While the row stands, another acquire of the same owner would find it and take
                // its token for a fresh one.
                Err(failed) if self.may_retry(&failed, &mut busy_retry) => {}
                Err(failed) => break Err(failed),
            }
        };
        let released = answers_or_error(released, leases.len());
        for (answer, released) in granted.into_iter().zip(released) {
            let what = "this process stood still for too long after it had looked at the clock";
            *answer = Err(match released {
                Ok(_) => Error::new(ErrorKind::Unavailable, what),
                Err(error) => Error::new(ErrorKind::OutcomeUnknown, what).caused_by(error),
            });
        }
    }

    /// Whether the row is as this batch's statement has left it.
    fn took(&self, row: &LockRow, request: &AcquireRequest) -> bool {
        let until = self.now.boot + (request.ttl.as_millis() * 1000).cast_signed();
        row.owner == Some(request.owner)
            && row.until == Some(until)
            && row.last_token.get() == self.now.wall.unsigned_abs()
    }

    fn grant(&self, token: FencingToken, request: &AcquireRequest) -> Grant {
        Grant::new(token, self.open.epoch.clone(), request.ttl.duration())
    }
}

/// Whether the requests differ in name and owner only.
pub(super) fn differ_in_owner_only(requests: &[&AcquireRequest]) -> bool {
    requests.iter().all(|request| {
        let first = requests[0];
        (request.ttl, &request.holder, &request.meta) == (first.ttl, &first.holder, &first.meta)
    })
}
