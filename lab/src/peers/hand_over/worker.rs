//! One of the processes that compete for the lock.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use distlock_core::{
    Clock as _, ErrorKind, Guard, LockBuilder, Moment, Released, Store, SystemClock,
};
use distlock_recipes::shared::{RwLock, Semaphore, SharedBuilder, SharedGuard};
use distlock_report::hold_for;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines, Stdin},
    task::JoinSet,
};

use super::raw::open_store;

const NAME: &str = "bench:passed-on";

/// Time between the start of the tasks and the first counted grant, so that all tasks wait for the
/// lock by then.
const UNCOUNTED_TIME: Duration = Duration::from_secs(2);

/// Time for which the tasks continue after the counted time. The requests that end the waits come
/// later and must not be counted.
const EXTRA_TIME: Duration = Duration::from_millis(300);

/// The number of permits.
const CAPACITY: u32 = 1_000;

/// How the processes take the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// The lock itself
    Exclusive,
    /// The lock itself, in the order of arrival
    Fair,
    /// As writers
    Write,
    /// As readers, which hold it together
    Read,
    /// One of 1,000 permits
    Permits,
    /// The first process as a writer, the others as readers, with pauses; beside the lock itself
    ReadWrite,
}

impl Mode {
    /// Returns the mode of one of the processes.
    pub(super) const fn of_process(self, at: usize) -> Self {
        match (self, at) {
            (Self::ReadWrite, 0) => Self::Write,
            (Self::ReadWrite, _) => Self::Read,
            _ => self,
        }
    }

    /// Tells whether a holder shares the lock with others.
    pub(super) const fn is_shared(self) -> bool {
        matches!(self, Self::Read | Self::Permits)
    }

    /// Returns the name of the mode on the command line.
    pub(super) fn key(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |it| it.get_name().to_owned())
    }
}

/// The main function of one process. The process reads the server's URL from its input, connects,
/// and prints `ready`. Then the process reads the counted time in milliseconds, the number of
/// tasks, the times in microseconds for which each task holds the lock and pauses, and its mode. At
/// the end the process prints the number of its requests, and the times in which it held the lock.
pub(crate) async fn run_worker() -> anyhow::Result<()> {
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let url = next_line(&mut input).await?;
    let store = open_store(&url).await?;
    store.ready().await?;
    let backend = store.backend();
    let sent = || {
        let sent = backend.requests_sent();
        sent.context("the store does not count its requests")
    };
    println!("ready");
    let order = next_line(&mut input).await?;
    let (numbers, mode) = order.rsplit_once(' ').context("numbers and a mode")?;
    let numbers: Vec<u64> = numbers
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .context("four numbers")?;
    let &[time, tasks, hold, pause] = numbers.as_slice() else {
        bail!("not four numbers: {order:?}");
    };
    let times = (Duration::from_micros(hold), Duration::from_micros(pause));
    let mode = Mode::from_str(mode, false).map_err(anyhow::Error::msg)?;
    let wanted = Wanted::new(&store, mode)?;
    let counted_from = SystemClock.now() + UNCOUNTED_TIME;
    let until = counted_from + Duration::from_millis(time);
    let mut tasks_done = JoinSet::new();
    for _ in 0..tasks {
        tasks_done.spawn(acquire_repeatedly(
            wanted.clone(),
            until + EXTRA_TIME,
            times,
        ));
    }
    SystemClock.sleep(UNCOUNTED_TIME).await;
    let before = sent()?;
    SystemClock.sleep(until.since(SystemClock.now())).await;
    let counted = sent()? - before;
    let mut holds = Vec::new();
    while let Some(own) = tasks_done.join_next().await {
        holds.extend(own??);
    }
    holds.retain(|(granted, _)| (counted_from..until).contains(granted));
    println!("{counted}");
    store.close().await;
    let nanos = |moment: &Moment| moment.since_boot().as_nanos();
    for (granted, released) in &holds {
        println!("{} {}", nanos(granted), nanos(released));
    }
    Ok(())
}

/// What each task of a process takes.
#[derive(Clone)]
enum Wanted {
    Lock(LockBuilder),
    Shared(SharedBuilder),
}

/// A held lock of any mode.
enum Held {
    Lock(Guard),
    Shared(SharedGuard),
}

impl Wanted {
    fn new(store: &Store, mode: Mode) -> distlock_core::Result<Self> {
        Ok(match mode {
            Mode::Exclusive => Self::Lock(store.locker().lock(NAME)),
            Mode::Fair => Self::Lock(store.locker().lock(NAME).fair()),
            Mode::Write => Self::Shared(RwLock::new(store, NAME)?.write()),
            Mode::Read | Mode::ReadWrite => Self::Shared(RwLock::new(store, NAME)?.read()),
            Mode::Permits => Self::Shared(Semaphore::new(store, NAME, CAPACITY)?.permits(1)),
        })
    }

    async fn acquire(&self, wait: Duration) -> distlock_core::Result<Held> {
        Ok(match self.clone() {
            Self::Lock(lock) => Held::Lock(lock.wait(wait).acquire().await?),
            Self::Shared(lock) => Held::Shared(lock.wait(wait).acquire().await?),
        })
    }
}

impl Held {
    async fn release(self) -> Released {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Shared(guard) => guard.release().await,
        }
    }
}

/// Takes and releases the lock until `until`. Returns the begin and the end of each hold.
async fn acquire_repeatedly(
    wanted: Wanted,
    until: Moment,
    (hold, pause): (Duration, Duration),
) -> anyhow::Result<Vec<(Moment, Moment)>> {
    let mut holds = Vec::new();
    while SystemClock.now() < until {
        let left = until.since(SystemClock.now());
        let guard = match wanted.acquire(left).await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Timeout => break,
            Err(error) => return Err(error.into()),
        };
        let granted = SystemClock.now();
        hold_for(hold.min(until.since(granted))).await;
        // The hold ends when the release is sent, because the next holder may get the lock before
        // the answer arrives.
        let releasing = SystemClock.now();
        let released = guard.release().await;
        ensure!(matches!(released, Released::Clean), "{released:?}");
        holds.push((granted, releasing));
        if !pause.is_zero() {
            hold_for(pause).await;
        }
    }
    Ok(holds)
}

/// Reads the next line of the input. The end of the input is an error.
async fn next_line(input: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<String> {
    input.next_line().await?.context("the input ended early")
}
