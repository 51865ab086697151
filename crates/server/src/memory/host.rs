//! The hosted table: its start, its ceiling, its proofs, and its stop.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    Clock, DistLock, Epoch, Error, ErrorKind, FencingToken, HolderLabel, Lease, LockName, Meta,
    Moment, OwnerId, Result, Ttl, micros, sync::Mutex, unix_time,
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

/// The boot of this machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

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
    /// The force-released locks that no proof restores.
    forced: Mutex<HashSet<(String, FencingToken)>>,
    recovery: Option<Recovery>,
    /// Whether a task raises the ceiling.
    raising: AtomicBool,
}

/// The time after a crash in which nobody new is granted a lock.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// No lease of an earlier start runs longer.
    until: Moment,
    /// The clock must have passed the highest token of the earlier starts.
    ceiling: u64,
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
        let now = clock.now();
        let wall = micros(unix_time(&*clock));
        let opened =
            tokio::task::spawn_blocking(move || open(&path, is_new, max_lease.duration(), wall));
        let (file, state, earlier, before) = opened.await.map_err(stopped)??;
        let crashed = matches!(earlier, Earlier::Forgotten);
        let recovery = crashed.then(|| Recovery {
            until: now + before.longest_lease(),
            ceiling: before.ceiling,
        });
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
        let forced = forced.map(|it| (it.name.clone(), it.token)).collect();
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
            raising: AtomicBool::new(false),
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
        // After the recovery another owner may have held the lock. A ticket does not survive a
        // crash, so it is not restored as the lock of a guard.
        if proof.is_empty() || lease.nonce.is_some() || self.recovery_left().is_none() {
            return Ok(());
        }
        let proven = match self.prover.check(proof, lease) {
            Ok(proven) => proven,
            Err(NotProven::Wrong) => return Ok(()),
            Err(NotProven::FromLaterStart) => {
                let problem = "the state file of the server is an older copy: a later start of \
                               the server has granted this lease";
                return Err(Error::new(ErrorKind::Corrupt, problem));
            }
        };
        let forced = (lease.name.as_str().to_owned(), proven.token);
        if self.forced.lock().contains(&forced) {
            return Ok(());
        }
        let now = self.clock.now();
        let ends = now + proven.ttl.min(self.max_lease).duration();
        let (name, owner) = (lease.name.clone(), lease.owner);
        let held = HeldLock::new(name, owner, proven.token, ends, holder.clone());
        self.note(proven.token);
        // If a higher token was proven before, the renewal that follows is answered as not held.
        let _ = self.memory.table().restore(now, &held);
        Ok(())
    }

    /// The rest of the recovery; `None` after its end.
    pub(crate) fn recovery_left(&self) -> Option<Duration> {
        let Recovery { until, ceiling } = self.recovery?;
        let wall = micros(unix_time(&*self.clock));
        let left = until.since(self.clock.now());
        let left = left.max(Duration::from_micros(ceiling.saturating_sub(wall)));
        (!left.is_zero()).then_some(left)
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
            Some(left) => Err(recovering(left)),
            None => self.admit_token().await,
        }
    }

    /// Whether a token may be granted.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the ceiling cannot be raised.
    pub(super) async fn admit_token(self: &Arc<Self>) -> Result<()> {
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

    /// Whether a renewal may raise its token to this floor.
    ///
    /// # Errors
    /// As [`admit_token`](Self::admit_token).
    pub(super) async fn admit_floor(self: &Arc<Self>, floor: FencingToken) -> Result<()> {
        if self.ceiling.lock().admits_floor(floor.get()) {
            return Ok(());
        }
        self.raise(floor.get()).await
    }

    /// Notes a token that was granted, restored or raised.
    pub(super) fn note(&self, token: FencingToken) {
        self.ceiling.lock().note(token.get());
    }

    /// Stores that a lock is force-released, before it is. Afterwards no proof restores it.
    pub(super) async fn note_forced(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
    ) -> Result<()> {
        let lock = ForcedLock {
            name: name.as_str().to_owned(),
            token,
            at_ms: micros(unix_time(&*self.clock)) / 1000,
        };
        let forced = (lock.name.clone(), token);
        self.change(move |state| state.forced.push(lock)).await?;
        self.forced.lock().insert(forced);
        Ok(())
    }

    /// Exports the locks for the next start. Nothing may change them afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the files cannot be written: the next start then recovers.
    pub(crate) async fn stop(self: &Arc<Self>) -> Result<()> {
        let (held, last_token) = self.memory.table().export(self.clock.now());
        let locks = held.iter().map(ExportedLock::new).collect();
        let export = serde_json::to_vec(&Export { last_token, locks });
        let export = export.map_err(|error| not_written(error.into()))?;
        let file = Arc::clone(&self.file);
        let written = tokio::task::spawn_blocking(move || {
            let boot = std::fs::read_to_string(BOOT)?;
            io::Result::Ok((boot.trim().to_owned(), file.write_locks(&export)?))
        });
        let (boot, digest) = written.await.map_err(stopped)?.map_err(not_written)?;
        let clean = CleanStop { boot, digest };
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
        state.forget_forced(micros(unix_time(&*self.clock)) / 1000);
        // After the recovery every lease was granted or extended by this start.
        if self.recovery.is_some() && self.recovery_left().is_none() {
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

/// Opens the file, and stores this start in it. Returns the state of this start, what is known of
/// the earlier ones, and the state before this start.
fn open(
    path: &Path,
    is_new: bool,
    max_lease: Duration,
    wall: u64,
) -> Result<(StateFile, State, Earlier, State)> {
    let file = StateFile::open(path)?;
    let (before, earlier) = match file.read()? {
        None if is_new => (State::new(max_lease), Earlier::None),
        // A container without its volume must not grant what its predecessor holds.
        None => (State::new(max_lease), Earlier::Forgotten),
        Some(state) => {
            let earlier = exported(&file, &state).map_or(Earlier::Forgotten, Earlier::Exported);
            (state, earlier)
        }
    };
    let mut state = before.clone();
    state.start += 1;
    // Durably, before the first operation: a crash just afterwards must not read the old export.
    state.clean = None;
    if !matches!(earlier, Earlier::Exported(_)) {
        state.history += 1;
    }
    state.set_longest_lease(before.longest_lease().max(max_lease));
    let ceiling = Ceiling::new(before.ceiling, max_lease);
    let start = match &earlier {
        Earlier::Forgotten => wall.max(before.ceiling),
        Earlier::Exported(export) => wall.max(export.last_token),
        Earlier::None => wall,
    };
    state.ceiling = state.ceiling.max(ceiling.wanted(start, 0));
    file.write(&state).map_err(not_written)?;
    Ok((file, state, earlier, before))
}

/// The export of a clean stop in this boot of the machine.
fn exported(file: &StateFile, state: &State) -> Option<Export> {
    let clean = state.clean.as_ref()?;
    let boot = std::fs::read_to_string(BOOT).ok()?;
    let locks = file
        .read_locks(&clean.digest)
        .filter(|_| boot.trim() == clean.boot)?;
    serde_json::from_slice(&locks).ok()
}

impl ExportedLock {
    fn new(held: &HeldLock) -> Self {
        Self {
            name: held.name.as_str().to_owned(),
            owner: *held.owner.as_uuid(),
            token: held.token,
            expires_us: micros(held.expires.since_boot()),
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

fn not_written(error: io::Error) -> Error {
    let problem = "the state file cannot be written, so no lock is granted";
    Error::new(ErrorKind::LimitExceeded, problem)
        .passing()
        .caused_by(error)
}

fn stopped(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, "the server stops").caused_by(error)
}
