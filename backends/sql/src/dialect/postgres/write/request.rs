//! The values of a batch's statement.

use distlock_backend_kit::operation::{Operation, OperationKind};
use distlock_core::TicketStep;
use sqlx::{Encode, Postgres, Type, postgres::PgArguments, query::Query};
use uuid::Uuid;

use crate::dialect::postgres::context::StoreContext;

type Statement = Query<'static, Postgres, PgArguments>;

/// A statement with the values that are bound so far.
pub(super) struct BatchQuery {
    pub(super) query: Statement,
    pub(super) lone: bool,
}

impl BatchQuery {
    /// Binds one parameter with the values of all operations: an array, or the single value of a
    /// lone operation.
    fn bind_each<T>(mut self, values: impl Iterator<Item = T>) -> Self
    where
        T: Encode<'static, Postgres> + Type<Postgres> + Send + 'static,
        Vec<T>: Encode<'static, Postgres> + Type<Postgres>,
    {
        self.query = if self.lone {
            values.take(1).fold(self.query, Query::bind)
        } else {
            self.query.bind(values.collect::<Vec<_>>())
        };
        self
    }

    /// Binds one parameter whose value is the same for all operations.
    fn bind_once<T>(mut self, value: T) -> Self
    where
        T: Encode<'static, Postgres> + Type<Postgres> + Send + 'static,
    {
        self.query = self.query.bind(value);
        self
    }
}

pub(super) fn bind(
    columns: BatchQuery,
    kind: OperationKind,
    ops: &[Operation],
    context: &StoreContext,
) -> Statement {
    let columns = columns.bind_each(ops.iter().map(|op| op.key().to_owned()));
    let leases = || ops.iter().filter_map(Operation::lease);
    let requests = || ops.iter().filter_map(Operation::request);
    let owners = || leases().map(|it| *it.owner.as_uuid());
    let tokens = || leases().map(|it| it.token.map(|it| it.get().cast_signed()));
    let nonces = || leases().map(|it| it.nonce);
    let takers = || requests().map(|it| *it.owner.as_uuid());
    let ttls = || requests().map(|it| micros(it.ttl));
    let holders = || requests().map(|it| it.holder.as_str().to_owned());
    let metas = || requests().map(|it| it.meta.as_ref().map(|it| it.as_str().to_owned()));
    let columns = match kind {
        OperationKind::Acquire => columns
            .bind_each(takers())
            .bind_each(ttls())
            .bind_each(holders())
            .bind_each(metas())
            .bind_once(context.common.wait_group.hint_id()),
        OperationKind::Renew => {
            let renewals = || {
                ops.iter().filter_map(|op| match op {
                    Operation::Renew(_, renewal) => Some(renewal),
                    _ => None,
                })
            };
            let steps = renewals().map(|it| match it.ticket {
                TicketStep::Keep => (0_i32, None::<Uuid>),
                TicketStep::Issue(nonce) => (1, Some(nonce)),
                TicketStep::Redeem => (2, None),
            });
            let (steps, issued): (Vec<_>, Vec<_>) = steps.unzip();
            columns
                .bind_each(owners())
                .bind_each(tokens())
                .bind_each(nonces())
                .bind_each(renewals().map(|it| micros(it.ttl)))
                .bind_each(steps.into_iter())
                .bind_each(issued.into_iter())
                .bind_each(renewals().map(|it| it.token_floor.map(|it| it.get().cast_signed())))
        }
        OperationKind::Release => columns
            .bind_each(owners())
            .bind_each(tokens())
            .bind_each(nonces())
            .bind_once(context.common.wait_group.hint_id())
            .bind_once(context.statements.channel()),
        OperationKind::HandOver => columns
            .bind_each(owners())
            .bind_each(tokens())
            .bind_each(takers())
            .bind_each(ttls())
            .bind_each(holders())
            .bind_each(metas())
            .bind_once(context.common.wait_group.hint_id()),
        OperationKind::ForceRelease => {
            let tokens = ops.iter().filter_map(|op| match op {
                Operation::ForceRelease(_, token) => Some(token.get().cast_signed()),
                _ => None,
            });
            columns
                .bind_each(tokens)
                .bind_once(context.common.wait_group.hint_id())
                .bind_once(context.statements.channel())
        }
        OperationKind::Create => columns.bind_each(values(ops)),
        OperationKind::Replace => columns.bind_each(values(ops)).bind_each(versions(ops)),
        OperationKind::Delete => columns.bind_each(versions(ops)),
    };
    columns.query
}

fn values(ops: &[Operation]) -> impl Iterator<Item = Vec<u8>> {
    ops.iter().filter_map(|op| match op {
        Operation::Create(_, value) | Operation::Replace(_, value, _) => Some(value.clone()),
        _ => None,
    })
}

fn versions(ops: &[Operation]) -> impl Iterator<Item = i64> {
    ops.iter().filter_map(|op| match op {
        Operation::Replace(_, _, version) | Operation::Delete(_, version) => {
            Some(version.get().cast_signed())
        }
        _ => None,
    })
}

fn micros(ttl: distlock_core::Ttl) -> i64 {
    (ttl.as_millis() * 1000).cast_signed()
}
