//! Waiters that watch the file learn at once what other processes do.
//!
//! The clock of the waiter under test ends no long sleep, so that no poll and no renewal of a queue
//! entry becomes due: whatever the waiter learns, it learns by the watch.

use std::{
    cell::RefCell,
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::SystemTime,
};

use distlock_core::{Contender, Guard, Locker, Moment, Sleep};

use super::*;

const CHILD_PATH: &str = "DISTLOCK_TEST_WATCHED_FILE";
const LONG: Duration = Duration::from_secs(24 * 3600);
/// The time limit of a wait that ends much sooner.
const SOON: Duration = Duration::from_secs(20);
/// The waiters' entries and hints last for 4 s and 5 s, and nothing renews them in these tests. A
/// round that takes longer than this on a busy machine is repeated.
const ROUND: Duration = Duration::from_secs(3);

/// The machine's clock, on which a sleep of more than 0.1 s does not end.
#[derive(Debug)]
struct NoLongSleep;

impl Clock for NoLongSleep {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> SystemTime {
        SystemClock.wall()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        if time > Duration::from_millis(100) {
            Box::pin(std::future::pending())
        } else {
            SystemClock.sleep(time)
        }
    }
}

/// Another process that takes and releases a lock when it is told to.
struct OtherProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl OtherProcess {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "watch::other_process",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(CHILD_PATH, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self {
            child,
            input,
            output: BufReader::new(output).lines(),
        }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    /// Waits until the process says this. Its first line begins with words of the test's runner.
    fn says(&mut self, what: &str) {
        assert!(
            self.output.any(|line| line.unwrap().contains(what)),
            "the process has ended and never said {what}"
        );
    }

    fn does(&mut self, what: &str) {
        self.tell(what);
        self.says(what);
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process of the tests.
#[test]
#[ignore = "started by another test"]
#[expect(clippy::print_stdout, reason = "this is how it answers")]
fn other_process() {
    let path = std::env::var_os(CHILD_PATH).expect("set by the test that starts it");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Sqlite::open(SqliteConfig::new(path), Arc::new(SystemClock)).await;
        let locker = Locker::new(store.unwrap().lock());
        let mut held: Option<Guard> = None;
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let Some(wanted) = line.strip_prefix("take ") else {
                assert!(held.take().unwrap().release().await.is_clean());
                println!("{line}");
                continue;
            };
            held = Some(locker.lock(wanted).ttl(LONG).acquire().await.unwrap());
            println!("{line}");
        }
    });
}

async fn open(path: &Path) -> Sqlite {
    Sqlite::open(SqliteConfig::new(path), Arc::new(NoLongSleep))
        .await
        .unwrap()
}

/// Waits until the contender has the lock, and leaves its queue.
async fn win(mut contender: Box<dyn Contender>) {
    loop {
        contender.wait(LONG).await;
        if contender.attempt().await.unwrap().acquired().is_some() {
            break;
        }
    }
    contender.leave().await.unwrap();
}

/// Five times, lets a contender wait for a lock that `others_take`, until `others_release` it, and
/// checks that the contender has the lock then. One time is not enough: a connection that is opened
/// by root changes the watched files as well, and so may hide that a release was not told.
async fn wins_at_once(
    store: &Sqlite,
    mut others_take: impl AsyncFnMut(&str),
    mut others_release: impl AsyncFnMut(),
) {
    for _ in 0..5 {
        wins_once(store, &mut others_take, &mut others_release).await;
    }
}

/// Another lock is used if the other processes took too long.
async fn wins_once(
    store: &Sqlite,
    mut others_take: impl AsyncFnMut(&str),
    mut others_release: impl AsyncFnMut(),
) {
    for _ in 0..20 {
        let wanted = format!("{:?}", OwnerId::new().tag());
        others_take(&wanted).await;
        let joined = Instant::now();
        let mut contender = store.lock().contend(&request(&wanted)).await.unwrap();
        assert!(contender.attempt().await.unwrap().acquired().is_none());
        let (is_first, before) = (contender.is_first(), store.statements());
        let waiting = tokio::spawn(win(contender));
        if is_first {
            // Whoever becomes the first looks once. That look must not find the release.
            until("it has looked", async || store.statements() > before).await;
        }
        others_release().await;
        if joined.elapsed() < ROUND {
            let won = tokio::time::timeout(SOON, waiting).await;
            won.expect("the watch tells of the release").unwrap();
            return;
        }
        waiting.abort();
    }
    panic!("the other processes always took longer than {ROUND:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_in_another_process_wakes_without_a_poll() {
    let place = Place::new();
    let holder = &RefCell::new(OtherProcess::start(&place.path));
    wins_at_once(
        &open(&place.path).await,
        async |wanted| holder.borrow_mut().does(&format!("take {wanted}")),
        async || holder.borrow_mut().does("release"),
    )
    .await;
}

/// The contender under test is the second. It must learn first that the other one has left the
/// queue, and then that the other one has released the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_departure_in_another_process_makes_the_next_contender_the_first() {
    let place = Place::new();
    let others = || RefCell::new(OtherProcess::start(&place.path));
    let (holder, first) = (&others(), &others());
    let store = open(&place.path).await;
    wins_at_once(
        &store,
        async |wanted| {
            holder.borrow_mut().does(&format!("take {wanted}"));
            first.borrow_mut().tell(&format!("take {wanted}"));
            until("it waits", async || {
                let info = store.lock().inspect(&name(wanted)).await.unwrap();
                info.waiters == Some(1)
            })
            .await;
        },
        async || {
            holder.borrow_mut().does("release");
            first.borrow_mut().says("take");
            first.borrow_mut().does("release");
        },
    )
    .await;
}

/// Another file takes the place of the file while a waiter watches. So the files that others touch
/// are made anew, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_made_anew_is_watched_again() {
    let place = Place::new();
    let store = open(&place.path).await;
    // This contender keeps the watch of the old files.
    let waits_on = store.lock().contend(&request("b")).await.unwrap();
    assert_eq!(watches(), 1);
    for end in ["", "-wal", "-shm"] {
        let named = |name| place.path.with_file_name(format!("{name}{end}"));
        std::fs::rename(named("locks.db"), named("old.db")).unwrap();
    }
    let holder = &RefCell::new(OtherProcess::start(&place.path));
    // The first release may come before the new files are watched. The waiter looks once then.
    wins_at_once(
        &store,
        async |wanted| holder.borrow_mut().does(&format!("take {wanted}")),
        async || holder.borrow_mut().does("release"),
    )
    .await;
    waits_on.leave().await.unwrap();
}

/// A file without a write-ahead log has no files beside it that others could touch.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_a_file_that_cannot_be_watched_poll() {
    let place = Place::new();
    close(&place.open().await).await;
    place.sql("PRAGMA journal_mode = DELETE").await;
    let (clock, shared) = manual();
    let store = place.open_at(shared).await;
    let lock = store.lock();
    take(&lock, &common::request("a", LONG)).await;
    let contender = lock.contend(&request("a")).await.unwrap();
    assert_eq!(watches(), 0);
    let before = store.statements();
    let waiting = tokio::spawn(win(contender));
    until("it polls", async || {
        clock.advance(Duration::from_millis(1));
        store.statements() >= before + 10
    })
    .await;
    place
        .sql("UPDATE distributed_lock SET holder_id = NULL")
        .await;
    until("it polls", async || {
        clock.advance(Duration::from_millis(10));
        waiting.is_finished()
    })
    .await;
    waiting.await.unwrap();
}

/// A user has few inotify instances, so only a process that waits may keep one.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_nobody_waits() {
    let place = Place::new();
    let (one, other) = (place.open().await.lock(), place.open().await.lock());
    let held = request("a");
    let grant = take(&one, &held).await;
    assert_eq!(watches(), 0);
    let contenders = [
        one.contend(&request("a")).await.unwrap(),
        other.contend(&request("a")).await.unwrap(),
    ];
    assert_eq!(watches(), 1, "all handles of a process share it");
    one.release(&lease(&held, &grant)).await.unwrap();
    for contender in contenders {
        contender.leave().await.unwrap();
    }
    until("the watch ends", async || watches() == 0).await;
    let _waits_again = other.contend(&request("a")).await.unwrap();
    assert_eq!(watches(), 1);
}

/// The inotify instances of this process. Each test has a process of its own.
fn watches() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.filter(|file| {
        let target = std::fs::read_link(file.as_ref().unwrap().path());
        target.is_ok_and(|target| target == Path::new("anon_inode:inotify"))
    })
    .count()
}
