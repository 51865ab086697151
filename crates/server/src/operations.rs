//! One operation at the store, and its answer.
//!
//! This module keeps two promises about leases. A lease that the store grants is never longer than
//! `max_lease`. A duration in an answer counts from the moment at which the server received the
//! request, or from an earlier one: the client counts it from the sending, which is earlier still.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Clock, Contender, DistLock, Error, ErrorKind, Grant,
    HandOver, HolderLabel, Lease, LeaseKind, LockName, LossFeed, Moment, RecordKey, Records,
    Renewed, Result, Store, TicketStep, Ttl, Version,
};
use distlock_wire::{
    ANSWER_BYTES, MAX_LISTED, MAX_READ,
    v1::{self, acquire_answer, answer, hand_over_answer, operation, renew_answer},
};
use tokio::sync::mpsc::UnboundedSender;

use crate::{memory::Host, meters::Meters, session::Outgoing};

/// The store, as the operations of clients see it.
#[derive(Debug)]
pub(crate) struct Operations {
    lock: Arc<dyn DistLock>,
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    max_lease: Ttl,
    /// The hosted table, if the store is in the memory of this server.
    host: Option<Arc<Host>>,
    meters: Meters,
}

/// The caller of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    /// Where the caller's session learns of leases that the caller has lost; `None` for a unary
    /// call, whose caller learns of a loss at the next renewal.
    pub(crate) losses: LossSink<'a>,
    /// The holder of the leases that the caller restores.
    pub(crate) label: &'a HolderLabel,
    /// Who shows the token of the caller, if the server asks for one.
    pub(crate) subject: Option<&'a str>,
}

/// See [`Caller::losses`].
pub(crate) type LossSink<'a> = Option<&'a UnboundedSender<Outgoing>>;

impl Operations {
    pub(crate) fn new(store: &Store, max_lease: Ttl, host: Option<Arc<Host>>) -> Self {
        Self {
            meters: Meters::new(host.is_some()),
            host,
            lock: store.backend(),
            records: store.records(),
            clock: store.clock(),
            max_lease,
        }
    }

    pub(crate) const fn max_lease(&self) -> Duration {
        self.max_lease.duration()
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The capabilities of the store, less what the server takes away.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.lock.capabilities().clone();
        let most = self.max_lease.duration();
        let lease = capabilities.max_lease.map_or(most, |it| it.min(most));
        capabilities.max_lease = Some(lease);
        capabilities.default_ttl = capabilities.default_ttl.min(lease);
        if capabilities.lease == LeaseKind::Session {
            // The session is the server's, and all locks end with it.
            capabilities.survives_restart = false;
            capabilities.tickets = false;
        }
        capabilities
    }

    /// The number of this start of the server, if it has a meaning; otherwise 0.
    pub(crate) fn start_number(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| host.start_number())
    }

    /// The id of the server, if its locks are in its own memory; otherwise nothing.
    pub(crate) fn server_id(&self) -> Vec<u8> {
        let id = self.host.as_ref().map(|host| host.server_id());
        id.map_or_else(Vec::new, |id| id.as_bytes().to_vec())
    }

    /// The hosted table, if the store is in the memory of this server.
    pub(crate) const fn host(&self) -> Option<&Arc<Host>> {
        self.host.as_ref()
    }

    pub(crate) const fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Whether the records of the store tell their age.
    pub(crate) fn tells_ages(&self) -> bool {
        self.records.tells_ages()
    }

    /// Carries out one operation, which the server received at this moment.
    pub(crate) async fn run(
        &self,
        operation: operation::Operation,
        received: Moment,
        caller: Caller<'_>,
    ) -> answer::Answer {
        use operation::Operation as Asked;
        let answer = match operation {
            Asked::Acquire(it) => {
                let answer = self.acquire(it, received, caller.losses).await;
                answer.map(answer::Answer::Acquire)
            }
            Asked::Renew(it) => self.renew(it, caller).await.map(answer::Answer::Renew),
            Asked::Release(it) => self.release(it).await.map(answer::Answer::Release),
            Asked::HandOver(it) => {
                let answer = self.hand_over(it, received, caller.losses).await;
                answer.map(answer::Answer::HandOver)
            }
            Asked::ForceRelease(it) => self
                .force_release(it, caller)
                .await
                .map(answer::Answer::ForceRelease),
            Asked::Inspect(it) => self.inspect(it).await.map(answer::Answer::Inspect),
            Asked::List(it) => self.list(it).await.map(answer::Answer::List),
            Asked::Health(_) => self.health().await.map(answer::Answer::Health),
            Asked::Get(it) => self.get(it).await.map(answer::Answer::Get),
            Asked::Put(it) => self.put(it).await.map(answer::Answer::Put),
            Asked::Delete(it) => self.delete(it).await.map(answer::Answer::Delete),
            Asked::Scan(it) => self.scan(it).await.map(answer::Answer::Scan),
            Asked::Join(_) | Asked::Step(_) => {
                let why = "a waiter belongs to a session";
                Err(Error::new(ErrorKind::Internal, why))
            }
        };
        answer.unwrap_or_else(|error| answer::Answer::Error(v1::Error::from(&error)))
    }

    /// The request of a message, with a TTL that the server allows.
    pub(crate) fn request(&self, wire: v1::AcquireLock) -> Result<AcquireRequest> {
        let mut request = AcquireRequest::try_from(wire)?;
        request.ttl = request.ttl.min(self.max_lease);
        Ok(request)
    }

    async fn acquire(
        &self,
        wire: v1::AcquireLock,
        received: Moment,
        losses: LossSink<'_>,
    ) -> Result<v1::AcquireAnswer> {
        let request = self.request(wire)?;
        let attempt = self.lock.try_acquire(&request).await?;
        let attempt = announce(attempt, &request, received, losses);
        Ok(self.acquire_answer(&attempt, &request, true))
    }

    /// The message of an attempt, with the proof of the lease. `first`: no other waiter is ahead.
    pub(crate) fn acquire_answer(
        &self,
        attempt: &Attempt<Grant>,
        request: &AcquireRequest,
        first: bool,
    ) -> v1::AcquireAnswer {
        let mut answer = v1::AcquireAnswer::new(attempt, first, self.clock.wall());
        if let Some(acquire_answer::Answer::Granted(wire)) = &mut answer.answer
            && let Attempt::Acquired(grant) = attempt
        {
            self.meters.count_grant();
            wire.proof = self.proof(grant, request);
        }
        answer
    }

    fn proof(&self, grant: &Grant, request: &AcquireRequest) -> Vec<u8> {
        let Some(host) = &self.host else {
            return Vec::new();
        };
        let owner = grant.owner_after(request);
        host.prove(&request.name, owner, grant.token, request.ttl.duration())
    }

    /// One attempt, for a unary call.
    pub(crate) async fn attempt(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.lock.try_acquire(request).await
    }

    /// Joins the queue of a lock.
    pub(crate) async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.lock.contend(request).await
    }

    pub(crate) async fn renew(
        &self,
        mut wire: v1::RenewLease,
        caller: Caller<'_>,
    ) -> Result<v1::RenewAnswer> {
        let proof = std::mem::take(&mut wire.proof);
        let (lease, mut renewal) = wire.read()?;
        renewal.check_floor(self.lock.capabilities())?;
        if let Some(host) = &self.host {
            host.restore(&lease, &proof, caller.label)?;
        }
        if renewal.ttl > self.max_lease {
            renewal.ttl = self.max_lease.max(self.rest_of(&lease).await?);
        }
        let renewed = self.lock.renew(&lease, &renewal).await?;
        // The session of an ordinary renewal has watched the lease since its grant.
        if let Renewed::Extended { loss, .. } = &renewed
            && renewal.ticket == TicketStep::Redeem
        {
            watch(loss, &lease, caller.losses);
        }
        let mut answer = v1::RenewAnswer::from(&renewed);
        if let Some(renew_answer::Answer::Extended(wire)) = &mut answer.answer
            && let (Some(host), Renewed::Extended { token, .. }) = (&self.host, &renewed)
        {
            let ttl = renewal.ttl.duration();
            wire.proof = host.prove(&lease.name, lease.owner, *token, ttl);
        }
        Ok(answer)
    }

    /// The rest of the lease that holds a lock. A renewal that is cut to the longest lease must not
    /// end it earlier: the longest lease was longer at an earlier start or is at another agent, and
    /// if the answer is lost, the holder counts on the lease that it had.
    async fn rest_of(&self, lease: &Lease) -> Result<Ttl> {
        let held = match self.lock.inspect(&lease.name).await {
            Ok(info) => info.held,
            // In a recovery this says that nobody has shown a proof, and the renewal says so too.
            Err(_) if self.host.is_some() => None,
            Err(error) => return Err(error),
        };
        let rest = held.and_then(|it| it.expires_in);
        Ok(rest
            .and_then(|it| Ttl::new(it).ok())
            .unwrap_or(self.max_lease))
    }

    pub(crate) async fn release(&self, wire: v1::ReleaseLease) -> Result<v1::ReleaseAnswer> {
        let lease = wire.lease.ok_or_else(|| missing("lease"))?;
        Ok(self.lock.release(&lease.try_into()?).await?.into())
    }

    /// Releases a lock that was granted to a call that has ended.
    pub(crate) async fn give_back(&self, lease: &Lease) -> Result<()> {
        self.lock.release(lease).await.map(drop)
    }

    pub(crate) async fn hand_over(
        &self,
        wire: v1::HandOverLease,
        received: Moment,
        losses: LossSink<'_>,
    ) -> Result<v1::HandOverAnswer> {
        let (lease, mut next) = wire.read()?;
        next.ttl = next.ttl.min(self.max_lease);
        let outcome = match self.lock.hand_over(&lease, &next).await? {
            HandOver::Done(grant) => HandOver::Done(announce_grant(grant, &next, received, losses)),
            other => other,
        };
        let mut answer = v1::HandOverAnswer::from(&outcome);
        if let Some(hand_over_answer::Answer::Granted(wire)) = &mut answer.answer
            && let HandOver::Done(grant) = &outcome
        {
            self.meters.count_grant();
            wire.proof = self.proof(grant, &next);
        }
        Ok(answer)
    }

    pub(crate) async fn force_release(
        &self,
        wire: v1::ForceReleaseLock,
        caller: Caller<'_>,
    ) -> Result<v1::ForceReleaseAnswer> {
        let (name, token) = wire.read()?;
        let outcome = self.lock.force_release(&name, token).await;
        // Also without an answer of the store, because the lock may be free then.
        tracing::info!(
            target: "distlock::audit",
            lock = ?name, %token, ?outcome, client = %caller.label, subject = caller.subject,
            "a client force-released a lock"
        );
        Ok(outcome?.into())
    }

    pub(crate) async fn inspect(&self, wire: v1::InspectLock) -> Result<v1::LockState> {
        let info = self.lock.inspect(&wire.read()?).await?;
        Ok(v1::LockState::new(&info, self.clock.wall()))
    }

    pub(crate) async fn list(&self, wire: v1::ListLocks) -> Result<v1::LockList> {
        let after = wire.after.map(LockName::new).transpose()?;
        let limit = wire.limit.min(MAX_LISTED);
        let found = self.lock.list(&wire.prefix, after.as_ref(), limit).await?;
        let wall = self.clock.wall();
        let locks = found.iter().map(|info| v1::LockState::new(info, wall));
        let (locks, cut) = fitting(locks);
        let more = cut || (wire.limit > limit && found.len() == usize_of(limit));
        Ok(v1::LockList { locks, more })
    }

    pub(crate) async fn health(&self) -> Result<v1::HealthReport> {
        let mut report = v1::HealthReport::from(&self.lock.health().await?);
        let version = env!("CARGO_PKG_VERSION");
        report.server = format!("distlock server {version} over {}", report.server);
        Ok(report)
    }

    pub(crate) async fn get(&self, wire: v1::ReadRecords) -> Result<v1::RecordValues> {
        let mut keys = wire.keys;
        keys.truncate(MAX_READ);
        let keys = keys.into_iter().map(RecordKey::new);
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let entries = match &*keys {
            [key] => vec![self.records.get(key).await?],
            keys => self.records.get_many(keys).await?,
        };
        let values = entries.into_iter().map(|entry| v1::RecordValue {
            record: entry.map(Into::into),
        });
        let (values, _) = fitting(values);
        Ok(v1::RecordValues { values })
    }

    pub(crate) async fn put(&self, wire: v1::WriteRecord) -> Result<v1::WriteAnswer> {
        let expect = wire.expect();
        let key = RecordKey::new(wire.key)?;
        Ok(self.records.put(&key, &wire.value, expect).await?.into())
    }

    pub(crate) async fn delete(&self, wire: v1::RemoveRecord) -> Result<v1::RemoveAnswer> {
        let key = RecordKey::new(wire.key)?;
        let expect = Version::new(wire.expect_version);
        Ok(self.records.delete(&key, expect).await?.into())
    }

    pub(crate) async fn scan(&self, wire: v1::ListRecords) -> Result<v1::RecordList> {
        let after = wire.after.map(RecordKey::new).transpose()?;
        let limit = wire.limit.min(MAX_LISTED);
        let found = self
            .records
            .scan(&wire.prefix, after.as_ref(), limit)
            .await?;
        let count = found.len();
        let records = found.into_iter().map(|(key, entry)| v1::KeyedRecord {
            key: key.as_str().to_owned(),
            record: Some(entry.into()),
        });
        let (records, cut) = fitting(records);
        let more = cut || (wire.limit > limit && count == usize_of(limit));
        Ok(v1::RecordList { records, more })
    }
}

/// Prepares the answer to an attempt: see [`announce_grant`].
pub(crate) fn announce(
    attempt: Attempt<Grant>,
    request: &AcquireRequest,
    received: Moment,
    losses: LossSink<'_>,
) -> Attempt<Grant> {
    attempt.map(|grant| announce_grant(grant, request, received, losses))
}

/// Makes the duration of a grant count from the receipt of its request, and has the session learn
/// of the loss.
fn announce_grant(
    mut grant: Grant,
    request: &AcquireRequest,
    received: Moment,
    losses: LossSink<'_>,
) -> Grant {
    // The store's lease may count from an earlier moment than the receipt. The client knows nothing
    // of that moment and counts from its sending, so without this the client would hold the lock
    // for longer than the store does.
    let earlier = grant.counts_from.take();
    let earlier = earlier.map_or(Duration::ZERO, |from| received.since(from));
    grant.valid_for = grant.valid_for.saturating_sub(earlier);
    let lease = Lease::new(request.name.clone(), grant.owner_after(request), None);
    watch(&grant.loss, &lease, losses);
    grant
}

fn watch(feed: &LossFeed, lease: &Lease, losses: LossSink<'_>) {
    let Some(losses) = losses.filter(|_| !feed.is_silent()) else {
        return;
    };
    let (losses, lease) = (losses.clone(), lease.clone());
    feed.on_loss(move |reason| {
        let lost = v1::LeaseLost::new(&lease, reason);
        let _ = losses.send(Outgoing::Push(v1::push::Push::Lost(lost)));
    });
}

/// The first messages that fit into one answer, and whether some did not fit. One always fits.
fn fitting<T: prost::Message>(messages: impl Iterator<Item = T>) -> (Vec<T>, bool) {
    let (mut kept, mut bytes) = (Vec::new(), 0);
    for message in messages {
        bytes += message.encoded_len();
        if bytes > ANSWER_BYTES && !kept.is_empty() {
            return (kept, true);
        }
        kept.push(message);
    }
    (kept, false)
}

pub(crate) fn missing(part: &str) -> Error {
    let problem = format!("the message has no {part}");
    Error::new(ErrorKind::InvalidArgument, problem)
}

fn usize_of(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use distlock_core::{Epoch, FencingToken, OwnerId};

    use super::*;

    /// The client counts from its sending, which is before the receipt, and knows nothing of the
    /// moment from which the store counts.
    #[test]
    fn a_lease_that_counts_from_before_the_receipt_is_shortened() {
        let at = |secs| Moment::from_boot(Duration::from_secs(secs));
        let name = LockName::new("a").unwrap();
        let holder = HolderLabel::new("h").unwrap();
        let ttl = Ttl::new(Duration::from_secs(10)).unwrap();
        let request = AcquireRequest::new(name, OwnerId::new(), ttl, holder);
        for (counts_from, left) in [
            (None, 10),
            (Some(at(97)), 7),
            (Some(at(101)), 10),
            (Some(at(80)), 0),
        ] {
            let token = FencingToken::new(1).unwrap();
            let mut grant = Grant::new(token, Epoch::new("e"), Duration::from_secs(10));
            grant.counts_from = counts_from;
            let grant = announce_grant(grant, &request, at(100), None);
            assert_eq!(
                grant.valid_for,
                Duration::from_secs(left),
                "{counts_from:?}"
            );
            assert_eq!(grant.counts_from, None);
        }
    }

    #[test]
    fn a_list_is_cut_before_it_is_too_long_and_never_to_nothing() {
        let state = |bytes| v1::LockState {
            name: "x".repeat(bytes),
            ..v1::LockState::default()
        };
        let (kept, cut) = fitting([state(ANSWER_BYTES / 2), state(9), state(9)].into_iter());
        assert_eq!((kept.len(), cut), (3, false));
        let (kept, cut) = fitting([state(ANSWER_BYTES / 2), state(ANSWER_BYTES)].into_iter());
        assert_eq!((kept.len(), cut), (1, true));
        let (kept, cut) = fitting([state(ANSWER_BYTES * 2)].into_iter());
        assert_eq!((kept.len(), cut), (1, false));
    }
}
