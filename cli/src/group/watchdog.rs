//! The supervisor's side of the watchdog: a process that ends the command when its supervisor
//! cannot, because the supervisor was killed or is stopped for longer than the lease.

use std::{io, process::Stdio, time::Duration};

use distlock::{Clock as _, Guard, LockWatch, Moment, SystemClock};
use rustix::process::Pid;
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, ChildStdin, Command},
    sync::oneshot,
    task::JoinHandle,
};

/// The first argument of the process. Only this tool passes it.
pub(crate) const NAME: &str = "watchdog";

/// The file of this program, as the system names it.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The messages to the watchdog are lines: `lock` with the token and the name of the lock, `group`
/// with the process group, each deadline as a number, and `done` when the watchdog is dismissed.
pub(super) const LOCK: &str = "lock ";
pub(super) const GROUP: &str = "group ";
pub(super) const DONE: &str = "done";

/// How often the deadline is checked during one lease. Renewals come at a third of the lease.
const CHECKS_PER_LEASE: u32 = 20;
/// The longest time for the watchdog to end after its dismissal, and for finding a group.
pub(super) const DISMISSAL_LIMIT: Duration = Duration::from_secs(1);
/// The pause between two checks whether a group still lives.
pub(super) const POLL_PAUSE: Duration = Duration::from_millis(20);

/// A watchdog that does not know its group yet. It starts before the command does. If the
/// supervisor dies before it has sent the group, the watchdog finds the group by the variables of
/// the lock in its environment.
#[derive(Debug)]
pub(crate) struct StartedWatchdog {
    process: Child,
    stdin: ChildStdin,
}

/// The watchdog of one group, as seen by its supervisor.
#[derive(Debug)]
pub(crate) struct Watchdog {
    process: Child,
    sending: JoinHandle<()>,
    done: oneshot::Sender<()>,
}

impl StartedWatchdog {
    /// Starts a watchdog for the command of this lock.
    pub(crate) async fn start(guard: &Guard) -> io::Result<Self> {
        // This path starts the same program even if its file was replaced meanwhile.
        let mut command = Command::new(OWN_PROGRAM);
        for (variable, _) in std::env::vars_os() {
            // The watchdog needs none of the variables of this tool.
            if variable.to_string_lossy().starts_with("DISTLOCK_") {
                command.env_remove(variable);
            }
        }
        let mut process = command
            .arg0("distlock")
            .arg(NAME)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // In a group of its own, the watchdog does not get the signals that the terminal sends
            // to our group.
            .process_group(0)
            .spawn()?;
        let stdin = process.stdin.take();
        let mut stdin = stdin.ok_or_else(|| io::Error::other("the watchdog has no input"))?;
        let told = format!(
            "{LOCK}{} {}\n{}\n",
            guard.token(),
            guard.name(),
            boot_micros(guard.watch().deadline())
        );
        stdin.write_all(told.as_bytes()).await?;
        Ok(Self { process, stdin })
    }

    /// Makes the watchdog watch `group`. The watchdog kills the group at the deadline of the lock,
    /// unless a later deadline arrives in time. When this process has ended, the watchdog asks the
    /// group to end at once.
    pub(crate) async fn watch_group(mut self, group: Pid, lock: LockWatch) -> io::Result<Watchdog> {
        let line = format!("{GROUP}{}\n", group.as_raw_nonzero());
        self.stdin.write_all(line.as_bytes()).await?;
        let (done, is_done) = oneshot::channel();
        Ok(Watchdog {
            process: self.process,
            sending: tokio::spawn(send_deadlines(self.stdin, lock, is_done)),
            done,
        })
    }
}

impl Watchdog {
    /// Dismisses the watchdog after the group has ended.
    pub(crate) async fn dismiss(mut self) {
        let _ = self.done.send(());
        let _ = self.sending.await;
        tokio::select! {
            _ = self.process.wait() => {}
            () = SystemClock.sleep(DISMISSAL_LIMIT) => drop(self.process.kill().await),
        }
    }
}

/// Sends each new deadline to the watchdog, and its dismissal at the end.
async fn send_deadlines(
    mut watchdog: ChildStdin,
    lock: LockWatch,
    mut is_done: oneshot::Receiver<()>,
) {
    let mut told = None;
    loop {
        let deadline = lock.deadline();
        if told != Some(deadline) {
            // The watchdog has ended, so there is nothing more to send.
            if watchdog
                .write_all(format!("{}\n", boot_micros(deadline)).as_bytes())
                .await
                .is_err()
            {
                return;
            }
            told = Some(deadline);
        }
        let left = deadline.since(SystemClock.now());
        let look = (left / CHECKS_PER_LEASE).max(POLL_PAUSE);
        tokio::select! {
            biased;
            // The other end is also dropped when the supervisor gives up. Then nothing is sent, and
            // the supervisor prints the reason.
            said = &mut is_done => {
                if said.is_ok() {
                    let _ = watchdog.write_all(format!("{DONE}\n").as_bytes()).await;
                }
                return;
            }
            () = SystemClock.sleep(look) => {}
        }
    }
}

/// A moment in microseconds since boot, the unit of the messages.
fn boot_micros(moment: Moment) -> u128 {
    moment.since_boot().as_micros()
}
