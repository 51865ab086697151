//! Random histories of operations, compared with a simple model: one map without shards and without
//! removal of expired rows. The lock table, the backend over it, and a lock over records must all
//! give the model's answers.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use distlock_core::{
    AcquireRequest, Attempt, DistLock, FencingToken, Forced, HandOver, HolderLabel, Lease,
    LockInfo, LockName, LossReason, ManualClock, Meta, Moment, OwnerId, ReleaseOutcome, Renewal,
    Renewed, TicketStep, Ttl,
};
use distlock_kv::KvLock;
use distlock_memory::{Memory, Now, Table};
use futures_util::FutureExt as _;
use proptest::prelude::*;
use uuid::Uuid;

const NAMES: [&str; 4] = ["a", "ab", "b", "a/ü"];
const OWNERS: u128 = 4;

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        name: usize,
        owner: u128,
        ttl: u64,
    },
    Renew {
        lease: Pick,
        ttl: u64,
        ticket: Ticket,
        /// The distance of the floor from the name's last token; `None`: no floor.
        floor: Option<i64>,
    },
    /// The number stands for the nonce of a ticket; `None`: the release of a guard.
    Release(Pick, Option<u128>),
    HandOver {
        lease: Pick,
        next: u128,
        ttl: u64,
    },
    Force {
        name: usize,
        /// The expected token is the present one plus this number.
        off_by: u64,
    },
    Inspect(usize),
    List {
        prefix: &'static str,
        after: Option<usize>,
        limit: u32,
    },
    /// Advances the boot-time clock by the first number and the wall clock by the second, which may
    /// be negative.
    Time(u64, i64),
}

/// The lease that a caller passes: an owner, and the token of one of its grants or no token.
#[derive(Clone, Debug)]
struct Pick {
    name: usize,
    owner: u128,
    /// The index of the token, counted back from the latest token of that name; `None`: no token is
    /// passed.
    token: Option<usize>,
}

/// The ticket step of a renewal. The number stands for a nonce.
#[derive(Clone, Copy, Debug)]
enum Ticket {
    Keep,
    Issue(u128),
    /// A renewal by ticket.
    Present(u128),
    Redeem(u128),
}

#[derive(Clone, Debug)]
struct Held {
    owner: u128,
    token: FencingToken,
    expires: Duration,
    ttl: u64,
    ticket: Option<u128>,
}

#[derive(Default)]
struct Model {
    rows: HashMap<usize, Held>,
    /// All tokens of a name, in the order in which they were granted or raised.
    granted: BTreeMap<usize, Vec<FencingToken>>,
    /// Names and tokens of force-released leases, if the store reports that reason.
    forced: Vec<(usize, FencingToken)>,
    now: Duration,
}

impl Model {
    /// The lease that has not expired; `None`: the lock is free.
    fn live_row(&self, name: usize) -> Option<&Held> {
        self.rows.get(&name).filter(|held| self.now < held.expires)
    }

    /// The answer to the use of a ticket with this nonce; `None`: the use of a guard.
    fn expected_answer_by(
        &self,
        name: usize,
        owner: u128,
        token: Option<FencingToken>,
        nonce: Option<u128>,
    ) -> Result<(), LossReason> {
        self.expected_answer(name, owner, token)?;
        match nonce {
            Some(_) if self.rows[&name].ticket != nonce => Err(LossReason::TakenOver),
            _ => Ok(()),
        }
    }

    /// Returns the expected answer to an operation with a lease.
    fn expected_answer(
        &self,
        name: usize,
        owner: u128,
        token: Option<FencingToken>,
    ) -> Result<(), LossReason> {
        let Some(held) = self.rows.get(&name) else {
            return Err(match token {
                Some(token) if self.forced.contains(&(name, token)) => LossReason::ForceReleased,
                _ => LossReason::Removed,
            });
        };
        if held.owner != owner {
            Err(LossReason::TakenOver)
        } else if self.now >= held.expires || token.is_some_and(|token| token != held.token) {
            Err(LossReason::Expired)
        } else {
            Ok(())
        }
    }

    /// Adds a lease that the subject granted. The token of the lease must be higher than all
    /// earlier tokens of the name.
    fn record_grant(&mut self, name: usize, owner: u128, ttl: u64, token: FencingToken) {
        let tokens = self.granted.entry(name).or_default();
        assert!(
            tokens.last().is_none_or(|last| *last < token),
            "tokens rise"
        );
        tokens.push(token);
        self.rows.insert(
            name,
            Held {
                owner,
                token,
                expires: self.now + Duration::from_millis(ttl),
                ttl,
                ticket: None,
            },
        );
    }

    /// Returns the token that a caller passes; `None`: it passes none, or the name had fewer
    /// grants.
    fn picked_token(&self, pick: &Pick) -> Option<FencingToken> {
        let tokens = self.granted.get(&pick.name)?;
        let back = pick.token?;
        tokens.len().checked_sub(back + 1).map(|at| tokens[at])
    }
}

fn name(index: usize) -> LockName {
    LockName::new(NAMES[index]).unwrap()
}

fn owner(number: u128) -> OwnerId {
    OwnerId::from_uuid(Uuid::from_u128(number))
}

fn request(index: usize, number: u128, ttl: u64) -> AcquireRequest {
    let mut request = AcquireRequest::new(
        name(index),
        owner(number),
        Ttl::from_millis(ttl).unwrap(),
        HolderLabel::new(format!("owner-{number}")).unwrap(),
    );
    request.meta = number
        .is_multiple_of(2)
        .then(|| Meta::new(format!("meta of {number}")).unwrap());
    request
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let ttl = || 1u64..50;
    let named = || 0..NAMES.len();
    let pick = || {
        (named(), 0..OWNERS, prop::option::weighted(0.7, 0usize..3))
            .prop_map(|(name, owner, token)| Pick { name, owner, token })
    };
    let ticket = prop_oneof![
        3 => Just(Ticket::Keep),
        1 => (0u128..2).prop_map(Ticket::Issue),
        1 => (0u128..2).prop_map(Ticket::Present),
        1 => (0u128..2).prop_map(Ticket::Redeem),
    ];
    // The last floor is above the wall clock for the rest of the history.
    let floor = prop::option::weighted(0.3, prop::sample::select(vec![-3_i64, 0, 5, 90_000_000]));
    let step = prop_oneof![
        6 => (named(), 0..OWNERS, ttl())
            .prop_map(|(name, owner, ttl)| Step::Acquire { name, owner, ttl }),
        4 => (pick(), ttl(), ticket, floor)
            .prop_map(|(lease, ttl, ticket, floor)| Step::Renew { lease, ttl, ticket, floor }),
        4 => (pick(), prop::option::weighted(0.3, 0u128..2))
            .prop_map(|(lease, nonce)| Step::Release(lease, nonce)),
        2 => (pick(), 0..OWNERS, ttl())
            .prop_map(|(lease, next, ttl)| Step::HandOver { lease, next, ttl }),
        1 => (named(), 0u64..2).prop_map(|(name, off_by)| Step::Force { name, off_by }),
        1 => named().prop_map(Step::Inspect),
        1 => (
            prop::sample::select(vec!["", "a", "a/", "b", "c"]),
            prop::option::of(named()),
            0u32..5,
        )
            .prop_map(|(prefix, after, limit)| Step::List { prefix, after, limit }),
        5 => (0u64..30, -20_000i64..40_000).prop_map(|(boot, wall)| Step::Time(boot, wall)),
    ];
    prop::collection::vec(step, 1..120)
}

/// The code under test. No call waits, and time moves only in [`Subject::advance`].
trait Subject {
    fn advance(&mut self, boot: Duration, wall_micros: i64);
    fn acquire(&self, request: &AcquireRequest) -> Attempt<FencingToken>;
    fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<FencingToken, LossReason>;
    fn release(&self, lease: &Lease) -> bool;
    fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<FencingToken, LossReason>;
    fn force_release(&self, name: &LockName, expected: FencingToken) -> Forced;
    fn tells_force_release(&self) -> bool;
    fn raises_tokens(&self) -> bool;
    fn inspect(&self, name: &LockName) -> LockInfo;
    fn list(&self, prefix: &str, after: Option<&LockName>, limit: u32) -> Vec<LockInfo>;
}

struct BareTable {
    table: Table,
    now: Now,
}

impl BareTable {
    fn new() -> Self {
        Self {
            table: Table::new(),
            now: Now {
                boot: Moment::from_boot(Duration::from_secs(100)),
                wall_micros: 1_000_000_000_000,
            },
        }
    }
}

impl Subject for BareTable {
    fn advance(&mut self, boot: Duration, wall_micros: i64) {
        self.now.boot = self.now.boot + boot;
        self.now.wall_micros = self.now.wall_micros.saturating_add_signed(wall_micros);
    }

    fn acquire(&self, request: &AcquireRequest) -> Attempt<FencingToken> {
        let free = self.inspect(&request.name).held.is_none();
        let attempt = self.table.try_acquire(self.now, request, None).unwrap();
        if let Attempt::Acquired(token) = &attempt
            && free
        {
            assert!(token.get() >= self.now.wall_micros, "hybrid");
        }
        attempt
    }

    fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<FencingToken, LossReason> {
        self.table.renew(self.now.boot, lease, renewal)
    }

    fn release(&self, lease: &Lease) -> bool {
        match self.table.release(self.now.boot, lease) {
            ReleaseOutcome::Released { others_waiting } => {
                assert_eq!(others_waiting, Some(false));
                true
            }
            ReleaseOutcome::NotHeld => false,
        }
    }

    fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<FencingToken, LossReason> {
        self.table.hand_over(self.now, lease, next).unwrap()
    }

    fn force_release(&self, name: &LockName, expected: FencingToken) -> Forced {
        self.table.force_release(self.now.boot, name, expected)
    }

    fn tells_force_release(&self) -> bool {
        true
    }

    fn raises_tokens(&self) -> bool {
        true
    }

    fn inspect(&self, name: &LockName) -> LockInfo {
        self.table.inspect(self.now.boot, name)
    }

    fn list(&self, prefix: &str, after: Option<&LockName>, limit: u32) -> Vec<LockInfo> {
        self.table.list(self.now.boot, prefix, after, limit)
    }
}

/// A backend, used through two handles alternately.
struct BackendUnderTest {
    handles: [Arc<dyn DistLock>; 2],
    turn: std::cell::Cell<usize>,
    clock: ManualClock,
}

impl BackendUnderTest {
    fn new(make: impl FnOnce(ManualClock) -> Arc<dyn DistLock>) -> Self {
        let clock = ManualClock::new();
        let first = make(clock.clone());
        let second = first.reopen().now_or_never().unwrap().unwrap();
        Self {
            handles: [first, second],
            turn: std::cell::Cell::new(0),
            clock,
        }
    }

    /// Returns the handle for this call. The next call gets the other handle.
    fn next_handle(&self) -> &dyn DistLock {
        let turn = self.turn.get();
        self.turn.set(1 - turn);
        &*self.handles[turn]
    }
}

impl Subject for BackendUnderTest {
    fn advance(&mut self, boot: Duration, _wall_micros: i64) {
        self.clock.advance(boot);
    }

    fn acquire(&self, request: &AcquireRequest) -> Attempt<FencingToken> {
        let attempt = self
            .next_handle()
            .try_acquire(request)
            .now_or_never()
            .unwrap();
        attempt.unwrap().map(|grant| {
            assert_eq!(grant.valid_for, request.ttl.duration());
            grant.token
        })
    }

    fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<FencingToken, LossReason> {
        let renewed = self
            .next_handle()
            .renew(lease, renewal)
            .now_or_never()
            .unwrap();
        match renewed.unwrap() {
            Renewed::Extended { token, .. } => Ok(token),
            Renewed::NotHeld(reason) => Err(reason),
        }
    }

    fn release(&self, lease: &Lease) -> bool {
        let released = self.next_handle().release(lease).now_or_never().unwrap();
        released.unwrap() != ReleaseOutcome::NotHeld
    }

    fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<FencingToken, LossReason> {
        let handed = self
            .next_handle()
            .hand_over(lease, next)
            .now_or_never()
            .unwrap();
        match handed.unwrap() {
            HandOver::Done(grant) => Ok(grant.token),
            HandOver::NotHeld(reason) => Err(reason),
            HandOver::Unsupported => panic!("it has this step"),
        }
    }

    fn force_release(&self, name: &LockName, expected: FencingToken) -> Forced {
        let forced = self.next_handle().force_release(name, expected);
        forced.now_or_never().unwrap().unwrap()
    }

    fn tells_force_release(&self) -> bool {
        self.handles[0].capabilities().tells_force_release
    }

    fn raises_tokens(&self) -> bool {
        self.handles[0].capabilities().token_floor
    }

    fn inspect(&self, name: &LockName) -> LockInfo {
        let info = self.next_handle().inspect(name).now_or_never().unwrap();
        info.unwrap()
    }

    fn list(&self, prefix: &str, after: Option<&LockName>, limit: u32) -> Vec<LockInfo> {
        let infos = self.next_handle().list(prefix, after, limit);
        infos.now_or_never().unwrap().unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_table_matches_the_model(steps in any_steps()) {
        run_history(&mut BareTable::new(), steps)?;
    }

    #[test]
    fn the_backend_matches_the_model(steps in any_steps()) {
        let mut memory = BackendUnderTest::new(|clock| Memory::new(Arc::new(clock)).lock());
        run_history(&mut memory, steps)?;
    }

    #[test]
    fn a_lock_over_records_matches_the_model(steps in any_steps()) {
        let make = |clock: ManualClock| -> Arc<dyn DistLock> {
            let records = Memory::new(Arc::new(clock.clone())).records();
            Arc::new(KvLock::new(records).unwrap().with_clock(Arc::new(clock)))
        };
        run_history(&mut BackendUnderTest::new(make), steps)?;
    }
}

fn run_history(subject: &mut dyn Subject, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut model = Model {
        now: Duration::from_secs(100),
        ..Model::default()
    };
    for step in steps {
        if let Step::Time(boot, by) = step {
            let boot = Duration::from_millis(boot);
            model.now += boot;
            subject.advance(boot, by);
        } else {
            run_step(subject, &mut model, step)?;
        }
    }
    Ok(())
}

/// Runs one operation on the subject and on the model, and compares the answers.
fn run_step(subject: &dyn Subject, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
    match step {
        Step::Time(..) => Ok(()),
        Step::Acquire { name, owner, ttl } => run_acquire(subject, model, name, owner, ttl),
        Step::Renew {
            lease,
            ttl,
            ticket,
            floor,
        } => run_renew(subject, model, &lease, ttl, ticket, floor),
        Step::Release(lease, nonce) => run_release(subject, model, &lease, nonce),
        Step::HandOver { lease, next, ttl } => run_hand_over(subject, model, &lease, next, ttl),
        Step::Force { name, off_by } => run_force_release(subject, model, name, off_by),
        Step::Inspect(name) => run_inspect(subject, model, name),
        Step::List {
            prefix,
            after,
            limit,
        } => run_list(subject, model, prefix, after, limit),
    }
}

fn run_acquire(
    subject: &dyn Subject,
    model: &mut Model,
    name: usize,
    owner: u128,
    ttl: u64,
) -> Result<(), TestCaseError> {
    let answer = subject.acquire(&request(name, owner, ttl));
    match (model.live_row(name).cloned(), answer) {
        (Some(held), Attempt::Acquired(token)) => {
            prop_assert_eq!(held.owner, owner, "exclusion");
            prop_assert_eq!(held.token, token, "the same grant, armed again");
            let row = model.rows.get_mut(&name).unwrap();
            row.expires = model.now + Duration::from_millis(ttl);
            row.ttl = ttl;
        }
        (Some(held), Attempt::Busy(info)) => {
            let info = info.unwrap();
            prop_assert_ne!(held.owner, owner);
            prop_assert_eq!(info.token, Some(held.token));
            prop_assert_eq!(info.holder, format!("owner-{}", held.owner));
            prop_assert_eq!(info.meta.is_some(), held.owner.is_multiple_of(2));
            prop_assert_eq!(info.expires_in, Some(held.expires - model.now));
        }
        (None, Attempt::Acquired(token)) => {
            model.record_grant(name, owner, ttl, token);
        }
        (None, Attempt::Busy(info)) => prop_assert!(false, "free, yet {info:?}"),
    }
    Ok(())
}

fn run_renew(
    subject: &dyn Subject,
    model: &mut Model,
    pick: &Pick,
    ttl: u64,
    ticket: Ticket,
    floor: Option<i64>,
) -> Result<(), TestCaseError> {
    let token = model.picked_token(pick);
    let mut lease = Lease::new(name(pick.name), owner(pick.owner), token);
    let mut renewal = Renewal::plain(Ttl::from_millis(ttl).unwrap());
    if subject.raises_tokens()
        && let Some(last) = model
            .granted
            .get(&pick.name)
            .and_then(|tokens| tokens.last())
    {
        let floor = floor.map(|above| last.get().saturating_add_signed(above));
        renewal.token_floor = floor.and_then(|floor| FencingToken::new(floor).ok());
    }
    let nonce = match ticket {
        Ticket::Keep | Ticket::Issue(_) => None,
        Ticket::Present(nonce) | Ticket::Redeem(nonce) => Some(nonce),
    };
    lease.nonce = nonce.map(Uuid::from_u128);
    renewal.ticket = match ticket {
        Ticket::Keep | Ticket::Present(_) => TicketStep::Keep,
        Ticket::Issue(nonce) => TicketStep::Issue(Uuid::from_u128(nonce)),
        Ticket::Redeem(_) => TicketStep::Redeem,
    };
    let answer = subject.renew(&lease, &renewal);
    let expected = model.expected_answer_by(pick.name, pick.owner, token, nonce);
    if expected.is_ok() {
        let row = model.rows.get_mut(&pick.name).unwrap();
        match ticket {
            Ticket::Keep | Ticket::Present(_) => {}
            Ticket::Issue(nonce) => row.ticket = Some(nonce),
            Ticket::Redeem(_) => row.ticket = None,
        }
    }
    prop_assert_eq!(answer.map(|_| ()), expected);
    if expected.is_ok() {
        let row = model.rows.get_mut(&pick.name).unwrap();
        if let Some(floor) = renewal.token_floor.filter(|floor| *floor > row.token) {
            row.token = floor;
            model.granted.entry(pick.name).or_default().push(floor);
        }
        prop_assert_eq!(answer, Ok(row.token));
        row.expires = model.now + Duration::from_millis(ttl);
    }
    Ok(())
}

fn run_release(
    subject: &dyn Subject,
    model: &mut Model,
    pick: &Pick,
    nonce: Option<u128>,
) -> Result<(), TestCaseError> {
    let token = model.picked_token(pick);
    let mut lease = Lease::new(name(pick.name), owner(pick.owner), token);
    lease.nonce = nonce.map(Uuid::from_u128);
    let expected = match model.expected_answer_by(pick.name, pick.owner, token, nonce) {
        Ok(()) => {
            model.rows.remove(&pick.name);
            true
        }
        Err(_) => false,
    };
    prop_assert_eq!(subject.release(&lease), expected);
    Ok(())
}

fn run_hand_over(
    subject: &dyn Subject,
    model: &mut Model,
    pick: &Pick,
    next: u128,
    ttl: u64,
) -> Result<(), TestCaseError> {
    let token = model.picked_token(pick);
    let lease = Lease::new(name(pick.name), owner(pick.owner), token);
    let answer = subject.hand_over(&lease, &request(pick.name, next, ttl));
    prop_assert_eq!(
        answer.map(|_| ()),
        model.expected_answer(pick.name, pick.owner, token)
    );
    if let Ok(token) = answer {
        model.record_grant(pick.name, next, ttl, token);
    }
    Ok(())
}

fn run_force_release(
    subject: &dyn Subject,
    model: &mut Model,
    index: usize,
    off_by: u64,
) -> Result<(), TestCaseError> {
    let token = model.rows.get(&index).map_or(7, |held| held.token.get()) + off_by;
    let expected = match model.live_row(index) {
        None => Forced::NotHeld,
        Some(held) if off_by > 0 => Forced::OtherToken(held.token),
        Some(_) => Forced::Released,
    };
    let token = FencingToken::new(token).unwrap();
    prop_assert_eq!(subject.force_release(&name(index), token), expected);
    if expected == Forced::Released {
        model.rows.remove(&index);
        if subject.tells_force_release() {
            model.forced.push((index, token));
        }
    }
    Ok(())
}

fn run_inspect(subject: &dyn Subject, model: &Model, index: usize) -> Result<(), TestCaseError> {
    let info = subject.inspect(&name(index));
    prop_assert!(info.waiters.is_none_or(|waiters| waiters == 0));
    prop_assert_eq!(
        info.held.and_then(|held| held.token),
        model.live_row(index).map(|held| held.token)
    );
    Ok(())
}

fn run_list(
    subject: &dyn Subject,
    model: &Model,
    prefix: &str,
    after: Option<usize>,
    limit: u32,
) -> Result<(), TestCaseError> {
    let after = after.map(name);
    let mut expected: Vec<_> = (0..NAMES.len())
        .filter(|index| model.live_row(*index).is_some())
        .map(|index| NAMES[index])
        .filter(|name| name.starts_with(prefix))
        .filter(|name| after.as_ref().is_none_or(|after| *name > after.as_str()))
        .collect();
    expected.sort_unstable();
    expected.truncate(limit as usize);
    let listed = subject.list(prefix, after.as_ref(), limit);
    let listed: Vec<_> = listed.iter().map(|info| info.name.as_str()).collect();
    prop_assert_eq!(listed, expected);
    Ok(())
}

/// A sweep removes expired rows before they accumulate, and never removes the row of a held lock.
#[test]
fn a_sweep_removes_expired_rows_and_keeps_held_ones() {
    let table = Table::new();
    let at = |seconds| Now {
        boot: Moment::from_boot(Duration::from_secs(seconds)),
        wall_micros: 1,
    };
    let long = Ttl::from_millis(1_000_000).unwrap();
    let short = Ttl::from_millis(1000).unwrap();
    let holder = HolderLabel::new("x").unwrap();
    let acquire = |at, name: String, ttl| {
        let name = LockName::new(name).unwrap();
        let request = AcquireRequest::new(name, OwnerId::new(), ttl, holder.clone());
        table
            .try_acquire(at, &request, None)
            .unwrap()
            .acquired()
            .unwrap()
    };
    for n in 0..100 {
        acquire(at(0), format!("long-{n}"), long);
    }
    for round in 0..20 {
        for n in 0..20_000 {
            acquire(at(round * 2), format!("short-{round}-{n}"), short);
        }
    }
    let listed = table.list(at(39).boot, "", None, u32::MAX);
    assert_eq!(listed.len(), 100, "all that is still held");
    // The bound is one round of held rows, the same number of expired rows, and the rows that each
    // shard may keep. Twenty rounds of expired rows would be far more.
    let rows = table.rows();
    assert!(rows < 2 * 20_100 + 64 * 256, "{rows} rows are kept");
}
