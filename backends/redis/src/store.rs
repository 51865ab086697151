//! One handle on a store: its batches, its waiters, and whether it is closed.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use distlock_core::{
    Attempt, Clock, Epoch, ErrorKind, HandOver, Lease, LockName, Moment, Renewed, Result,
    batch::{Batcher, Executor, Failure, Limits, Reply},
};
use futures_util::future::join_all;
use redis::Value;

use crate::{
    config::RedisConfig,
    connection::{Dialer, Link, Waiters},
    error::BACKEND,
    format::names::{Names, SLOTS},
    operations::{
        Histories, Looks, Verbatim,
        op::{self, Answer, Kind, Op, What},
        request::{self, Replies},
    },
    routing::{Call, NoOlder, Opening, Router},
};

/// How many lines of batches a cluster gets: with slots of their own each, so that a shard that is down keeps few others
/// waiting.
const LINES: u16 = 16;

/// How many batches may be out at the same time: while the server works on one, the next is being put together and the
/// answers to another are read. More would only be smaller, as long as there is no crowd.
const IN_FLIGHT: usize = 4;

/// How many operations make a batch that is worth dividing: with fewer, what each script costs besides tells.
const UNDIVIDED: usize = 32;

/// What a handle's locks and records share. Connections close with the last of them.
pub(crate) struct Store {
    ways: Arc<Ways>,
    lines: Box<[Batcher<Writer>]>,
    survives_restart: bool,
    /// Parts that are still open: locks and records.
    parts: AtomicUsize,
}

/// How a handle finds and asks its servers.
pub(crate) struct Ways {
    pub(crate) router: Router,
    pub(crate) names: Names,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) looks: Arc<Looks>,
    histories: Arc<Histories>,
    verbatim: Arc<Verbatim>,
}

/// What all handles of a store know together.
#[derive(Clone, Debug)]
struct Memory {
    looks: Arc<Looks>,
    histories: Arc<Histories>,
    verbatim: Arc<Verbatim>,
}

/// Which history an answer is from: the server's, and the store's.
struct News {
    history: u32,
    epoch: Epoch,
    /// When the server was last known to be the primary.
    vouched: Option<Moment>,
}

/// The sending end of the batches.
struct Writer(Arc<Ways>);

impl Store {
    /// A handle with `parts` that are closed one by one, connected to every primary that can be
    /// reached.
    pub(crate) async fn open(
        config: RedisConfig,
        clock: Arc<dyn Clock>,
        parts: usize,
    ) -> Result<Arc<Self>> {
        let waiters = Arc::<Waiters>::default();
        let dialer = Dialer::new(config, clock, Arc::clone(&waiters))?;
        let memory = Memory {
            looks: Arc::default(),
            histories: Arc::new(Histories::new()),
            verbatim: Arc::default(),
        };
        Self::connect(dialer, waiters, memory, parts, Opening::First).await
    }

    /// Another handle on the same store, with connections of its own that live on the calling runtime.
    pub(crate) async fn reopen(&self) -> Result<Arc<Self>> {
        let waiters = Arc::<Waiters>::default();
        let dialer = self.ways.router.dialer.again(Arc::clone(&waiters));
        let memory = Memory {
            looks: Arc::clone(&self.ways.looks),
            histories: Arc::clone(&self.ways.histories),
            verbatim: Arc::clone(&self.ways.verbatim),
        };
        Self::connect(dialer, waiters, memory, 1, Opening::Again).await
    }

    async fn connect(
        dialer: Dialer,
        waiters: Arc<Waiters>,
        memory: Memory,
        parts: usize,
        opening: Opening,
    ) -> Result<Arc<Self>> {
        let names = Names::new(&dialer.config().prefix);
        let router = Router::new(dialer);
        let primaries = router.open(opening).await?;
        let appends = |link: &Arc<Link>| link.server.appends == Some(true);
        // Of one that cannot be reached nobody knows.
        let survives_restart = primaries.missing.is_empty() && primaries.links.iter().all(appends);
        let lines = if router.is_cluster() { LINES } else { 1 };
        let ways = Arc::new(Ways {
            router,
            names,
            waiters,
            looks: memory.looks,
            histories: memory.histories,
            verbatim: memory.verbatim,
        });
        let mut limits = Limits::default();
        limits.bytes = 1024 * 1024;
        limits.in_flight = IN_FLIGHT;
        limits.undivided = UNDIVIDED;
        // A script costs the server more than the way there costs anybody.
        limits.ahead = true;
        let lines = (0..lines).map(|_| Batcher::new(Writer(Arc::clone(&ways)), limits));
        Ok(Arc::new(Self {
            lines: lines.collect(),
            survives_restart,
            ways,
            parts: AtomicUsize::new(parts),
        }))
    }

    pub(crate) fn ways(&self) -> &Ways {
        &self.ways
    }

    /// Whether every primary kept its data in an append-only file when we connected.
    pub(crate) const fn survives_restart(&self) -> bool {
        self.survives_restart
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.ways.router.dialer.clock()
    }

    /// Sends an operation on the lock of this name, or on a record, with the next batch.
    // Not an async function: what it is given would be kept in its future a second time.
    pub(crate) fn submit<'a>(
        &'a self,
        name: Option<&'a LockName>,
        what: What,
    ) -> impl Future<Output = Result<Answer>> + Send + use<'a> {
        let op = Box::new(Op::new(&self.ways.names, what));
        async move {
            let operation = op.operation();
            let line = match &*self.lines {
                [only] => only,
                lines => {
                    let slots_each = usize::from(SLOTS / LINES);
                    &lines[usize::from(op.target.bucket.slot()) / slots_each % lines.len()]
                }
            };
            line.submit(op).await.map_err(|error| {
                let error = error.on(BACKEND).during(operation);
                match name {
                    Some(name) => error.about(name),
                    None => error,
                }
            })
        }
    }

    /// Closes one part; the last one closes the connections.
    pub(crate) async fn close_part(&self) {
        if self.parts.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        join_all(self.lines.iter().map(Batcher::close)).await;
        self.ways.router.hang_up();
        self.ways.waiters.wake_all();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ways.router.fmt(f)
    }
}

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
                let mixed = request::is_mixed(kind, ops);
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
                    let frees_alone = refused && request::is_mixed(kind, part);
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
        let heard = op::Heard {
            epoch: &news.epoch,
            vouched: news.vouched,
            reason: &reason,
        };
        let answer = op::answer(op, reply, &heard)?;
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
