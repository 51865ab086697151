//! Batches that change something: one conditional statement each, and one read to tell the refused ones why.

mod answers;

use std::collections::HashMap;

use distlock_core::{
    AcquireRequest, Attempt, Error, ErrorKind, FencingToken, Lease, LockName, RecordKey, Result,
    TicketStep, Version, batch::Reply,
};
use sqlx::{Encode, PgConnection, Postgres, Type, postgres::PgArguments, query::Query};
use uuid::Uuid;

use super::{context::Shared, dialect::look, rows};
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
    /// Whether the connection broke after the operations were carried out.
    pub(super) broke: &'a mut bool,
}

type Answers = Result<Vec<Reply<Answer>>, Failed>;

type Statement = Query<'static, Postgres, PgArguments>;

/// What the statement says of an operation it carried out.
enum Done {
    Token(Result<FencingToken>),
    HandedOver {
        token: Result<FencingToken>,
        others_waiting: bool,
    },
    Freed {
        others_waiting: bool,
    },
}

/// What stands in the rows of the refused.
#[derive(Default)]
struct Looks {
    locks: HashMap<LockName, Result<rows::Look>>,
    records: HashMap<RecordKey, Version>,
}

/// A lock that was held whenever it was asked for and free whenever it was looked at, because others pass it on faster than
/// that: its token tells that they do. It is busy, and nobody can say who has it.
#[derive(Default)]
struct Moves {
    token: Option<FencingToken>,
    seen: bool,
}

impl Moves {
    fn see(&mut self, op: &Op, looks: &Looks) {
        if let Some(Ok(look)) = op.lock().and_then(|name| looks.locks.get(name)) {
            let before = self.token.replace(look.row.last_token);
            self.seen = before.is_some_and(|before| before != look.row.last_token)
                && look.row.held.is_none();
        }
    }

    /// Whether that is why it was not taken.
    const fn explain(&self, op: &Op) -> bool {
        matches!(op, Op::Acquire(_)) && self.seen
    }
}

impl Batch<'_> {
    pub(super) async fn send(mut self, kind: Kind) -> Answers {
        let lone = self.ops.len() == 1;
        let mut tries = if lone { TRIES } else { 1 };
        let mut moves = Moves::default();
        loop {
            tries -= 1;
            let mut done = self.change(kind, lone).await?;
            let looks = self.looks(&done).await;
            if let ([op], Ok(looks)) = (self.ops, &looks) {
                moves.see(op, looks);
            }
            let last = tries == 0;
            let replies: Vec<_> = self
                .ops
                .iter()
                .map(|op| match done.remove(op.key()) {
                    Some(done) => Reply::Done(answers::carried_out(op, done, self.shared)),
                    None => match answers::refused(op, &looks, self.shared) {
                        Some(answer) => Reply::Done(answer),
                        None if last && moves.explain(op) => {
                            Reply::Done(Ok(Answer::Acquired(Attempt::Busy(None))))
                        }
                        None if last && lone => Reply::Done(Err(left_out())),
                        // Nothing speaks against it: its row was locked, or has changed just now.
                        None => Reply::Alone,
                    },
                })
                .collect();
            let again = !last && replies.iter().any(|it| matches!(it, Reply::Alone));
            if !again {
                return Ok(replies);
            }
        }
    }

    /// Sends the statement, and says by name what it did.
    async fn change(&mut self, kind: Kind, lone: bool) -> Result<HashMap<String, Done>, Failed> {
        let shared = self.shared;
        shared.tally.count(kind.name());
        let query = Columns {
            query: sqlx::query(shared.statements.batch(kind, lone).text()),
            lone,
        };
        // To its end: an error of the commit shows only there.
        let rows = bind(query, kind, self.ops, shared)
            .fetch_all(&mut *self.connection)
            .await
            .map_err(|error| Failed::postgres(error, Access::Write))?;
        rows.iter()
            .map(|row| {
                let done = match kind {
                    Kind::Release | Kind::Force => Done::Freed {
                        others_waiting: rows::column(row, 1)?,
                    },
                    Kind::HandOver => Done::HandedOver {
                        token: rows::token(row, 1),
                        others_waiting: rows::column(row, 2)?,
                    },
                    _ => Done::Token(rows::token(row, 1)),
                };
                Ok((rows::column(row, 0)?, done))
            })
            .collect::<Result<_>>()
            .map_err(|error| Failed::corrupt(error).after(true))
    }

    /// Looks at the rows of the operations that were not carried out.
    async fn looks(&mut self, done: &HashMap<String, Done>) -> Result<Looks> {
        let refused = self.ops.iter().filter(|op| !done.contains_key(op.key()));
        let (locks, records): (Vec<_>, Vec<_>) = refused.partition(|op| op.lock().is_some());
        let mut looks = Looks::default();
        if !locks.is_empty() {
            let names: Vec<_> = locks.iter().map(|op| op.key().to_owned()).collect();
            let found = look(self.connection, self.shared, names).await;
            looks.locks = found.map_err(|failed| self.unseen(failed))?;
        }
        if !records.is_empty() {
            let keys: Vec<_> = records.iter().map(|op| op.key().to_owned()).collect();
            self.shared.tally.count("look");
            let rows = sqlx::query(self.shared.statements.versions.text())
                .bind(keys)
                .fetch_all(&mut *self.connection)
                .await
                .map_err(|error| self.unseen(Failed::postgres(error, Access::Read)))?;
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

impl Batch<'_> {
    fn unseen(&mut self, failed: Failed) -> Error {
        *self.broke |= failed.meaning.reconnect;
        self.shared.told(failed)
    }
}

/// Each try changed nothing, and nothing in the row speaks against it.
fn left_out() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server left the row as it is each time, though nothing in it speaks against the change: others change it all \
         the time, or a trigger of the tables drops what is written (`distlock doctor` names it)",
    )
}

/// A statement and its values, so far.
struct Columns {
    query: Statement,
    lone: bool,
}

impl Columns {
    /// A value of each operation: an array, and of a lone one the value itself.
    fn of_each<T>(mut self, values: impl Iterator<Item = T>) -> Self
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

    /// A value for all operations.
    fn of_all<T>(mut self, value: T) -> Self
    where
        T: Encode<'static, Postgres> + Type<Postgres> + Send + 'static,
    {
        self.query = self.query.bind(value);
        self
    }
}

fn bind(columns: Columns, kind: Kind, ops: &[Op], shared: &Shared) -> Statement {
    let columns = columns.of_each(ops.iter().map(|op| op.key().to_owned()));
    let leases = || ops.iter().filter_map(lease);
    let requests = || ops.iter().filter_map(request);
    let owners = || leases().map(|it| *it.owner.as_uuid());
    let tokens = || leases().map(|it| it.token.map(|it| it.get().cast_signed()));
    let takers = || requests().map(|it| *it.owner.as_uuid());
    let ttls = || requests().map(|it| micros(it.ttl));
    let holders = || requests().map(|it| it.holder.as_str().to_owned());
    let metas = || requests().map(|it| it.meta.as_ref().map(|it| it.as_str().to_owned()));
    let columns = match kind {
        Kind::Acquire => columns
            .of_each(takers())
            .of_each(ttls())
            .of_each(holders())
            .of_each(metas())
            .of_all(shared.group.mark()),
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
            columns
                .of_each(owners())
                .of_each(tokens())
                .of_each(renewals().map(|it| micros(it.ttl)))
                .of_each(steps.into_iter())
                .of_each(nonces.into_iter())
        }
        Kind::Release => columns
            .of_each(owners())
            .of_each(tokens())
            .of_all(shared.group.mark())
            .of_all(shared.statements.channel()),
        Kind::HandOver => columns
            .of_each(owners())
            .of_each(tokens())
            .of_each(takers())
            .of_each(ttls())
            .of_each(holders())
            .of_each(metas())
            .of_all(shared.group.mark()),
        Kind::Force => {
            let tokens = ops.iter().filter_map(|op| match op {
                Op::Force(_, token) => Some(token.get().cast_signed()),
                _ => None,
            });
            columns
                .of_each(tokens)
                .of_all(shared.group.mark())
                .of_all(shared.statements.channel())
        }
        Kind::Create => columns.of_each(values(ops)),
        Kind::Replace => columns.of_each(values(ops)).of_each(versions(ops)),
        Kind::Delete => columns.of_each(versions(ops)),
    };
    columns.query
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

fn values(ops: &[Op]) -> impl Iterator<Item = Vec<u8>> {
    ops.iter().filter_map(|op| match op {
        Op::Create(_, value) | Op::Replace(_, value, _) => Some(value.clone()),
        _ => None,
    })
}

fn versions(ops: &[Op]) -> impl Iterator<Item = i64> {
    ops.iter().filter_map(|op| match op {
        Op::Replace(_, _, version) | Op::Delete(_, version) => Some(version.get().cast_signed()),
        _ => None,
    })
}

fn micros(ttl: distlock_core::Ttl) -> i64 {
    (ttl.as_millis() * 1000).cast_signed()
}
