//! `distlock run`: holds a lock while a command runs.

use std::{convert::Infallible, ffi::OsString, future, pin::pin, time::Duration};

use clap::Args;
use distlock::{
    Clock, Error, ErrorKind, Guard, HolderLabel, LockName, Locker, Moment, Released, Store,
};
use distlock_recipes::{
    Due, Periodic,
    shared::{
        self as shared_locks, RwLock, Semaphore, SharedBuilder, SharedGuard, SharedInfo, SharedKind,
    },
};
use rustix::process::Signal;

use crate::{
    advice::Advice,
    context::{Context, Sharing},
    drivers,
    exit::{Failure, Outcome, code, code_of_signal},
    group::Signals,
    held::Taken,
    output::{self, describe_holder},
    shared::describe_shared,
    systemd::{self, ReadyOption},
    textfile::{Textfile, TextfileOption},
    values::{self, Permits},
};

mod command;
mod kept_watchdog;
mod supervise;

pub(super) use command::{
    Supervised, check_kill_after, code_of_status, command_with_lock, start_failure,
};
pub(crate) use command::{WITH_OWN_PID, become_command};
pub(super) use supervise::End;

use command::find_program;

/// Run a command while holding a lock.
///
/// The lock is renewed while the command runs and released when the command and everything in its
/// process group has ended. What is left running in the group when the command ends is terminated.
/// TERM, INT, HUP, QUIT, USR1, USR2, ALRM, VTALRM, PROF, IO, PWR, SYS and STKFLT are passed on,
/// except those that were ignored from the start, as under nohup. XCPU and the real-time signals
/// become TERM.
///
/// If the lock cannot be kept, the whole process group gets TERM shortly before the lease expires
/// and KILL no later than when it does; if the lock is gone already (released by force, say), KILL
/// at once. The exit code is then 76. A watchdog process does it where this one cannot: when this
/// one was killed, the command gets TERM at once and KILL when the lease expires; when it was
/// stopped, KILL. A command that ended by itself while the lock was held has succeeded, also when
/// the store does not confirm the release.
///
/// A command that changes its user (sudo, a set-user-ID program) refuses the signals of a process
/// without privileges. When the lock is lost, what may still run is named, and the exit code is 76
/// all the same. Use sudo distlock run .. -- CMD, not distlock run .. -- sudo CMD.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = "distlock run [OPTIONS] <NAME> -- <CMD>...")]
pub(crate) struct Run {
    /// The lock; one that starts with - comes after a -- of its own, as in run -- -x -- CMD
    #[arg(value_name = "NAME")]
    name: Option<OsString>,
    /// How long the lock outlives this process if it dies; renewed at a third of it
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = values::parse_duration,
        allow_hyphen_values = true,
    )]
    ttl: Duration,
    /// How long to wait while the lock is busy; 0 tries once [default: for ever; with --every, 0]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::parse_wait,
        allow_hyphen_values = true
    )]
    wait: Option<Duration>,
    /// Do not wait: the same as --wait 0
    #[arg(short = 'n', long, conflicts_with = "wait")]
    no_wait: bool,
    /// End with 69 after a few tries when the store cannot be reached, instead of waiting for it as
    /// for the lock
    #[arg(long, conflicts_with_all = ["read", "write", "permits"])]
    give_up_when_unreachable: bool,
    /// Exit code when the lock is busy, without --every
    #[arg(
        short = 'E',
        long,
        value_name = "CODE",
        default_value_t = code::BUSY,
        value_parser = values::parse_exit_code,
        allow_hyphen_values = true,
    )]
    busy_exit_code: u8,
    /// Hold the lock together with other readers; see also --write. A lock of readers and writers,
    /// a semaphore and a plain lock of the same name are three locks
    #[arg(long, conflicts_with_all = ["write", "permits"])]
    read: bool,
    /// Hold the lock alone, without readers and other writers
    #[arg(long, conflicts_with = "permits")]
    write: bool,
    /// Take K of the N permits of the semaphore NAME; all callers must name the same N. The numbers
    /// of the permits, from 0, are in DISTLOCK_INDICES
    #[arg(long, value_name = "K/N", value_parser = values::parse_permits)]
    permits: Option<Permits>,
    /// Processes that pass --fair get the lock in the order in which they came; --read, --write and
    /// --permits always keep it. Not on kv+ and quorum: stores
    #[arg(long, conflicts_with_all = ["read", "write", "permits"])]
    fair: bool,
    /// Label that others see [default: user@host:pid]
    #[arg(long, value_name = "LABEL")]
    holder: Option<String>,
    /// Free text kept beside the lock
    #[arg(long, value_name = "TEXT")]
    meta: Option<String>,
    /// Keep the lock at least this long, also when the command ends sooner; on ZooKeeper this
    /// process then stays until the end, because its locks end with it
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "0s",
        hide_default_value = true,
        value_parser = values::parse_duration,
        allow_hyphen_values = true,
        conflicts_with_all = ["read", "write", "permits"],
    )]
    min_hold: Duration,
    /// Time between TERM and KILL when the lock cannot be kept [default: 5s, but at most a quarter
    /// of the TTL]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::parse_duration,
        allow_hyphen_values = true
    )]
    kill_after: Option<Duration>,
    /// Run the command once per period, on whichever host comes first: starts are at least nine
    /// tenths of it apart, by the store's clock. The store must be named
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::parse_duration,
        allow_hyphen_values = true,
        conflicts_with_all = ["busy_exit_code", "min_hold", "read", "write", "permits"],
    )]
    every: Option<Duration>,
    /// Exit code when --every has the command not run: it was started in this period, or the lock
    /// is busy
    #[arg(
        long,
        value_name = "CODE",
        requires = "every",
        default_value_t = 0,
        value_parser = values::parse_exit_code,
        allow_hyphen_values = true,
    )]
    every_exit_code: u8,
    /// With --every: a command that failed, or whose host died, is run again within the period
    #[arg(long, requires = "every")]
    retry_failed: bool,
    #[command(flatten)]
    metrics: TextfileOption,
    #[command(flatten)]
    systemd: ReadyOption,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Environment of the command:
  DISTLOCK_NAME, DISTLOCK_TOKEN (the fencing token), DISTLOCK_HOLDER, and with
  --permits DISTLOCK_INDICES (which permits, as in 0,3);
  DISTLOCK_BACKEND and every other DISTLOCK_ variable is removed: distlock
  inside of the command needs a --backend or --config of its own

Exit codes:
  the command's own; 128 + the signal's number if one ended it; 126 and 127 as
  in a shell; 75 (or -E) busy; 76 the lock was lost and the command was killed

Examples:
  distlock run nightly -- ./backup.sh
  distlock run nightly --ttl 5s -n -- sh -c 'echo \"token $DISTLOCK_TOKEN\"'
  distlock run nightly --wait 10m -E 0 -- ./backup.sh
  distlock run --read catalogue -- ./serve.sh       (many at once)
  distlock run --write catalogue -- ./rebuild.sh    (no reader meanwhile)
  distlock run --permits 1/8 renderers -- ./render.sh
  distlock run report --every 1h --backend redis://locks.example -- ./report.sh
                                                    (cron on several hosts)";

/// A wait shorter than this is not announced.
const SILENT_WAIT: Duration = Duration::from_secs(1);
/// The pause between two looks at who holds a lock that is waited for. Each is a request to the
/// store.
const STATUS_PAUSE: Duration = Duration::from_secs(10);
/// The longest wait, after a signal, for the answer to the record of a start.
const BEGINNING: Duration = Duration::from_secs(5);

/// A command that runs once per period.
struct Period {
    periodic: Periodic,
    every: Duration,
}

/// The decision whether this process runs the command.
enum Decision {
    Run(Taken),
    /// The command is not run by this process, for this reason.
    Skip(String),
    /// This signal asked this process to end before the command was started.
    Stopped(Signal),
}

impl Decision {
    /// The job was started before within the period.
    fn already_started(name: &LockName, ago: Duration) -> Self {
        let ago = Duration::from_millis(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX));
        Self::Skip(format!("{name:?} was started {ago:?} ago"))
    }
}

impl Period {
    /// Records the start of the job while the lock is held. Releases the lock if the job does not
    /// start.
    async fn begin(
        &self,
        guard: Guard,
        signals: &mut Signals,
        clock: &dyn Clock,
    ) -> distlock::Result<Decision> {
        let decision = {
            let name = guard.name();
            let mut begin = pin!(self.periodic.begin(&guard, self.every));
            tokio::select! {
                biased;
                begun = &mut begin => begun.map(|due| match due {
                    Due::Now => None,
                    Due::Later { started } => Some(Decision::already_started(name, started)),
                }),
                signal = signals.next_ending() => {
                    // A request in flight could reach the store after the start was taken back, so
                    // its answer comes first.
                    tokio::select! {
                        _ = &mut begin => {}
                        () = clock.sleep(BEGINNING) => {}
                    }
                    self.take_back(&guard).await;
                    Ok(Some(Decision::Stopped(signal)))
                }
            }
        };
        let skip = match decision {
            Ok(None) => return Ok(Decision::Run(Taken::Alone(guard))),
            Ok(Some(skip)) => Ok(skip),
            Err(error) => Err(error),
        };
        let _ = guard.release().await;
        skip
    }

    /// Takes the recorded start back after no part of the command has run, so that another host
    /// can run the command in this period.
    async fn take_back(&self, guard: &Guard) {
        if let Err(error) = self.periodic.not_started(guard).await {
            output::print_message(format_args!(
                "warning: {:?} was not started, and may be on record as started, so that no host \
                 runs it in this period: {error}",
                guard.name()
            ));
        }
    }
}

impl Run {
    /// Takes the name of the lock from the words after `--`, unless the name is before them. Clap
    /// counts everything after the first `--` as the command, but a name that starts with `-` needs
    /// a `--` before the name.
    fn take_name(&mut self) -> Result<OsString, Failure> {
        if let Some(name) = self.name.take() {
            return Ok(name);
        }
        match &mut *self.command {
            [name, dashes, _, ..] if dashes == "--" => {
                let name = std::mem::take(name);
                self.command.drain(..2);
                Ok(name)
            }
            _ => Err(Failure::usage(
                "NAME is missing: distlock run [OPTIONS] <NAME> -- <CMD>...",
            )),
        }
    }

    pub(crate) async fn execute(mut self, context: &Context) -> Outcome {
        let name = values::parse_lock_name(&self.take_name()?)?;
        check_kill_after(self.kill_after, self.ttl)?;
        let mut textfile = Textfile::new(&self.metrics, "run", &name);
        let outcome = self.open_and_run(context, &name, &mut textfile).await;
        textfile.ended(outcome.as_ref().copied()).await;
        outcome
    }

    /// Opens the store, runs the command and closes the store.
    async fn open_and_run(
        &self,
        context: &Context,
        name: &LockName,
        textfile: &mut Textfile,
    ) -> Outcome {
        let sharing = if self.every.is_some() {
            // A host that lacks the command must not take the period from the other hosts, and must
            // not hold the lock at the moment at which they look for it.
            let program = &self.command[0];
            find_program(program).map_err(|error| start_failure(program, &error))?;
            Sharing::Hosts("run --every")
        } else {
            // Without a period the command may appear while this process waits for the lock.
            Sharing::Locks
        };
        // Signals are caught before a lock is held, so that no signal skips the release.
        let mut signals = Signals::catch()?;
        let opening = async {
            // The starts of a job and the holders of a shared lock are on record.
            if self.every.is_some() || self.is_shared() {
                context.open(sharing).await
            } else {
                context.open_locks(sharing).await
            }
        };
        let store = tokio::select! {
            store = opening => store?,
            signal = signals.next_ending() => return Ok(code_of_signal(signal.as_raw())),
        };
        let outcome = self.run_on(&store, name, &mut signals, textfile).await;
        // On such a store the close waits for the end of a minimum hold. Without an outcome of the
        // command the lock was not taken.
        let session = store.locker().capabilities().session_timeout;
        let session = session.filter(|_| !self.min_hold.is_zero() && outcome.is_ok());
        // A service that stops has little time, and must not lose its minimum hold by that.
        if session.is_none() {
            systemd::notify_stopping();
        }
        tokio::select! {
            () = drivers::close(&store) => {}
            // The command has ended, so the signal is for this process.
            _ = signals.next_ending(), if session.is_some() => output::print_message(format_args!(
                "stopped before the end of --min-hold: {name:?} is free at the latest after {:?}",
                session.unwrap_or_default()
            )),
        }
        outcome
    }

    /// Takes the lock, runs the command under it, and releases the lock.
    async fn run_on(
        &self,
        store: &Store,
        name: &LockName,
        signals: &mut Signals,
        textfile: &mut Textfile,
    ) -> Outcome {
        let locker = store.locker();
        let period = self
            .every
            .map(|every| self.period(store, every))
            .transpose()?;
        let holder = match &self.holder {
            Some(holder) => values::parse_holder(holder)?,
            None => HolderLabel::of_this_process(),
        };
        self.systemd.notify_waiting(name);
        let taken = tokio::select! {
            taken = self.take(store, period.as_ref(), name, &holder) => taken,
            signal = signals.next_ending() => Ok(Decision::Stopped(signal)),
        };
        let decision = match (taken, &period) {
            (Ok(Decision::Run(Taken::Alone(guard))), Some(period)) => {
                period.begin(guard, signals, &*locker.clock()).await
            }
            (taken, _) => taken,
        };
        let guard = match decision {
            Ok(Decision::Run(guard)) => guard,
            Ok(Decision::Stopped(signal)) => {
                output::print_message(format_args!("stopped waiting for {name:?}"));
                return Ok(code_of_signal(signal.as_raw()));
            }
            Ok(Decision::Skip(why)) => {
                output::print_message(format_args!("not run: {why}"));
                textfile.not_due();
                return Ok(self.every_exit_code);
            }
            Err(error) if error.kind() == ErrorKind::Timeout => {
                let mut busy = Failure::from(error);
                busy.code = self.busy_exit_code;
                return Err(busy);
            }
            Err(error) => return Err(self.refusal(store, name, error).await),
        };
        let taken_at = locker.clock().now();
        // Before the command, because nothing may delay its supervision.
        textfile.started().await;
        self.systemd.notify_held(guard.held());

        let supervised = Supervised {
            command: &self.command,
            holder: &holder,
            kill_after: self.kill_after,
        };
        let clock = locker.clock();
        // A job that runs once per period has its lock alone.
        let of_period = period.as_ref().zip(guard.alone());
        let end = match (supervised.start(guard.held(), &*clock), of_period) {
            (Ok(running), _) => running.watch(signals).await,
            (Err(failure), Some((period, guard))) => {
                period.take_back(guard).await;
                Err(failure)
            }
            (Err(failure), None) => Err(failure),
        };
        textfile.command_ended();
        match (of_period, &end) {
            (Some((period, guard)), Ok(End::ByItself { status, .. })) if status.success() => {
                if let Err(error) = period.periodic.succeeded(guard).await {
                    output::print_message(format_args!(
                        "warning: the success of {name:?} could not be recorded: {error}"
                    ));
                }
            }
            (Some((period, guard)), Ok(End::ByItself { .. })) => {
                period.periodic.failed(guard).await;
            }
            _ => {}
        }
        let released = guard.release().await;
        let now = locker.clock().now();
        let kept_for = (taken_at + self.min_hold).since(now);
        if released.is_clean()
            && locker.capabilities().session_timeout.is_some()
            && kept_for > SILENT_WAIT
        {
            let seconds = kept_for.as_secs();
            output::print_message(format_args!(
                "{name:?} is kept for {seconds}s more (--min-hold), and this process with it"
            ));
        }
        outcome_of(name, end, &released, now, textfile)
    }

    /// Prepares the record of the starts of a job.
    fn period(&self, store: &Store, every: Duration) -> distlock::Result<Period> {
        let mut periodic = Periodic::new(store)?;
        if self.retry_failed {
            periodic = periodic.retry_failed();
        }
        Ok(Period { periodic, every })
    }

    /// The failure when the lock was refused. It names the command that changes the number of
    /// permits, if another number than that of this call is on record.
    async fn refusal(&self, store: &Store, name: &LockName, error: Error) -> Failure {
        let is_wrong = error.kind() == ErrorKind::InvalidArgument;
        let mut failure = Failure::from(error);
        let Some(Permits { count, capacity }) = self.permits.filter(|_| is_wrong) else {
            return failure;
        };
        let is_other = |it: &SharedInfo| match it.kind {
            SharedKind::Semaphore {
                capacity: stored, ..
            } => stored != capacity,
            _ => false,
        };
        // A wish that no semaphore of this number could meet has an error of its own.
        if Semaphore::new(store, name.as_str(), capacity).is_ok()
            && (1..=capacity).contains(&count)
            && let Ok(found) = shared_locks::inspect(store, name.as_str()).await
            && found.iter().any(is_other)
        {
            failure.advice = Some(Advice::to_resize(name.clone(), capacity));
        }
        failure
    }

    /// Whether others may hold the lock at the same time.
    const fn is_shared(&self) -> bool {
        self.read || self.write || self.permits.is_some()
    }

    /// Takes the lock as the options say.
    async fn take(
        &self,
        store: &Store,
        period: Option<&Period>,
        name: &LockName,
        holder: &HolderLabel,
    ) -> distlock::Result<Decision> {
        let wanted = if let Some(Permits { count, capacity }) = self.permits {
            Semaphore::new(store, name.as_str(), capacity)?.permits(count)
        } else if self.read {
            RwLock::new(store, name.as_str())?.read()
        } else if self.write {
            RwLock::new(store, name.as_str())?.write()
        } else {
            return self
                .acquire_if_due(period, &store.locker(), name, holder)
                .await;
        };
        let guard = self.acquire_shared(wanted, store, name, holder).await?;
        Ok(Decision::Run(Taken::Shared(guard)))
    }

    /// Waits for a shared lock. Prints its holders when the wait takes longer than a moment.
    async fn acquire_shared(
        &self,
        wanted: SharedBuilder,
        store: &Store,
        name: &LockName,
        holder: &HolderLabel,
    ) -> distlock::Result<SharedGuard> {
        let mut wanted = wanted.ttl(self.ttl).holder(holder.as_str());
        wanted = match self.wait {
            Some(wait) => wanted.wait(wait),
            None if self.no_wait => wanted.wait(Duration::ZERO),
            None => wanted.wait_forever(),
        };
        if let Some(meta) = &self.meta {
            wanted = wanted.meta(meta);
        }
        let describe = async || match shared_locks::inspect(store, name.as_str()).await {
            Ok(found) => {
                let described = found.iter().map(describe_shared);
                let is_semaphore = self.permits.is_some();
                let shown = described.filter(|it| it.is_semaphore == is_semaphore);
                let shown = shown.map(|it| it.holders).next();
                let shown = shown.unwrap_or_else(|| "nobody holds it".to_owned());
                format!("waiting for {name:?}: {shown}")
            }
            Err(error) => format!("waiting for {name:?}: {error}"),
        };
        let clock = store.clock();
        tokio::select! {
            taken = wanted.acquire() => taken,
            never = follow_wait(&*clock, describe, |says| output::print_message(says)) => {
                match never {}
            }
        }
    }

    /// Acquires the lock, with a period only if the job is due. [`Decision::Skip`] means that the
    /// job is not due, or that another process holds the lock.
    async fn acquire_if_due(
        &self,
        period: Option<&Period>,
        locker: &Locker,
        name: &LockName,
        holder: &HolderLabel,
    ) -> distlock::Result<Decision> {
        let Some(Period { periodic, every }) = period else {
            let guard = self.acquire(locker, name, holder).await?;
            return Ok(Decision::Run(Taken::Alone(guard)));
        };
        match periodic.due(name, *every).await {
            Ok(Due::Later { started }) => return Ok(Decision::already_started(name, started)),
            Ok(Due::Now) => {}
            // The period is checked again under the lock, and the cause of this error may have
            // ended when the lock is granted.
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
        match self.acquire(locker, name, holder).await {
            Err(error) if error.kind() == ErrorKind::Timeout => {
                Ok(Decision::Skip(Failure::from(error).to_string()))
            }
            taken => taken.map(|guard| Decision::Run(Taken::Alone(guard))),
        }
    }

    /// Waits for the lock. Prints its holder when the wait takes longer than a moment.
    async fn acquire(
        &self,
        locker: &Locker,
        name: &LockName,
        holder: &HolderLabel,
    ) -> distlock::Result<Guard> {
        let mut request = locker
            .lock(name)
            .ttl(self.ttl)
            .min_hold(self.min_hold)
            .holder(holder.as_str());
        request = match self.wait {
            Some(wait) => request.wait(wait),
            None if self.no_wait || self.every.is_some() => request.wait(Duration::ZERO),
            None => request.wait_forever(),
        };
        if let Some(meta) = &self.meta {
            request = request.meta(meta);
        }
        if self.fair {
            request = request.fair();
        }
        if self.give_up_when_unreachable {
            request = request.give_up_when_unreachable();
        }
        let clock = locker.clock();
        let describe = async || describe_wait(locker, name).await;
        tokio::select! {
            taken = request.acquire() => taken,
            never = follow_wait(&*clock, describe, |says| output::print_message(says)) => {
                match never {}
            }
        }
    }
}

/// Announces once who holds the lock that is waited for, when the wait takes longer than a moment,
/// and keeps systemd informed.
pub(super) async fn follow_wait(
    clock: &dyn Clock,
    describe: impl AsyncFn() -> String,
    announce: impl FnOnce(&str),
) -> Infallible {
    clock.sleep(SILENT_WAIT).await;
    let mut says = describe().await;
    announce(&says);
    while systemd::wants_notifications() {
        systemd::notify_status(&says);
        clock.sleep(STATUS_PAUSE).await;
        says = describe().await;
    }
    future::pending().await
}

/// Describes a wait: the lock, and who holds it.
pub(super) async fn describe_wait(locker: &Locker, name: &LockName) -> String {
    match locker.inspect(name).await {
        Ok(info) => match &info.held {
            Some(held) => format!("waiting for {name:?}: {}", describe_holder(held)),
            None => format!(
                "waiting for {name:?}, which nobody holds; `distlock doctor` checks the store"
            ),
        },
        Err(error) => format!("waiting for {name:?}: {error}"),
    }
}

/// Turns the end of the command and the release of its lock into the exit code. `now` is the time
/// after the release.
fn outcome_of(
    name: &LockName,
    end: Outcome<End>,
    released: &Released,
    now: Moment,
    textfile: &mut Textfile,
) -> Outcome {
    match (end, released) {
        // The store gave the lock to another holder while the lease had time left, and no renewal
        // had noticed it yet. The command went on, and two holders may have existed meanwhile.
        (Ok(End::ByItself { held_until, .. }), Released::AlreadyLost(reason))
            if now < held_until =>
        {
            output::print_message(format_args!(
                "{name:?} was lost while the command ran, which was not stopped: {reason}"
            ));
            textfile.lost();
            Ok(code::LOST)
        }
        // A lease belongs to its holder alone until its deadline. Here the lease expired after the
        // end of the command, because no release reached the store. The work of the command was
        // safe.
        (Ok(End::ByItself { status, .. }), Released::AlreadyLost(reason)) => {
            output::print_message(format_args!(
                "warning: {name:?} could not be released and has ended by itself, after the \
                 command had: {reason}"
            ));
            Ok(code_of_status(status))
        }
        (Ok(End::ByItself { status, .. }), _) => Ok(code_of_status(status)),
        (Ok(End::LockLost { .. }), _) => {
            textfile.lost();
            Ok(code::LOST)
        }
        (Err(failure), _) => Err(failure),
    }
}
