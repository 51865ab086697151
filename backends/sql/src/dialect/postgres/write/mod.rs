//! Batches that change something: one conditional statement each, and one read to tell the refused ones why.

mod answers;

use std::collections::HashMap;

use distlock_core::{
    AcquireRequest, FencingToken, Lease, LockName, RecordKey, Result, TicketStep, Version,
    batch::Reply,
};
use sqlx::{PgConnection, Postgres, postgres::PgArguments, query::Query};
use uuid::Uuid;

use super::{Shared, rows};
use crate::{
    error::{Access, Failed},
    op::{Answer, Kind, Op},
};

/// How often a lone operation is sent when its row was changed between the statement and the look at it.
const TRIES: u8 = 4;

/// One batch on its way.
pub(super) struct Batch<'a> {
    pub(super) ops: &'a [Op],
    pub(super) shared: &'a Shared,
    pub(super) connection: &'a mut PgConnection,
}

type Answers = Result<Vec<Reply<Answer>>, Failed>;

type Statement = Query<'static, Postgres, PgArguments>;

/// What the statement says of an operation it carried out.
enum Done {
    Token(Result<FencingToken>),
    Freed { others_waiting: bool },
}

/// What stands in the rows of the refused.
#[derive(Default)]
struct Looks {
    locks: HashMap<LockName, Result<rows::Look>>,
    records: HashMap<RecordKey, Version>,
}

impl Batch<'_> {
    pub(super) async fn send(mut self, kind: Kind) -> Answers {
        let lone = self.ops.len() == 1;
        let mut tries = if lone { TRIES } else { 1 };
        loop {
            tries -= 1;
            let mut done = self.change(kind, lone).await?;
            let looks = self.looks(&done).await;
            let replies: Vec<_> = self
                .ops
                .iter()
                .map(|op| match done.remove(op.key()) {
                    Some(done) => Reply::Done(answers::carried_out(op, done, self.shared)),
                    None => match answers::refused(op, &looks, self.shared) {
                        Some(answer) => Reply::Done(answer),
                        // Nothing speaks against it: its row was locked, or has changed just now.
                        None => Reply::Alone,
                    },
                })
                .collect();
            let again = tries > 0 && replies.iter().any(|it| matches!(it, Reply::Alone));
            if !again {
                return Ok(replies);
            }
        }
    }

    /// Sends the statement, and says by name what it did.
    async fn change(&mut self, kind: Kind, lone: bool) -> Result<HashMap<String, Done>, Failed> {
        let shared = self.shared;
        shared.group.count(kind.name());
        let query = sqlx::query(shared.statements.batch(kind, lone).text());
        // To its end: an error of the commit shows only there.
        let rows = bind(query, kind, self.ops, shared)
            .fetch_all(&mut *self.connection)
            .await
            .map_err(|error| Failed::postgres(error, Access::Write))?;
        let frees = matches!(kind, Kind::Release | Kind::Force);
        rows.iter()
            .map(|row| {
                let done = if frees {
                    Done::Freed {
                        others_waiting: rows::column(row, 1)?,
                    }
                } else {
                    Done::Token(rows::token(row, 1))
                };
                Ok((rows::column(row, 0)?, done))
            })
            .collect::<Result<_>>()
            .map_err(Failed::corrupt)
    }

    /// Looks at the rows of the operations that were not carried out.
    async fn looks(&mut self, done: &HashMap<String, Done>) -> Result<Looks> {
        let refused = self.ops.iter().filter(|op| !done.contains_key(op.key()));
        let (locks, records): (Vec<_>, Vec<_>) = refused.partition(|op| op.lock().is_some());
        let mut looks = Looks::default();
        if !locks.is_empty() {
            let names: Vec<_> = locks.iter().map(|op| op.key().to_owned()).collect();
            let found = super::look(self.connection, self.shared, names).await;
            looks.locks = found.map_err(|failed| self.shared.told(failed))?;
        }
        if !records.is_empty() {
            let keys: Vec<_> = records.iter().map(|op| op.key().to_owned()).collect();
            self.shared.group.count("look");
            let rows = sqlx::query(self.shared.statements.versions.text())
                .bind(keys)
                .fetch_all(&mut *self.connection)
                .await
                .map_err(|error| self.shared.told(Failed::postgres(error, Access::Read)))?;
            for row in &rows {
                let key = RecordKey::new(rows::column::<String>(row, 0)?)
                    .map_err(|error| rows::corrupt(error.message()))?;
                looks
                    .records
                    .insert(key, Version::new(rows::token(row, 1)?.get()));
            }
        }
        Ok(looks)
    }
}

/// One array for each column.
fn bind(query: Statement, kind: Kind, ops: &[Op], shared: &Shared) -> Statement {
    let keys: Vec<_> = ops.iter().map(|op| op.key().to_owned()).collect();
    let query = query.bind(keys);
    let leases = || ops.iter().filter_map(lease);
    let requests = || ops.iter().filter_map(request);
    let owners = || leases().map(|it| *it.owner.as_uuid()).collect::<Vec<_>>();
    let tokens = || {
        let tokens = leases().map(|it| it.token.map(|it| it.get().cast_signed()));
        tokens.collect::<Vec<_>>()
    };
    let takers = || requests().map(|it| *it.owner.as_uuid()).collect::<Vec<_>>();
    let ttls = || requests().map(|it| micros(it.ttl)).collect::<Vec<_>>();
    let holders = || {
        let holders = requests().map(|it| it.holder.as_str().to_owned());
        holders.collect::<Vec<_>>()
    };
    let metas = || {
        let metas = requests().map(|it| it.meta.as_ref().map(|it| it.as_str().to_owned()));
        metas.collect::<Vec<_>>()
    };
    match kind {
        Kind::Acquire => query
            .bind(takers())
            .bind(ttls())
            .bind(holders())
            .bind(metas())
            .bind(shared.group.mark()),
        Kind::Renew => {
            let renewals = || {
                ops.iter().filter_map(|op| match op {
                    Op::Renew(_, renewal) => Some(renewal),
                    _ => None,
                })
            };
            let steps = renewals().map(|it| match it.ticket {
                TicketStep::Keep => (0_i32, None::<Uuid>),
                TicketStep::Issue(nonce) => (1, Some(nonce)),
                TicketStep::Redeem(nonce) => (2, Some(nonce)),
            });
            let (steps, nonces): (Vec<_>, Vec<_>) = steps.unzip();
            query
                .bind(owners())
                .bind(tokens())
                .bind(renewals().map(|it| micros(it.ttl)).collect::<Vec<_>>())
                .bind(steps)
                .bind(nonces)
        }
        Kind::Release => query
            .bind(owners())
            .bind(tokens())
            .bind(shared.group.mark())
            .bind(shared.statements.channel()),
        Kind::HandOver => query
            .bind(owners())
            .bind(tokens())
            .bind(takers())
            .bind(ttls())
            .bind(holders())
            .bind(metas()),
        Kind::Force => {
            let tokens = ops.iter().filter_map(|op| match op {
                Op::Force(_, token) => Some(token.get().cast_signed()),
                _ => None,
            });
            query
                .bind(tokens.collect::<Vec<_>>())
                .bind(shared.group.mark())
                .bind(shared.statements.channel())
        }
        Kind::Create => query.bind(values(ops)),
        Kind::Replace => query.bind(values(ops)).bind(versions(ops)),
        Kind::Delete => query.bind(versions(ops)),
    }
}

fn lease(op: &Op) -> Option<&Lease> {
    match op {
        Op::Renew(lease, _) | Op::Release(lease) | Op::HandOver(lease, _) => Some(lease),
        _ => None,
    }
}

fn request(op: &Op) -> Option<&AcquireRequest> {
    match op {
        Op::Acquire(request) | Op::HandOver(_, request) => Some(request),
        _ => None,
    }
}

fn values(ops: &[Op]) -> Vec<Vec<u8>> {
    let values = ops.iter().filter_map(|op| match op {
        Op::Create(_, value) | Op::Replace(_, value, _) => Some(value.clone()),
        _ => None,
    });
    values.collect()
}

fn versions(ops: &[Op]) -> Vec<i64> {
    let versions = ops.iter().filter_map(|op| match op {
        Op::Replace(_, _, version) | Op::Delete(_, version) => Some(version.get().cast_signed()),
        _ => None,
    });
    versions.collect()
}

fn micros(ttl: distlock_core::Ttl) -> i64 {
    (ttl.as_millis() * 1000).cast_signed()
}
