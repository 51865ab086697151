//! Renews leases, and hands locks over.

use distlock_backend_kit::batch::Reply;
use distlock_core::{Grant, HandOver, Lease, LossFeed, LossReason, Renewed, Result, TicketStep};
use uuid::Uuid;

use super::batch::{Batch, BatchResult, RefusedRows, names};
use crate::{
    dialect::{
        sqlite::parameters::{self, IdBlob, json},
        why_lost,
    },
    operation::{Answer, Operation, OperationKind},
};

impl Batch<'_> {
    pub(super) async fn renew(mut self) -> BatchResult {
        let renewals: Vec<_> = self
            .ops
            .iter()
            .filter_map(|op| match op {
                Operation::Renew(lease, renewal) => Some((lease, renewal)),
                _ => None,
            })
            .collect();
        let step = |step: TicketStep| match step {
            TicketStep::Keep => (0, Uuid::nil()),
            TicketStep::Issue(nonce) => (1, nonce),
            TicketStep::Redeem(nonce) => (2, nonce),
        };
        let rows: Vec<_> = renewals
            .iter()
            .map(|(lease, renewal)| {
                (
                    lease.name.as_str(),
                    renewal.ttl.as_millis() * 1000,
                    parameters::token(lease.token),
                    step(renewal.ticket).0,
                )
            })
            .collect();
        let owners = IdBlob::of(renewals.iter().map(|(lease, _)| &lease.owner));
        let nonces = IdBlob::of_uuids(renewals.iter().map(|(_, renewal)| step(renewal.ticket).1));
        let mut renewed = self
            .tokens(OperationKind::Renew, |query| {
                query.bind_first(json(&rows), owners).bind(nonces)
            })
            .await?;
        let refused_rows = self.refused_rows(names(self.ops, &renewed)).await;
        let epoch = &self.open.epoch;
        let answers = renewals.into_iter().map(|(lease, renewal)| {
            match renewed.remove(lease.name.as_str()) {
                Some(token) => Ok(Renewed::Extended {
                    valid_for: renewal.ttl.duration(),
                    epoch: epoch.clone(),
                    token: token?,
                    loss: LossFeed::silent(),
                }),
                None => self.why_lost(lease, &refused_rows).map(Renewed::NotHeld),
            }
        });
        Ok(answers
            .map(|answer| Reply::Done(answer.map(Answer::Renewed)))
            .collect())
    }

    pub(super) async fn hand_over(mut self) -> BatchResult {
        let pairs: Vec<_> = self
            .ops
            .iter()
            .filter_map(|op| match op {
                Operation::HandOver(lease, next) => Some((lease, next)),
                _ => None,
            })
            .collect();
        let rows: Vec<_> = pairs
            .iter()
            .map(|(lease, next)| {
                let (name, ttl, holder, meta) = parameters::request(next);
                (name, ttl, holder, meta, parameters::token(lease.token))
            })
            .collect();
        let owners = IdBlob::of(pairs.iter().map(|(lease, _)| &lease.owner));
        let next_owners = IdBlob::of(pairs.iter().map(|(_, next)| &next.owner));
        let mut handed = self
            .tokens(OperationKind::HandOver, |query| {
                query.bind_first(json(&rows), owners).bind(next_owners)
            })
            .await?;
        let refused_rows = self.refused_rows(names(self.ops, &handed)).await;
        let answers =
            pairs
                .into_iter()
                .map(|(lease, next)| match handed.remove(lease.name.as_str()) {
                    Some(token) => Ok(HandOver::Done(Grant::new(
                        token?,
                        self.open.epoch.clone(),
                        next.ttl.duration(),
                    ))),
                    None => self.why_lost(lease, &refused_rows).map(HandOver::NotHeld),
                });
        Ok(answers
            .map(|answer| Reply::Done(answer.map(Answer::HandedOver)))
            .collect())
    }

    fn why_lost(&self, lease: &Lease, refused_rows: &Result<RefusedRows>) -> Result<LossReason> {
        let refused_rows = refused_rows.as_ref().map_err(Clone::clone)?;
        let row = match refused_rows.get(&lease.name) {
            Some(row) => Some(row.as_ref().map_err(Clone::clone)?),
            None => None,
        };
        Ok(why_lost(lease, row, self.open.history_changed))
    }
}
