//! Several stores that one backend is made of. A store that is away is opened later.
//!
//! This module owns the handles of the members, and knows which of them answer. Invariant: nobody
//! waits for a member that is away: [`Member::begin`] returns at once. A member that has stopped to
//! answer gets one request at a time until it answers again; otherwise the requests of a busy
//! process would pile up.

use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use distlock_core::{
    Capabilities, Clock, DistLock, Error, ErrorKind, ExpiryClock, Fairness, Health, Moment, Reach,
    Records, Result, Store, Verdict, Wakeup, at_most, sync::Mutex,
};
use tokio::sync::{mpsc, watch};

use crate::{Drivers, Options, Spawner, Target};

/// The time without an answer after which a member counts as silent.
const SILENT_AFTER: Duration = Duration::from_millis(500);

/// The time for which further requests follow the first one to a member that was silent. The member
/// may have been silent long ago, and nobody has asked it since. The time is short, because each of
/// them may have to be undone at a member that is silent still.
const FOLLOWS: Duration = Duration::from_millis(25);

/// The first pause between two attempts to open a member. Each failure doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause between two attempts to open a member.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// One store of several, by name.
#[derive(Clone, Debug)]
pub struct MemberTarget {
    /// The name, which stays when the address or the password changes.
    pub name: String,
    /// The store.
    pub target: Target,
}

impl MemberTarget {
    /// Takes the members of the backend `of` out of the options, each as `NAME=URL`. `refusal` says
    /// why a store of a scheme can be no member.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] with the member that is wrong, or that is given twice.
    pub fn take_list(
        options: &mut Options,
        key: &'static str,
        of: &'static str,
        clock: &Arc<dyn Clock>,
        drivers: &Drivers,
        refusal: fn(&str) -> Option<&'static str>,
    ) -> Result<Vec<Self>> {
        let mut members: Vec<Self> = Vec::new();
        for given in options.take_list(key) {
            let Some((name, url)) = given.value.split_once('=') else {
                return Err(given.wrong("a member is NAME=URL, as in a=redis://HOST"));
            };
            check_name(name).map_err(|problem| given.wrong(problem))?;
            // Every member needs its answers from its own clock, so all of them take the clock of
            // this store's client.
            let target = Target::new(url)
                .from_origin(given.origin.clone())
                .clock(Arc::clone(clock));
            if let Some(reason) = refusal(&target.scheme().unwrap_or_default()) {
                return Err(given.wrong(format_args!("member {name:?}: {reason}")));
            }
            drivers.check(target.clone()).map_err(|error| {
                Error::new(error.kind(), format!("member {name:?} of the {of}"))
                    .on(of)
                    .caused_by(error)
            })?;
            for other in &members {
                if other.name == name {
                    return Err(given.wrong(format_args!("the name {name:?} is given twice")));
                }
                if other.target.reveal_url() == target.reveal_url() {
                    return Err(given.wrong(format_args!(
                        "members {:?} and {name:?} are one server",
                        other.name
                    )));
                }
            }
            members.push(Self {
                name: name.to_owned(),
                target,
            });
        }
        Ok(members)
    }
}

fn check_name(name: &str) -> std::result::Result<(), String> {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    if (1..=32).contains(&name.len()) && name.chars().all(plain) {
        return Ok(());
    }
    Err(format!(
        "the name of a member has 1 to 32 letters, digits, '-', '_' and '.', and \"{}\" is given",
        name.escape_debug()
    ))
}

/// Checks whether a store that was opened may be a member. A member is closed again after an error,
/// and is opened and checked again later.
pub type MemberCheck = fn(MemberHandle) -> Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// The handles of several stores, opened for one runtime.
#[derive(Debug)]
pub struct Members {
    members: Vec<Arc<Member>>,
    /// The tasks of this value end when something is sent here, or with this value.
    closing: watch::Sender<()>,
    spawner: Spawner,
}

/// One member.
pub struct Member {
    name: String,
    masked_url: String,
    clock: Arc<dyn Clock>,
    state: watch::Sender<State>,
    traffic: Mutex<Traffic>,
}

/// A member's locks and records.
#[derive(Clone, Debug)]
pub struct MemberHandle {
    /// The locks.
    pub lock: Arc<dyn DistLock>,
    /// The records.
    pub records: Arc<dyn Records>,
}

#[derive(Debug)]
enum State {
    /// The member is not open. The error is that of the last attempt.
    Opening(Option<Error>),
    Open(MemberHandle),
    Closed,
}

/// The requests to a member.
#[derive(Debug)]
struct Traffic {
    in_flight: usize,
    /// The moment of the last answer, or of the first request after a pause.
    since: Moment,
    silent: bool,
}

/// A request in flight. A value that is dropped without [`Sent::answered`] counts as a request
/// without an answer.
#[derive(Debug)]
pub struct Sent<'a> {
    member: &'a Member,
}

impl Members {
    /// Opens the members in the background, and returns when `needed` of them are open. A member
    /// that does not pass the check is not open.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a member whose target is wrong; and the error of a member
    /// when so many cannot be opened that `needed` cannot be reached.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open(
        targets: Vec<MemberTarget>,
        drivers: &Drivers,
        needed: usize,
        check: MemberCheck,
    ) -> Result<Self> {
        let mut opened = Self::none(drivers.spawner().clone());
        for MemberTarget { name, target } in targets {
            let parts = target.parts().map_err(|error| of_member(&name, error))?;
            let clock = Arc::clone(&parts.clock);
            let member = Member::new(name, parts.masked_url().to_owned(), clock);
            let (drivers, limit) = (drivers.clone(), parts.connect_timeout);
            let task = Arc::clone(&member).keep_opening(move |clock| {
                let (drivers, parts) = (drivers.clone(), parts.clone());
                async move {
                    let late = || {
                        let problem = format!("it did not answer within {limit:?}");
                        Err(Error::new(ErrorKind::Unavailable, problem))
                    };
                    let opening = Box::pin(async {
                        let store = drivers.open_parts(parts).await?;
                        let handle = MemberHandle::of(&store);
                        match check(handle.clone()).await {
                            Ok(()) => Ok(handle),
                            Err(error) => {
                                store.close().await;
                                Err(error)
                            }
                        }
                    });
                    at_most(&*clock, limit, opening).await.unwrap_or_else(late)
                }
            });
            opened.add(member, task);
        }
        opened.wait_for(needed).await?;
        Ok(opened)
    }

    fn none(spawner: Spawner) -> Self {
        Self {
            members: Vec::new(),
            closing: watch::Sender::new(()),
            spawner,
        }
    }

    /// Adds a member, and starts the task that opens it.
    fn add(&mut self, member: Arc<Member>, opening: impl Future<Output = ()> + Send + 'static) {
        self.spawn(opening);
        self.members.push(member);
    }

    /// Starts a task that ends with this value.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut closing = self.closing.subscribe();
        self.spawner.spawn(async move {
            let (mut closed, mut task) = (pin!(closing.changed()), pin!(task));
            poll_fn(|context| match closed.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => task.as_mut().poll(context),
            })
            .await;
        });
    }

    /// Opens second handles on the members, for the calling runtime. Returns when `needed` of them
    /// are open; the others follow in the background.
    ///
    /// # Errors
    /// As [`Members::open`].
    pub async fn reopen(&self, needed: usize) -> Result<Self> {
        let mut opened = Self::none(self.spawner.clone());
        for first in &self.members {
            let (name, url) = (first.name.clone(), first.masked_url.clone());
            let member = Member::new(name, url, Arc::clone(&first.clock));
            let first = Arc::clone(first);
            let task = Arc::clone(&member).keep_opening(move |_| {
                let first = Arc::clone(&first);
                async move {
                    let handle = first.opened().await?;
                    Ok(MemberHandle {
                        lock: handle.lock.reopen().await?,
                        records: handle.records.reopen().await?,
                    })
                }
            });
            opened.add(member, task);
        }
        opened.wait_for(needed).await?;
        Ok(opened)
    }

    /// Waits until each member was tried once.
    pub async fn all_tried(&self) {
        for member in &self.members {
            // The outcome is read from the member.
            let _ = member.first_try().await;
        }
    }

    /// The members, in the order in which they were given.
    #[must_use]
    pub fn all(&self) -> &[Arc<Member>] {
        &self.members
    }

    /// The weakest capabilities of the open members, for a backend of this name. Only the members
    /// can raise the token of a lock.
    #[must_use]
    pub fn weakest_capabilities(&self, backend: &'static str) -> Capabilities {
        let open: Vec<_> = self
            .members
            .iter()
            .filter_map(|member| member.begin().ok())
            .collect();
        let told: Vec<&Capabilities> = open
            .iter()
            .map(|(handle, _)| handle.lock.capabilities())
            .collect();
        let mut all = Capabilities::new(backend);
        let longest = |of: fn(&Capabilities) -> Duration| told.iter().map(|it| of(it)).max();
        let every = |of: fn(&Capabilities) -> bool| told.iter().all(|it| of(it));
        all.min_ttl = longest(|it| it.min_ttl).unwrap_or(all.min_ttl);
        all.default_ttl = longest(|it| it.default_ttl).unwrap_or(all.default_ttl);
        all.ttl_granularity = longest(|it| it.ttl_granularity).unwrap_or(all.ttl_granularity);
        all.max_lease = told.iter().filter_map(|it| it.max_lease).min();
        let mut fairness = told.iter().map(|it| it.fairness);
        let first = fairness.next().unwrap_or(Fairness::None);
        all.fairness = if fairness.all(|it| it == first) {
            first
        } else {
            Fairness::None
        };
        all.wakeup = if every(|it| it.wakeup == Wakeup::Push) {
            Wakeup::Push
        } else {
            Wakeup::Poll
        };
        all.expiry_clock = if every(|it| it.expiry_clock == ExpiryClock::Host) {
            ExpiryClock::Host
        } else {
            ExpiryClock::Server
        };
        all.survives_restart = every(|it| it.survives_restart);
        all.reach = told
            .iter()
            .map(|it| it.reach)
            .min()
            .unwrap_or(Reach::Process);
        all.tickets = every(|it| it.tickets);
        all.hand_over = every(|it| it.hand_over);
        all.store_queue = every(|it| it.store_queue);
        all.tells_force_release = every(|it| it.tells_force_release);
        all
    }

    /// Waits until `needed` members are open, or until so many have failed that `needed` members
    /// cannot be open now.
    async fn wait_for(&self, needed: usize) -> Result<()> {
        let (tried, mut tries) = mpsc::unbounded_channel();
        for member in &self.members {
            let (member, tried) = (Arc::clone(member), tried.clone());
            self.spawn(async move {
                // Nobody listens when enough are open.
                let _ = tried.send(member.first_try().await);
            });
        }
        drop(tried);
        let (mut left, mut open, mut failed) = (self.members.len(), 0, None);
        while open < needed {
            let next = tries.recv().await;
            left = left.saturating_sub(1);
            match next {
                Some(Ok(())) => open += 1,
                Some(Err(error)) => failed = Some(error),
                None => {
                    let none = || Error::new(ErrorKind::Internal, "there are too few members");
                    return Err(failed.unwrap_or_else(none));
                }
            }
            // Nobody waits for a member that hangs if the others cannot be enough.
            if open + left < needed
                && let Some(error) = failed.take()
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Closes the members, and stops opening those that are away.
    pub async fn close(&self) {
        self.closing.send_replace(());
        let (closing, mut all) = mpsc::channel::<()>(1);
        for member in &self.members {
            let (member, closing) = (Arc::clone(member), closing.clone());
            self.spawner.spawn(async move {
                member.close().await;
                drop(closing);
            });
        }
        drop(closing);
        // Nothing is sent: the channel ends with the last of the tasks.
        let _ = all.recv().await;
    }
}

impl MemberHandle {
    fn of(store: &Store) -> Self {
        Self {
            lock: store.backend(),
            records: store.records(),
        }
    }

    async fn close(&self) {
        self.lock.close().await;
        self.records.close().await;
    }
}

impl Member {
    fn new(name: String, masked_url: String, clock: Arc<dyn Clock>) -> Arc<Self> {
        let since = clock.now();
        Arc::new(Self {
            name,
            masked_url,
            clock,
            state: watch::Sender::new(State::Opening(None)),
            traffic: Mutex::new(Traffic {
                in_flight: 0,
                since,
                silent: false,
            }),
        })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL without its password.
    #[must_use]
    pub fn masked_url(&self) -> &str {
        &self.masked_url
    }

    /// Tries to open the member until that succeeds.
    async fn keep_opening<F>(self: Arc<Self>, open: impl Fn(Arc<dyn Clock>) -> F)
    where
        F: Future<Output = Result<MemberHandle>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match open(Arc::clone(&self.clock)).await {
                Ok(handle) => {
                    let mut late = Some(handle);
                    self.state.send_if_modified(|state| {
                        let is_open = !matches!(state, State::Closed);
                        if is_open && let Some(handle) = late.take() {
                            *state = State::Open(handle);
                        }
                        is_open
                    });
                    // The member was closed meanwhile, and nobody else would close this handle.
                    if let Some(handle) = late {
                        handle.close().await;
                    }
                    return;
                }
                Err(error) => {
                    let rest = error.retry_pause();
                    tracing::debug!(member = self.name, %error, "a member cannot be opened");
                    self.state
                        .send_replace(State::Opening(Some(self.of_this(error))));
                    self.clock.sleep(rest.unwrap_or(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Waits for the first attempt to open the member.
    async fn first_try(&self) -> Result<()> {
        let mut state = self.state.subscribe();
        let tried = state
            .wait_for(|state| !matches!(state, State::Opening(None)))
            .await;
        match tried.as_deref() {
            Ok(State::Open(_)) => Ok(()),
            Ok(State::Opening(Some(error))) => Err(error.clone()),
            Ok(State::Opening(None) | State::Closed) | Err(_) => Err(self.closed()),
        }
    }

    /// Waits until the member is open.
    async fn opened(&self) -> Result<MemberHandle> {
        let mut state = self.state.subscribe();
        let open = state
            .wait_for(|state| !matches!(state, State::Opening(_)))
            .await;
        match open.as_deref() {
            Ok(State::Open(handle)) => Ok(handle.clone()),
            Ok(State::Opening(_) | State::Closed) | Err(_) => Err(self.closed()),
        }
    }

    fn closed(&self) -> Error {
        self.of_this(Error::new(ErrorKind::Closed, "the member was closed"))
    }

    /// Adds the name of this member to an error.
    #[must_use]
    pub fn of_this(&self, error: Error) -> Error {
        of_member(&self.name, error)
    }

    /// Begins a request.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the member is not open, or has stopped to answer and a
    /// request to it has been in flight for a while; [`ErrorKind::Closed`] after a close.
    pub fn begin(&self) -> Result<(MemberHandle, Sent<'_>)> {
        self.begin_unless(|traffic, now| {
            traffic.silent && traffic.in_flight > 0 && now.since(traffic.since) > FOLLOWS
        })
    }

    /// Begins a request also to a member that has stopped to answer.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the member is not open; [`ErrorKind::Closed`] after a close.
    pub fn begin_although_silent(&self) -> Result<(MemberHandle, Sent<'_>)> {
        self.begin_unless(|_, _| false)
    }

    fn begin_unless(
        &self,
        refuses: impl FnOnce(&Traffic, Moment) -> bool,
    ) -> Result<(MemberHandle, Sent<'_>)> {
        let handle = match &*self.state.borrow() {
            State::Open(handle) => handle.clone(),
            State::Closed => return Err(self.closed()),
            State::Opening(error) => {
                let away = || Error::new(ErrorKind::Unavailable, "the member is being opened");
                return Err(error.clone().unwrap_or_else(|| self.of_this(away())));
            }
        };
        let now = self.clock.now();
        let mut traffic = self.traffic.lock();
        if traffic.in_flight == 0 {
            traffic.since = now;
        } else if now.since(traffic.since) > SILENT_AFTER {
            traffic.silent = true;
        }
        if refuses(&traffic, now) {
            let problem = "the member does not answer";
            return Err(self.of_this(Error::new(ErrorKind::Unavailable, problem)));
        }
        traffic.in_flight += 1;
        drop(traffic);
        Ok((handle, Sent { member: self }))
    }

    /// Whether the member is open and answers.
    #[must_use]
    pub fn answers(&self) -> bool {
        let open = matches!(&*self.state.borrow(), State::Open(_));
        let traffic = self.traffic.lock();
        let late = self.clock.now().since(traffic.since) > SILENT_AFTER;
        open && !traffic.silent && !(traffic.in_flight > 0 && late)
    }

    async fn close(&self) {
        let before = self.state.send_replace(State::Closed);
        if let State::Open(handle) = before {
            handle.close().await;
        }
    }
}

/// Adds what the member of this name says about itself to the report on a backend of several
/// stores. The checks that pass are one line: seven members have a hundred of them.
pub fn add_health_of(health: &mut Health, name: &str, own: Health) {
    let server = own.server;
    let (passed, others): (Vec<_>, Vec<_>) = own
        .findings
        .into_iter()
        .partition(|finding| finding.verdict == Verdict::Pass);
    let checks: Vec<_> = passed.iter().map(|finding| finding.check).collect();
    if !checks.is_empty() {
        let detail = format!("{name} ({server}): {}", checks.join(", "));
        health.found("checks", Verdict::Pass, detail);
    }
    for mut finding in others {
        finding.detail = format!("{name} ({server}): {}", finding.detail);
        health.findings.push(finding);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("name", &self.name)
            .field("url", &self.masked_url)
            .finish_non_exhaustive()
    }
}

impl Sent<'_> {
    /// Notes the end of the request, and adds the name of the member to an error. After
    /// [`ErrorKind::Unavailable`], as when it refuses connections, the member counts as one that
    /// does not answer.
    ///
    /// # Errors
    /// That of the answer.
    pub fn ended<T>(self, answer: Result<T>) -> Result<T> {
        let member = self.member;
        match &answer {
            Ok(_) => self.answered(),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                member.traffic.lock().silent = true;
            }
            // Whether the member has answered is not known.
            Err(_) => {}
        }
        answer.map_err(|error| member.of_this(error))
    }

    /// Notes that the member has answered.
    pub fn answered(self) {
        let mut traffic = self.member.traffic.lock();
        traffic.since = self.member.clock.now();
        traffic.silent = false;
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let now = self.member.clock.now();
        let mut traffic = self.member.traffic.lock();
        traffic.in_flight -= 1;
        // The last request can end without an answer, and nobody may send another one.
        if now.since(traffic.since) > SILENT_AFTER {
            traffic.silent = true;
        }
    }
}

/// The same error, with the member's name in front of it.
fn of_member(name: &str, error: Error) -> Error {
    let kind = error.kind();
    let problem = format!("member {name:?} of the backend");
    let named = Error::new(kind, problem);
    match error.retry_pause() {
        Some(pause) => named.retry_in(pause),
        None => named,
    }
    .caused_by(error)
}
