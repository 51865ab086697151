//! The hosted table: its start, its ceiling, its proofs, and its stop.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    Clock, DistLock, Epoch, Error, ErrorKind, FencingToken, HolderLabel, Lease, LockName,
    LossReason, Meta, Moment, OwnerId, Result, Ttl, micros, sync::Mutex, unix_time,
};
use distlock_memory::{HeldLock, Memory};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    ceiling::Ceiling,
    file::StateFile,
    proof::{NotProven, Prover},
    recovering::Recovering,
    state::{CleanStop, ForcedLock, State},
    token_clock::TokenClock,
};
use crate::meters;

/// The boot of this machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A renewal raises a token at most this far ahead of the clock. A higher one would use up the
/// tokens of all locks, for good.
const HIGHEST_FLOOR: Duration = Duration::from_secs(365 * 86_400);

/// The longest wait for the clock to pass the highest token of the earlier starts. The ceiling is
/// about a minute ahead of the clock at most, unless a holder has raised a token: then the tokens
/// go on from the ceiling, however far that is.
const MOST_AHEAD: Duration = Duration::from_secs(120);

/// The locks of a server that keeps them in memory.
#[derive(Debug)]
pub(crate) struct Host {
    memory: Memory,
    clock: Arc<dyn Clock>,
    tokens: Arc<TokenClock>,
    prover: Prover,
    max_lease: Ttl,
    file: Arc<StateFile>,
    /// The state as the file holds it. The mutex is held while the file is written.
    state: tokio::sync::Mutex<State>,
    ceiling: Mutex<Ceiling>,
    /// The force-released locks that no proof restores, and the ends of their last leases.
    forced: Mutex<HashMap<(String, FencingToken), Moment>>,
    /// The end of the time after a crash in which nobody new is granted a lock.
    recovery: Option<Moment>,
    /// No lease of an earlier start runs longer.
    earlier_leases_end: Moment,
    /// Whether a task raises the ceiling.
    raising: AtomicBool,
    /// Whether a proof has shown that the state file is an older copy.
    is_older_copy: AtomicBool,
    /// Whether the locks are being exported.
    is_stopped: AtomicBool,
}

/// The files of a start, and what they say.
struct Opened {
    file: StateFile,
    /// The state of this start.
    state: State,
    /// The state before this start.
    before: State,
    earlier: Earlier,
    /// A moment at which no earlier start granted leases any more.
    now: Moment,
}

/// What the metrics show of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) held: usize,
    /// The leases that have expired so far.
    pub(crate) expired: u64,
    /// The rest of the recovery.
    pub(crate) recovery: Duration,
}

/// What is known of the locks of the earlier starts.
enum Earlier {
    /// There was none.
    None,
    /// All of them, by the export of a clean stop.
    Exported(Export),
    /// They may still run.
    Forgotten,
}

/// The exported locks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Export {
    last_token: u64,
    locks: Vec<ExportedLock>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedLock {
    name: String,
    owner: Uuid,
    token: FencingToken,
    /// The end of the lease in microseconds since boot.
    expires_us: u64,
    granted_us: u64,
    holder: String,
    meta: Option<String>,
    nonce: Option<Uuid>,
}

impl Host {
    /// Starts with the state of this file. Without a file, `is_new` says that no server has granted
    /// locks before.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a file that cannot be used.
    pub(crate) async fn start(
        path: &Path,
        is_new: bool,
        max_lease: Ttl,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        let path: PathBuf = path.to_owned();
        let of_start = Arc::clone(&clock);
        let longest = max_lease.duration();
        let opened = tokio::task::spawn_blocking(move || open(&path, is_new, longest, &*of_start));
        let Opened {
            file,
            state,
            before,
            earlier,
            now,
        } = opened.await.map_err(stopped)??;
        let crashed = matches!(earlier, Earlier::Forgotten);
        let earlier_leases_end = now + before.longest_lease();
        let wall = micros(unix_time(&*clock));
        let ahead = Duration::from_micros(before.ceiling.saturating_sub(wall));
        // Tokens that run ahead of the clock would fall when a name goes to another server.
        let clock_follows = now + ahead.min(MOST_AHEAD);
        let recovery = crashed.then(|| earlier_leases_end.max(clock_follows));
        let floor = if crashed { before.ceiling } else { 0 };
        let inner = Arc::clone(&clock);
        let tokens = Arc::new(TokenClock {
            clock: inner,
            floor,
        });
        let epoch = Epoch::new(format!("distlock-{}-{}", state.server, state.history));
        let memory = Memory::hosted(Arc::clone(&tokens) as Arc<dyn Clock>, epoch);
        let mut ceiling = Ceiling::new(state.ceiling, max_lease.duration());
        if let Earlier::Exported(export) = earlier {
            ceiling.note(export.last_token);
            memory.table().raise_tokens(export.last_token);
            for lock in export.locks {
                // Each name is exported once, so nothing stands in the way.
                let _ = memory.table().restore(now, &lock.read()?);
            }
        }
        let forced = state.forced.iter();
        let forced = forced.map(|it| ((it.name.clone(), it.token), earlier_leases_end));
        let forced = forced.collect();
        let host = Self {
            memory,
            tokens,
            prover: Prover::new(state.server, state.start, state.key.clone()),
            max_lease,
            file: Arc::new(file),
            state: tokio::sync::Mutex::new(state),
            ceiling: Mutex::new(ceiling),
            forced: Mutex::new(forced),
            recovery,
            earlier_leases_end,
            raising: AtomicBool::new(false),
            is_older_copy: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            clock,
        };
        if let Some(left) = host.recovery_left() {
            tracing::warn!(
                seconds = left.as_secs(),
                "locks of an earlier start may still be held: nobody new is granted one until \
                 their leases have ended (a server that has granted none starts with --init)"
            );
        }
        Ok(Arc::new(host))
    }

    /// A handle on the locks.
    pub(crate) fn lock(self: &Arc<Self>) -> Arc<dyn DistLock> {
        Arc::new(Recovering::new(self.memory.lock(), Arc::clone(self)))
    }

    /// The number of this start, which tells a client that its proofs may be needed.
    pub(crate) const fn start_number(&self) -> u64 {
        self.prover.start()
    }

    /// The identity of the server, the same for all starts with this state.
    pub(crate) const fn server_id(&self) -> Uuid {
        self.prover.server()
    }

    /// The proof of a lease that was granted or extended.
    pub(crate) fn prove(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        ttl: Duration,
    ) -> Vec<u8> {
        self.prover.prove(name, owner, token, ttl)
    }

    /// Restores a lease that an earlier start has granted, if its proof is good and the recovery
    /// lasts.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the proof shows that the state file is an older copy.
    pub(crate) fn restore(&self, lease: &Lease, proof: &[u8], holder: &HolderLabel) -> Result<()> {
        if proof.is_empty() {
            return Ok(());
        }
        let proven = match self.prover.check(proof, lease) {
            Ok(proven) => proven,
            Err(NotProven::Wrong) => return Ok(()),
            Err(NotProven::FromUnknownStart) => {
                if !self.is_older_copy.swap(true, Ordering::AcqRel) {
                    tracing::error!(
                        "the state file is an older copy, so no lock is granted any more: stop \
                         the server, and restore the newest file, or move the file away and start \
                         with a recovery"
                    );
                }
                return Err(older_copy());
            }
        };
        // After the recovery another owner may have held the lock. A ticket does not survive a
        // crash, so it is not restored as the lock of a guard.
        if lease.nonce.is_some() || self.recovery_left().is_none() {
            return Ok(());
        }
        let now = self.clock.now();
        let ends = now + proven.ttl.min(self.max_lease).duration();
        let (name, owner) = (lease.name.clone(), lease.owner);
        let mut held = HeldLock::new(name, owner, proven.token, ends, holder.clone());
        // The token is the time of the grant, unless it was raised.
        held.granted_micros = proven.token.get().min(self.token_wall());
        // Until the lock is restored, it cannot be force-released: a release between the two steps
        // would free nothing, and the lock would be held afterwards.
        let forced = self.forced.lock();
        // The proof may be from before a raise of the token that was force-released.
        let name = lease.name.as_str();
        if forced.keys().any(|it| it.0 == name && it.1 >= proven.token) {
            return Ok(());
        }
        self.note(proven.token);
        // If a higher token was proven before, the renewal that follows is answered as not held.
        let _ = self.memory.table().restore(now, &held);
        Ok(())
    }

    /// The rest of the recovery; `None` after its end.
    pub(crate) fn recovery_left(&self) -> Option<Duration> {
        let left = self.recovery?.since(self.clock.now());
        (!left.is_zero()).then_some(left)
    }

    /// What the metrics show now.
    pub(crate) fn observe(&self) -> Seen {
        let table = self.memory.table();
        Seen {
            held: table.rows(),
            expired: table.expired(),
            recovery: self.recovery_left().unwrap_or_default(),
        }
    }

    /// Limits the number of names with a lock.
    pub(crate) fn limit_names(&self, most: usize) {
        self.memory.table().limit_rows(most);
    }

    /// Sleeps for this time.
    pub(super) async fn sleep(&self, time: Duration) {
        self.clock.sleep(time).await;
    }

    /// Whether a lock may be granted to somebody new.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] during the recovery, and those of
    /// [`admit_token`](Self::admit_token).
    pub(super) async fn admit(self: &Arc<Self>) -> Result<()> {
        match self.recovery_left() {
            Some(left) => {
                meters::count_refusal("recovery");
                Err(recovering(left))
            }
            None => self.admit_token().await,
        }
    }

    /// Whether a token may be granted.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the ceiling cannot be raised, and [`ErrorKind::Corrupt`] if
    /// the state file is an older copy.
    pub(super) async fn admit_token(self: &Arc<Self>) -> Result<()> {
        if self.is_older_copy.load(Ordering::Acquire) {
            return Err(older_copy());
        }
        let wall = self.token_wall();
        let ceiling = *self.ceiling.lock();
        if !ceiling.admits(wall) {
            return self.raise(0).await;
        }
        // Raised ahead of time, so that no grant waits for the disk.
        if ceiling.is_due(wall) && !self.raising.swap(true, Ordering::AcqRel) {
            let host = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(error) = host.raise_now(0).await {
                    tracing::warn!(%error, "the ceiling of tokens was not raised");
                }
                host.raising.store(false, Ordering::Release);
            });
        }
        Ok(())
    }

    /// Checks that this lease holds its lock. The error is the reason of the loss.
    pub(super) fn check(&self, lease: &Lease) -> Result<(), LossReason> {
        self.memory.table().check(self.clock.now(), lease)
    }

    /// Whether a renewal may raise its token to this floor.
    ///
    /// # Errors
    /// As [`admit_token`](Self::admit_token), and [`ErrorKind::InvalidArgument`] for a floor that
    /// is too high.
    pub(super) async fn admit_floor(self: &Arc<Self>, floor: FencingToken) -> Result<()> {
        let highest = self.token_wall().saturating_add(micros(HIGHEST_FLOOR));
        if floor.get() > highest {
            let problem = format!(
                "a token is raised to at most {highest}, a year ahead of the server's clock, and \
                 {floor} is asked for"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, problem));
        }
        if self.ceiling.lock().admits_floor(floor.get()) {
            return Ok(());
        }
        self.raise(floor.get()).await
    }

    /// Notes a token that was granted, before anybody learns of it. A pause of the process between
    /// the check and the grant can have led to a token that is not below the ceiling.
    ///
    /// # Errors
    /// As [`admit_token`](Self::admit_token): the grant must be taken back.
    pub(super) async fn settle(self: &Arc<Self>, token: FencingToken) -> Result<()> {
        let is_covered = {
            let mut ceiling = self.ceiling.lock();
            ceiling.note(token.get());
            ceiling.covers(token.get())
        };
        if is_covered {
            return Ok(());
        }
        self.raise(token.get()).await
    }

    /// Notes a token that was granted, restored or raised.
    pub(super) fn note(&self, token: FencingToken) {
        self.ceiling.lock().note(token.get());
    }

    /// Stores that a lock is force-released, before it is. Afterwards no proof restores it.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the file cannot be written.
    pub(super) async fn note_forced(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
    ) -> Result<()> {
        let lock = ForcedLock {
            name: name.as_str().to_owned(),
            token,
        };
        let key = (lock.name.clone(), token);
        // No lease that has been granted until now runs longer.
        let now = self.clock.now();
        let ends = self.earlier_leases_end.max(now + self.max_lease.duration());
        let is_first = self.forced.lock().insert(key.clone(), ends).is_none();
        let stored = self.change(move |state| state.forced.push(lock)).await;
        if stored.is_err() && is_first {
            self.forced.lock().remove(&key);
        }
        stored
    }

    /// Whether what was changed before this call is in the export of the next stop.
    ///
    /// # Errors
    /// [`ErrorKind::OutcomeUnknown`] once the export has begun.
    pub(super) fn check_exported(&self) -> Result<()> {
        if self.is_stopped.load(Ordering::SeqCst) {
            let why = "the server has stopped meanwhile";
            return Err(Error::new(ErrorKind::OutcomeUnknown, why));
        }
        Ok(())
    }

    /// Exports the locks for the next start. Nothing may change them afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the files cannot be written: the next start then recovers.
    pub(crate) async fn stop(self: &Arc<Self>) -> Result<()> {
        self.is_stopped.store(true, Ordering::SeqCst);
        if self.recovery_left().is_some() || self.is_older_copy.load(Ordering::Acquire) {
            // The table lacks the locks whose holders have not renewed yet.
            tracing::warn!(
                "the server stops before its recovery has ended: the next start recovers"
            );
            return Ok(());
        }
        let (held, last_token) = self.memory.table().export(self.clock.now());
        let locks = held.iter().map(ExportedLock::new).collect();
        let export = serde_json::to_vec(&Export { last_token, locks });
        let export = export.map_err(|error| not_written(error.into()))?;
        let file = Arc::clone(&self.file);
        let written = tokio::task::spawn_blocking(move || {
            io::Result::Ok(CleanStop {
                boot: std::fs::read_to_string(BOOT)?.trim().to_owned(),
                place: file.place().to_owned(),
                digest: file.write_locks(&export)?,
            })
        });
        let clean = written.await.map_err(stopped)?.map_err(not_written)?;
        self.change(move |state| state.clean = Some(clean)).await
    }

    /// The clock of tokens, in microseconds.
    fn token_wall(&self) -> u64 {
        micros(unix_time(&*self.tokens))
    }

    /// Raises the ceiling. The task goes on if the caller is dropped: a write that is given up
    /// could reach the file after a later one.
    async fn raise(self: &Arc<Self>, floor: u64) -> Result<()> {
        let host = Arc::clone(self);
        let raised = tokio::spawn(async move { host.raise_now(floor).await });
        raised.await.map_err(stopped)?
    }

    async fn raise_now(&self, floor: u64) -> Result<()> {
        let mut state = self.state.lock().await;
        let wall = self.token_wall();
        let ceiling = *self.ceiling.lock();
        // Another task may have raised it while this one waited.
        if ceiling.admits(wall) && !ceiling.is_due(wall) && ceiling.admits_floor(floor) {
            return Ok(());
        }
        let wanted = ceiling.wanted(wall, floor);
        let mut next = state.clone();
        next.ceiling = next.ceiling.max(wanted);
        self.tidy(&mut next);
        self.write(&mut state, next).await?;
        self.ceiling.lock().raised(wanted);
        Ok(())
    }

    /// Changes the state durably, in a task that goes on if the caller is dropped.
    async fn change(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State) + Send + 'static,
    ) -> Result<()> {
        let host = Arc::clone(self);
        let changed = tokio::spawn(async move {
            let mut state = host.state.lock().await;
            let mut next = state.clone();
            host.tidy(&mut next);
            change(&mut next);
            host.write(&mut state, next).await
        });
        changed.await.map_err(stopped)?
    }

    /// Forgets what no lease needs any more.
    fn tidy(&self, state: &mut State) {
        let now = self.clock.now();
        let mut forced = self.forced.lock();
        forced.retain(|_, ends| *ends > now);
        state
            .forced
            .retain(|it| forced.contains_key(&(it.name.clone(), it.token)));
        drop(forced);
        if now >= self.earlier_leases_end {
            // Every lease was granted or extended by this start.
            state.set_longest_lease(self.max_lease.duration());
        }
    }

    async fn write(&self, state: &mut State, next: State) -> Result<()> {
        let (file, text) = (Arc::clone(&self.file), next.clone());
        let written = tokio::task::spawn_blocking(move || file.write(&text)).await;
        written.map_err(stopped)?.map_err(not_written)?;
        *state = next;
        Ok(())
    }
}

/// Opens the files, and stores this start in them.
fn open(path: &Path, is_new: bool, max_lease: Duration, clock: &dyn Clock) -> Result<Opened> {
    let file = StateFile::open(path)?;
    // After the lock on the file: an earlier start may have granted leases until just now.
    let now = clock.now();
    let (before, earlier) = match file.read()? {
        // The option may have stayed in a unit file.
        None if is_new && !file.was_used() => (State::new(max_lease), Earlier::None),
        // A container without its volume must not grant what its predecessor holds.
        None => (State::new(max_lease), Earlier::Forgotten),
        Some(state) => {
            let earlier = exported(&file, &state).map_or(Earlier::Forgotten, Earlier::Exported);
            (state, earlier)
        }
    };
    let mut state = before.clone();
    state.number_start();
    // Durably, before the first operation: a crash just afterwards must not read the old export.
    state.clean = None;
    if !matches!(earlier, Earlier::Exported(_)) {
        state.history += 1;
    }
    state.set_longest_lease(before.longest_lease().max(max_lease));
    // The ceiling stays: the first grant raises it. If each start raised it, a server that crashes
    // again and again in its recovery would recover for longer each time.
    let written = file.write(&state).and_then(|()| file.write_start(&state));
    written.map_err(|error| file.unwritable(error))?;
    Ok(Opened {
        file,
        state,
        before,
        earlier,
        now,
    })
}

/// The export of a clean stop at this place, in this boot of the machine.
fn exported(file: &StateFile, state: &State) -> Option<Export> {
    let clean = state.clean.as_ref()?;
    let boot = std::fs::read_to_string(BOOT).ok()?;
    if boot.trim() != clean.boot || !file.is_of_last_start(state) {
        return None;
    }
    if clean.place != file.place() {
        tracing::warn!(
            written_at = %clean.place,
            "the state file has been moved, or it is the file of another lock server: its locks \
             are not read"
        );
        return None;
    }
    serde_json::from_slice(&file.read_locks(&clean.digest)?).ok()
}

impl ExportedLock {
    fn new(held: &HeldLock) -> Self {
        Self {
            name: held.name.as_str().to_owned(),
            owner: *held.owner.as_uuid(),
            token: held.token,
            // Rounded up: the lease that the holder counts is not cut.
            expires_us: micros(held.expires.since_boot()) + 1,
            granted_us: held.granted_micros,
            holder: held.holder.as_str().to_owned(),
            meta: held.meta.as_ref().map(|it| it.as_str().to_owned()),
            nonce: held.nonce,
        }
    }

    fn read(self) -> Result<HeldLock> {
        let mut held = HeldLock::new(
            LockName::new(self.name)?,
            OwnerId::from_uuid(self.owner),
            self.token,
            Moment::from_boot(Duration::from_micros(self.expires_us)),
            HolderLabel::new(self.holder)?,
        );
        held.granted_micros = self.granted_us;
        held.meta = self.meta.map(Meta::new).transpose()?;
        held.nonce = self.nonce;
        Ok(held)
    }
}

/// The error of an operation that the recovery does not allow.
pub(super) fn recovering(left: Duration) -> Error {
    let seconds = left.as_secs() + 1;
    let problem = format!(
        "the server has started again and waits until the leases that it may have forgotten have \
         ended: try again in {seconds} s"
    );
    Error::new(ErrorKind::Unavailable, problem).retry_in(left)
}

fn older_copy() -> Error {
    let problem = "the state file of the server is an older copy: a later start of the server has \
                   granted leases that it does not know";
    Error::new(ErrorKind::Corrupt, problem)
}

fn not_written(error: io::Error) -> Error {
    let problem = "the state file cannot be written, so no lock is granted";
    Error::new(ErrorKind::LimitExceeded, problem)
        .passing()
        .caused_by(error)
}

fn stopped(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, "the server stops").caused_by(error)
}

/// Whether this server could start with the state of this file, which stays as it is.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a file that is no state, and for a missing folder.
pub(crate) async fn check(path: &Path) -> Result<()> {
    let path = path.to_owned();
    let checked = tokio::task::spawn_blocking(move || StateFile::check(&path));
    checked.await.map_err(stopped)?
}
