//! The sending end of the batches.

use std::sync::Arc;

use distlock_core::{
    Attempt, Epoch, ErrorKind, HandOver, Lease, Moment, Renewed, Result,
    batch::{Executor, Failure, Reply},
};
use redis::Value;

use crate::{
    connection::{Link, Waiters},
    format::names::Names,
    operations::{
        Histories, Looks, Verbatim,
        answer::{Answer, Heard, answer},
        op::{Kind, Op, What},
        replies::{Replies, is_mixed},
        request,
    },
    routing::{Call, NoOlder, Router},
};

/// How a handle finds and asks its servers.
pub(crate) struct Ways {
    pub(crate) router: Router,
    pub(crate) names: Names,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) looks: Arc<Looks>,
    pub(crate) histories: Arc<Histories>,
    pub(crate) verbatim: Arc<Verbatim>,
}

/// Which history an answer is from: the server's, and the store's.
struct News {
    history: u32,
    epoch: Epoch,
    /// When the server was last known to be the primary.
    vouched: Option<Moment>,
}

/// The sending end of the batches.
pub(crate) struct Writer(pub(crate) Arc<Ways>);

impl Ways {
    /// Sends operations of one kind, in the order of their keys, and answers each.
    async fn run(&self, kind: Kind, ops: &[Box<Op>]) -> Vec<Reply<Answer>> {
        if let (Kind::TakeAndFree | Kind::ReleaseAndLook, [op]) = (kind, ops)
            && let Some(answer) = self.compare_and_delete(op).await
        {
            return vec![Reply::Done(answer)];
        }
        let vouched = match self.vouched(kind, ops).await {
            Ok(vouched) => vouched,
            Err(error) => {
                let mixed = is_mixed(kind, ops);
                let refused = ops.iter().map(|op| {
                    // A release rests on no lease, and needs no word as fresh as that.
                    if mixed && op.is_release() {
                        Reply::Alone
                    } else {
                        Reply::Done(Err(error.clone()))
                    }
                });
                return refused.collect();
            }
        };
        let calls = self.parts(ops).map(|part| {
            let (command, script) = request::request(&self.names, kind, part);
            let call = Call::script(part[0].target.bucket, command, script);
            let call = match part {
                [_] if self.router.is_cluster() => {
                    match request::request_in_parts(&self.names, part) {
                        Some(alone) => call.when_torn(alone),
                        None => call,
                    }
                }
                _ => call.split_when_torn(),
            };
            if kind == Kind::Contend {
                call.tracking(part.iter().map(|op| &*op.target.key))
            } else {
                call
            }
        });
        let heard = self.router.exchange(calls.collect()).await;
        let mut answers = Vec::with_capacity(ops.len());
        for (part, heard) in self.parts(ops).zip(heard) {
            match heard {
                Ok(heard) if heard.torn => answers.extend(part.iter().map(|_| Reply::Alone)),
                Ok(mut heard) => {
                    let reply = heard.replies.pop().unwrap_or(Value::Nil);
                    let mut replies = Replies::new(kind, part, reply);
                    let news = self.news(&heard.link, vouched);
                    answers.extend(part.iter().map(|op| {
                        let reply = replies.next(op);
                        let mut answer = self.read(op, reply, &heard.link, &news);
                        if !heard.tells {
                            answer = answer.map(|answer| answer.untold(op));
                        }
                        Reply::Done(answer)
                    }));
                }
                Err(error) => {
                    // What keeps a server from granting, such as too little memory, does not keep it from freeing.
                    let refused = error.kind() == ErrorKind::LimitExceeded;
                    let frees_alone = refused && is_mixed(kind, part);
                    answers.extend(part.iter().map(|op| {
                        if frees_alone && op.is_release() {
                            Reply::Alone
                        } else {
                            Reply::Done(Err(error.clone()))
                        }
                    }));
                }
            }
        }
        answers
    }

    /// Releases one lock without a script, where the server can. `None` when that did not release it: the value may stand
    /// there in another form, which a script can tell.
    async fn compare_and_delete(&self, op: &Op) -> Option<Result<Answer>> {
        let (What::Release(lease) | What::ReleaseAndLook(lease)) = &op.what else {
            return None;
        };
        let how = self.router.only_link()?.compare_delete()?;
        let value = self.verbatim.take(lease)?;
        let command = how.command(&op.target.key, &value);
        match self
            .router
            .ask(Call::plain(op.target.bucket, vec![command]))
            .await
        {
            Ok(heard) if heard.replies == [Value::Int(1)] => {
                let news = self.news(&heard.link, None);
                let code = match &op.what {
                    What::ReleaseAndLook(_) => self.look(op).await,
                    _ => 1,
                };
                Some(self.read(op, &Value::Int(code), &heard.link, &news))
            }
            Ok(_) => None,
            Err(error) if error.did_not_happen() => {
                if error.kind() == ErrorKind::AccessDenied
                    && let Some(link) = self.router.only_link()
                {
                    link.forget_compare_delete();
                }
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// What the script that releases would answer of those who wait, after the lock was released.
    async fn look(&self, op: &Op) -> i64 {
        let mut look = redis::cmd("EXISTS");
        look.arg(self.names.line(&op.target).line);
        let look = Call::plain(op.target.bucket, vec![look]);
        match self.router.ask(look).await.as_ref().map(|it| &*it.replies) {
            Ok([Value::Int(waits)]) => 2 + waits,
            _ => 1,
        }
    }

    /// What may share a request: everything, or in a cluster what is in one bucket. Keys are in the order of their buckets.
    fn parts<'a>(&self, ops: &'a [Box<Op>]) -> impl Iterator<Item = &'a [Box<Op>]> {
        let together = !self.router.is_cluster();
        ops.chunk_by(move |a, b| together || a.target.bucket == b.target.bucket)
    }

    /// Has a majority of the sentinels name the primary before anything is written there.
    ///
    /// A renewal is told the store's whole lease, which counts from its own sending, so the
    /// question comes after that. A grant says from when it counts, and so an earlier round does.
    async fn vouched(&self, kind: Kind, ops: &[Box<Op>]) -> Result<Option<Moment>> {
        let no_older = if kind == Kind::Renew {
            NoOlder::Than(self.router.dialer.clock().now())
        } else if ops.iter().all(|op| op.is_release()) {
            return Ok(None);
        } else {
            NoOlder::ThanPartOf(ops.iter().filter_map(|op| op.lease()).min())
        };
        self.router.vouched(no_older).await
    }

    fn news(&self, link: &Link, vouched: Option<Moment>) -> News {
        News {
            history: self.histories.number(link.epoch()),
            epoch: self.router.epoch(link),
            vouched,
        }
    }

    /// Reads a script's reply to one operation, and notes which history it came from.
    fn read(&self, op: &Op, reply: &Value, link: &Link, news: &News) -> Result<Answer> {
        let bucket = op.target.bucket;
        let clock = &**self.router.dialer.clock();
        let histories = &*self.histories;
        histories.served(bucket, news.history, || {
            let now = link.server_micros(clock);
            // What this very answer grants is of the new history, and was granted before it was read.
            let now = op.granted(reply).map_or(now, |token| now.min(token));
            (!link.is_outdated()).then_some(now)
        });
        let reason = |lease: &Lease, seen| histories.reason(bucket, lease, seen);
        let heard = Heard {
            epoch: &news.epoch,
            vouched: news.vouched,
            reason: &reason,
        };
        let answer = answer(op, reply, &heard)?;
        match (&op.what, &answer) {
            (What::Renew(lease, _), Answer::Renewed(Renewed::Extended { .. }))
                // An older answer does not show that it is there still.
                if !link.is_outdated() =>
            {
                histories.confirmed(bucket, lease);
            }
            (What::Release(lease) | What::ReleaseAndLook(lease), _) => {
                histories.forget(lease.owner);
            }
            (
                What::Acquire(request) | What::Contend(request),
                Answer::Acquired(Attempt::Acquired(_)),
            ) if link.compare_delete().is_some() => self.verbatim.keep(request),
            (What::HandOver(lease, next), Answer::HandedOver(HandOver::Done(_)))
                if link.compare_delete().is_some() =>
            {
                self.verbatim.take(lease);
                self.verbatim.keep(next);
            }
            _ => {}
        }
        Ok(answer)
    }
}

impl Executor for Writer {
    type Kind = Kind;
    // Boxed, because it moves from hand to hand many times.
    type Op = Box<Op>;
    type Answer = Answer;

    fn kind(&self, op: &Box<Op>) -> Kind {
        op.kind()
    }

    fn is_urgent(&self, kind: Kind) -> bool {
        kind == Kind::Renew
    }

    fn key<'a>(&self, op: &'a Box<Op>) -> &'a str {
        &op.target.key
    }

    fn bytes(&self, op: &Box<Op>) -> usize {
        op.bytes()
    }

    async fn run(&self, kind: Kind, ops: &[Box<Op>]) -> Result<Vec<Reply<Answer>>, Failure> {
        Ok(self.0.run(kind, ops).await)
    }

    fn undo(&self, op: &Box<Op>, answer: &Answer) -> Option<Box<Op>> {
        op.undo(answer).map(Box::new)
    }

    fn outlives_caller(&self, op: &Box<Op>) -> bool {
        op.is_release()
    }
}
