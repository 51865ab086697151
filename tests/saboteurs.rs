//! Tests that the conformance suite finds broken promises. Each backend here breaks one promise,
//! and a case must notice that.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use distlock::{
    Attempt, Capabilities, Clock, Deleted, DistLock, Entry, Error, ErrorKind, Expect, Fairness,
    FencingToken, Forced, LeaseKind, LockInfo, LockName, LossReason, Moment, OwnerId, RecordKey,
    Records, Result, Sleep, Store, SystemClock, Ttl, Version, Written,
    backend::{
        AcquireRequest, Contender, Grant, HandOver, Lease, ReleaseOutcome, Renewal, Renewed,
        TicketStep, sync::Mutex,
    },
};
use distlock_conformance::{
    CaseResult, LockLayer, Options, RecordsLayer, Status, Subject, cases, run_with, trials,
};
use distlock_memory::Memory;

/// The fault of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    AnybodyReleases,
    AnybodyRenews,
    /// An attempt for another owner grants the lock to the owner that has joined the queue.
    EntryOfItsOwner,
    /// An attempt for another owner does not use the queue entry.
    EntryOnlyWaits,
    EveryTokenIsOne,
    ExpiresEarly,
    /// A renewal by a stranger raises the token too, and is then answered as not held.
    FloorByAnybody,
    FloorIgnored,
    /// The token is raised only as long as the lock is held.
    FloorLostAtRelease,
    FoldsCase,
    ForceIgnoresTheToken,
    ForgetsMeta,
    GrantsHeldLocks,
    HandsNothingOver,
    ListsTooMuch,
    /// No timer fires. So a lock counts as lost only when a caller asks whether its guard is valid.
    LostOnlyWhenAsked,
    NeverExpires,
    NeverLeaves,
    NeverWakes,
    /// No fault: the backend has no tickets, no hand-overs and no order of waiting, and its
    /// capabilities say so.
    CanDoLess,
    /// The capabilities deny hand-overs, but the backend does them.
    HandsOverInSilence,
    /// The capabilities deny tickets, but the backend writes them.
    TicketsInSilence,
    /// The capabilities deny raised tokens, but the backend raises them.
    RaisesInSilence,
    /// By its capabilities, a queue entry holds the lock, but the backend takes other owners.
    AnyOwnerInSilence,
    RecordsIgnoreVersions,
    RecordsTrimKeys,
    ReleasesNothing,
    ReusesTickets,
    /// Every read of one record tells the same time.
    StoreTimeStands,
    TrimsNames,
    WrongReason,
}

use Sabotage::*;

/// Connects the suite to a backend with this fault.
async fn connect_saboteur(sabotage: Sabotage) -> Subject {
    let memory = Memory::new(Arc::new(SystemClock));
    Subject::connect("saboteur", move || {
        let lock = Saboteur {
            inner: memory.lock(),
            sabotage,
            seen: Arc::default(),
        };
        let records = SaboteurRecords {
            inner: memory.records(),
            sabotage,
        };
        let clock: Arc<dyn Clock> = match sabotage {
            LostOnlyWhenAsked => Arc::new(NeverWakingClock),
            _ => Arc::new(SystemClock),
        };
        async move {
            let (lock, records) = (lock.into_lock(), records.into_records());
            Ok(Store::with_clock(lock, records, clock))
        }
    })
    .await
    .unwrap()
}

/// A clock that shows the time and never wakes a waiter.
#[derive(Debug)]
struct NeverWakingClock;

impl Clock for NeverWakingClock {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> SystemTime {
        SystemClock.wall()
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
}

/// Runs the cases whose names contain `filter` on a sabotaged backend.
async fn run_cases(sabotage: Sabotage, filter: &str) -> Vec<CaseResult> {
    let subject = connect_saboteur(sabotage).await;
    assert!(
        cases(&subject)
            .iter()
            .any(|case| case.name.contains(filter)),
        "no case is named {filter}"
    );
    run_with(&subject, &Options::default().filter(Some(filter)), |_| {}).await
}

/// The names of the cases that failed.
async fn failed_cases(sabotage: Sabotage, filter: &str) -> Vec<&'static str> {
    run_cases(sabotage, filter)
        .await
        .iter()
        .filter(|result| result.failed())
        .map(|result: &CaseResult| result.name)
        .collect()
}

macro_rules! catches {
    ($($test:ident: $sabotage:ident by $case:literal;)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let failed = failed_cases($sabotage, $case).await;
            assert_eq!(failed, [$case], "{:?} was not noticed", $sabotage);
        }
    )+};
}

catches! {
    a_release_by_a_stranger: AnybodyReleases by "ownership::other_owner_cannot_release";
    a_renewal_by_a_stranger: AnybodyRenews by "ownership::other_owner_cannot_renew";
    an_expired_lock_that_is_renewed: AnybodyRenews by "expiry::expired_owner_cannot_renew";
    a_renewal_that_creates: AnybodyRenews by "ownership::renewal_creates_nothing";
    a_floor_that_a_stranger_sets: FloorByAnybody by "token_floor::only_the_holder_raises";
    a_floor_that_is_ignored: FloorIgnored by "token_floor::renewal_raises_the_token";
    floors_that_are_ignored: FloorIgnored by "token_floor::each_renewal_has_its_own_floor";
    a_floor_that_ends_with_its_lease:
        FloorLostAtRelease by "token_floor::next_grant_is_above_after_a_release";
    a_raised_token_that_is_not_claimed:
        RaisesInSilence by "token_floor::missing_floor_is_unsupported";
    an_entry_that_is_not_used: EntryOnlyWaits by "ownership::queue_entry_serves_another_owner";
    an_entry_that_keeps_its_owner:
        EntryOfItsOwner by "ownership::queue_entry_serves_another_owner";
    an_entry_for_any_owner_that_is_not_claimed:
        AnyOwnerInSilence by "ownership::other_owner_at_an_entry_is_unsupported";
    equal_tokens: EveryTokenIsOne by "fencing::token_rises_across_release";
    equal_tokens_in_a_history: EveryTokenIsOne by "exclusion::two_clients_never_overlap";
    a_lease_that_ends_early: ExpiresEarly by "expiry::no_grant_before_the_holders_deadline";
    a_dead_holder_that_frees_early: ExpiresEarly by "expiry::dead_holder_excludes_until_its_ttl";
    folded_case: FoldsCase by "names::tricky_names_are_distinct";
    a_force_that_hits_another: ForceIgnoresTheToken by "inspect::forced_release_checks_the_token";
    a_lost_meta_text: ForgetsMeta by "inspect::held_lock_shows_its_holder";
    a_second_holder: GrantsHeldLocks by "exclusion::holder_excludes_every_client";
    two_holders_at_a_time: GrantsHeldLocks by "exclusion::race_has_one_winner";
    a_hand_over_that_is_not_there: HandsNothingOver by "ownership::hand_over_is_one_step";
    a_loss_that_is_never_reported:
        LostOnlyWhenAsked by "loss::waiting_alone_reports_the_loss_in_time";
    a_list_of_strangers: ListsTooMuch by "names::list_prefix_is_literal";
    a_lease_without_end: NeverExpires by "expiry::dead_holder_frees_at_its_ttl";
    a_queue_entry_that_is_never_removed:
        NeverLeaves by "ownership::contender_that_left_blocks_nobody";
    a_waiter_that_sleeps_on: NeverWakes by "waiting::wake_up_is_as_promised";
    lost_updates: RecordsIgnoreVersions by "records::concurrent_increments_are_exact";
    stale_writes: RecordsIgnoreVersions by "records::version_must_match";
    trimmed_keys: RecordsTrimKeys by "names::tricky_keys_are_distinct";
    a_release_that_does_nothing: ReleasesNothing by "release::clean_release_frees_the_lock";
    a_dropped_guard_that_stays: ReleasesNothing by "release::dropped_guard_frees_the_lock";
    a_cancelled_acquire_that_stays: ReleasesNothing
        by "cancellation::lock_all_dropped_after_any_poll";
    a_ticket_used_twice: ReusesTickets by "tickets::ticket_is_resumed_only_once";
    a_ticket_that_is_not_claimed: TicketsInSilence by "tickets::missing_tickets_are_unsupported";
    a_hand_over_that_is_not_claimed:
        HandsOverInSilence by "ownership::hand_over_is_unsupported";
    a_ticket_won_twice: ReusesTickets by "tickets::one_of_many_resumes_succeeds";
    a_store_time_that_stands_still: StoreTimeStands by "records::store_time_advances";
    trimmed_names: TrimsNames by "names::tricky_names_are_distinct";
    a_wrong_reason: WrongReason by "loss::forced_release_is_reported";
}

/// Without sabotage the same cases pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_without_a_fault_passes() {
    let memory = Memory::new(Arc::new(SystemClock));
    let subject = Subject::connect("honest", move || {
        let store = Store::new(memory.lock(), memory.records());
        async move { Ok(store) }
    })
    .await
    .unwrap();
    let results = run_with(
        &subject,
        &Options::default().filter(Some("ownership::")),
        |_| {},
    )
    .await;
    assert!(
        results.len() > 10 && !results.iter().any(CaseResult::failed),
        "{results:?}"
    );
}

/// A backend that can do less, and says so, passes too. Cases for a denied feature do not apply, so
/// they are never passed. For each denied feature one case checks that the store refuses its use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_features_are_neither_failed_nor_passed() {
    let mut all = Vec::new();
    let filters = [
        "tickets::",
        "token_floor::",
        "ownership::",
        "handover::",
        "waiting::order",
    ];
    for filter in filters {
        all.extend(run_cases(CanDoLess, filter).await);
    }
    let named = |status| -> Vec<_> {
        let found = all.iter().filter(|result| result.status == status);
        found.map(|result| result.name).collect()
    };
    assert_eq!(named(Status::Failed), [""; 0]);
    let (passed, not_applicable) = (named(Status::Passed), named(Status::NotApplicable));
    let tickets = |names: &[&'static str]| -> Vec<_> {
        let tickets = names.iter().filter(|name| name.starts_with("tickets::"));
        tickets.copied().collect()
    };
    assert_eq!(
        tickets(&passed),
        ["tickets::missing_tickets_are_unsupported"]
    );
    assert_eq!(tickets(&not_applicable).len(), 18, "{not_applicable:?}");
    for name in [
        "ownership::hand_over_is_one_step",
        "ownership::hand_over_needs_a_live_lease",
        "ownership::other_owner_cannot_hand_over",
        "token_floor::only_the_holder_raises",
        "waiting::order_between_clients_is_as_promised",
    ] {
        assert!(not_applicable.contains(&name), "{name}: {all:?}");
    }
    assert!(passed.contains(&"ownership::hand_over_is_unsupported"));
    assert!(passed.contains(&"token_floor::missing_floor_is_unsupported"));
    for result in &all {
        let says_why = result.detail.is_some();
        assert_eq!(says_why, result.status != Status::Passed, "{result:?}");
    }
}

/// In libtest-mimic, a case that does not apply is an ignored test.
#[tokio::test]
async fn cases_that_do_not_apply_are_ignored() {
    let subject = connect_saboteur(CanDoLess).await;
    let not_applicable = cases(&subject)
        .iter()
        .filter(|case| case.not_applicable.is_some())
        .count();
    assert!(not_applicable > 20, "{not_applicable} do not apply");
    let ignored = trials(&[subject])
        .iter()
        .filter(|trial| trial.has_ignored_flag())
        .count();
    assert_eq!(ignored, not_applicable);
}

#[derive(Clone, Debug)]
struct Saboteur {
    inner: Arc<dyn DistLock>,
    sabotage: Sabotage,
    /// The locks that were granted through this handle.
    seen: Arc<Mutex<HashMap<LockName, SeenLock>>>,
}

/// The owner of a lock, and the highest floor of its renewals.
#[derive(Clone, Copy, Debug)]
struct SeenLock {
    owner: OwnerId,
    floor: Option<FencingToken>,
}

impl Saboteur {
    fn has_fault(&self, sabotage: Sabotage) -> bool {
        self.sabotage == sabotage
    }

    fn sabotage_name(&self, name: &LockName) -> LockName {
        let changed = match self.sabotage {
            FoldsCase => name.as_str().to_lowercase(),
            TrimsNames => name.as_str().trim_end().to_owned(),
            _ => return name.clone(),
        };
        LockName::new(changed).unwrap_or_else(|_| name.clone())
    }

    fn sabotage_request(&self, request: &AcquireRequest) -> AcquireRequest {
        let mut request = request.clone();
        request.name = self.sabotage_name(&request.name);
        request.ttl = self.sabotage_ttl(request.ttl);
        if self.has_fault(ForgetsMeta) {
            request.meta = None;
        }
        request
    }

    fn sabotage_ttl(&self, ttl: Ttl) -> Ttl {
        match self.sabotage {
            ExpiresEarly => Ttl::new(ttl.duration() / 4).unwrap_or(ttl),
            NeverExpires => Ttl::MAX,
            _ => ttl,
        }
    }

    fn sabotage_lease(&self, lease: &Lease) -> Lease {
        let mut sabotaged = lease.clone();
        sabotaged.name = self.sabotage_name(&lease.name);
        sabotaged.token = lease.token.filter(|_| !self.has_fault(EveryTokenIsOne));
        sabotaged
    }

    /// The grant as the caller of the backend gets it.
    fn sabotage_grant(&self, mut grant: Grant, asked_for: Ttl) -> Grant {
        grant.valid_for = asked_for.duration();
        if self.has_fault(EveryTokenIsOne)
            && let Ok(one) = FencingToken::new(1)
        {
            grant.token = one;
        }
        grant
    }

    async fn evict(&self, name: &LockName) -> Result<bool> {
        let held = self.inner.inspect(name).await?.held;
        match held.and_then(|held| held.token) {
            Some(token) => Ok(self.inner.force_release(name, token).await? == Forced::Released),
            None => Ok(false),
        }
    }
}

#[async_trait]
impl LockLayer for Saboteur {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.inner)
    }

    fn capabilities(&self, mut below: Capabilities) -> Capabilities {
        if [CanDoLess, TicketsInSilence].contains(&self.sabotage) {
            below.tickets = false;
        }
        if [CanDoLess, HandsOverInSilence].contains(&self.sabotage) {
            below.hand_over = false;
        }
        if [CanDoLess, RaisesInSilence].contains(&self.sabotage) {
            below.token_floor = false;
        }
        if self.sabotage == AnyOwnerInSilence {
            below.lease = LeaseKind::Session;
        }
        if self.sabotage == CanDoLess {
            below.fairness = Fairness::None;
        }
        below
    }

    async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            inner: self.inner.reopen().await?,
            ..self.clone()
        })
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let changed = self.sabotage_request(request);
        if self.has_fault(GrantsHeldLocks) {
            self.evict(&changed.name).await?;
        }
        let attempt = self.inner.try_acquire(&changed).await?;
        if let Attempt::Acquired(_) = &attempt {
            let seen = SeenLock {
                owner: changed.owner,
                floor: None,
            };
            self.seen.lock().insert(changed.name, seen);
        }
        Ok(attempt.map(|grant| self.sabotage_grant(grant, request.ttl)))
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        Ok(Box::new(SaboteurContender {
            inner: self.inner.contend(&self.sabotage_request(request)).await?,
            of: self.clone(),
            request: request.clone(),
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        if self.has_fault(CanDoLess)
            && (renewal.ticket != TicketStep::Keep || lease.nonce.is_some())
        {
            return Err(Error::new(ErrorKind::Unsupported, "no tickets"));
        }
        if self.has_fault(CanDoLess) && renewal.token_floor.is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "no floors"));
        }
        let mut changed = *renewal;
        changed.ttl = self.sabotage_ttl(renewal.ttl);
        let mut mine = self.sabotage_lease(lease);
        if self.has_fault(ReusesTickets) && renewal.ticket == TicketStep::Redeem {
            changed.ticket = TicketStep::Keep;
            mine.nonce = None;
        }
        let seen = self.seen.lock().get(&mine.name).copied();
        if [FloorIgnored, FloorLostAtRelease].contains(&self.sabotage) {
            changed.token_floor = None;
        }
        if self.has_fault(FloorByAnybody)
            && renewal.token_floor.is_some()
            && let Some(seen) = seen
        {
            let holder = Lease::new(mine.name.clone(), seen.owner, None);
            self.inner.renew(&holder, &changed).await?;
        }
        let mut answer = self.inner.renew(&mine, &changed).await?;
        if self.has_fault(FloorLostAtRelease)
            && let Renewed::Extended { token, .. } = &mut answer
            && let Some(seen) = self.seen.lock().get_mut(&mine.name)
        {
            seen.floor = seen.floor.max(renewal.token_floor);
            *token = seen.floor.map_or(*token, |floor| floor.max(*token));
        }
        Ok(match answer {
            Renewed::Extended {
                epoch, token, loss, ..
            } => {
                let grant =
                    self.sabotage_grant(Grant::new(token, epoch, Duration::ZERO), renewal.ttl);
                Renewed::Extended {
                    valid_for: grant.valid_for,
                    epoch: grant.epoch,
                    token: grant.token,
                    loss,
                }
            }
            Renewed::NotHeld(_) if self.has_fault(AnybodyRenews) => {
                let mut request = AcquireRequest::new(
                    mine.name,
                    mine.owner,
                    renewal.ttl,
                    distlock::HolderLabel::new("revived")?,
                );
                self.evict(&request.name).await?;
                request.meta = None;
                match self.inner.try_acquire(&request).await?.acquired() {
                    Some(grant) => Renewed::Extended {
                        valid_for: grant.valid_for,
                        epoch: grant.epoch,
                        token: grant.token,
                        loss: grant.loss,
                    },
                    None => Renewed::NotHeld(LossReason::Expired),
                }
            }
            Renewed::NotHeld(_) if self.has_fault(WrongReason) => {
                Renewed::NotHeld(LossReason::SessionLost)
            }
            not_held => not_held,
        })
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        if self.has_fault(CanDoLess) && lease.nonce.is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "no tickets"));
        }
        match self.sabotage {
            AnybodyReleases if self.evict(&lease.name).await? => Ok(ReleaseOutcome::Released {
                others_waiting: None,
            }),
            ReleasesNothing => Ok(ReleaseOutcome::Released {
                others_waiting: None,
            }),
            _ => self.inner.release(&self.sabotage_lease(lease)).await,
        }
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        if self.has_fault(HandsNothingOver) || self.has_fault(CanDoLess) {
            return Ok(HandOver::Unsupported);
        }
        let answer = self
            .inner
            .hand_over(&self.sabotage_lease(lease), &self.sabotage_request(next))
            .await?;
        Ok(match answer {
            HandOver::Done(grant) => HandOver::Done(self.sabotage_grant(grant, next.ttl)),
            other => other,
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let mut info = self.inner.inspect(&self.sabotage_name(name)).await?;
        info.name = name.clone();
        Ok(info)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let mut prefix = prefix.to_owned();
        if self.has_fault(ListsTooMuch) {
            prefix.pop();
        }
        self.inner.list(&prefix, after, limit).await
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let name = self.sabotage_name(name);
        if self.has_fault(ForceIgnoresTheToken) && self.evict(&name).await? {
            return Ok(Forced::Released);
        }
        self.inner.force_release(&name, expected).await
    }
}

struct SaboteurContender {
    inner: Box<dyn Contender>,
    of: Saboteur,
    /// The request that joined the queue.
    request: AcquireRequest,
}

#[async_trait]
impl Contender for SaboteurContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        let attempt = self.inner.attempt().await?;
        let ttl = self.request.ttl;
        Ok(attempt.map(|grant| self.of.sabotage_grant(grant, ttl)))
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        let mut request = self.of.sabotage_request(&self.request);
        request.owner = owner;
        let attempt = match self.of.sabotage {
            EntryOfItsOwner => self.inner.attempt().await?,
            EntryOnlyWaits => self.of.inner.try_acquire(&request).await?,
            _ => self.inner.attempt_as(owner).await?,
        };
        Ok(attempt.map(|grant| self.of.sabotage_grant(grant, request.ttl)))
    }

    fn is_first(&self) -> bool {
        self.inner.is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        if self.of.has_fault(NeverWakes) {
            SystemClock.sleep(at_most).await;
        } else {
            self.inner.wait(at_most).await;
        }
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        if self.of.has_fault(NeverLeaves) {
            std::mem::forget(self);
            return Ok(());
        }
        self.inner.leave().await
    }
}

#[derive(Clone, Debug)]
struct SaboteurRecords {
    inner: Arc<dyn Records>,
    sabotage: Sabotage,
}

impl SaboteurRecords {
    fn sabotage_key(&self, key: &RecordKey) -> RecordKey {
        if self.sabotage != RecordsTrimKeys {
            return key.clone();
        }
        RecordKey::new(key.as_str().trim_end()).unwrap_or_else(|_| key.clone())
    }

    fn sabotage_entry(&self, entry: Entry) -> Entry {
        match self.sabotage {
            StoreTimeStands => entry.read_at(Duration::from_secs(1)),
            _ => entry,
        }
    }
}

#[async_trait]
impl RecordsLayer for SaboteurRecords {
    fn below(&self) -> &Arc<dyn Records> {
        &self.inner
    }

    async fn reopen(&self) -> Result<Self> {
        let (inner, sabotage) = (self.inner.reopen().await?, self.sabotage);
        Ok(Self { inner, sabotage })
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let found = self.inner.get(&self.sabotage_key(key)).await?;
        Ok(found.map(|entry| self.sabotage_entry(entry)))
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let key = self.sabotage_key(key);
        let mut written = self.inner.put(&key, value, expect).await?;
        // The write is repeated with the present version, so the expected version has no effect.
        while self.sabotage == RecordsIgnoreVersions
            && written == Written::Conflict
            && let Some(entry) = self.inner.get(&key).await?
        {
            let expect = Expect::Version(entry.version);
            written = self.inner.put(&key, value, expect).await?;
        }
        Ok(written)
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.inner.delete(&self.sabotage_key(key), expect).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
