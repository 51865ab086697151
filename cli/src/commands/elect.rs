//! `distlock elect`: runs a command while this process leads, and takes part in the election again
//! after the command has ended.

use std::{ffi::OsString, process::ExitStatus, time::Duration};

use clap::Args;
use distlock::{Guard, HolderLabel, LockName, Locker, Moment};
use rustix::process::Signal;

use super::run::{
    End, Supervised, check_kill_after, code_of_status, command_with_lock, describe_wait,
    follow_wait,
};
use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Outcome, code, code_of_signal},
    group::{ProcessGroup, Signals},
    output,
    systemd::{self, ReadyOption},
    textfile::{Textfile, TextfileOption},
    values,
};

/// Run a command while leading an election.
///
/// Of all candidates one leads, and runs CMD; the others wait. The command is ended before the
/// lease can expire, as by distlock run, and only then does the next leader's command start. When
/// the command ends by itself, another candidate leads, and this one is a candidate again after a
/// pause: 1 s at first, twice as long each time, up to 1 min, and 1 s again after a command that
/// has run for a minute. TERM, INT, HUP and QUIT end the command and then this process.
///
/// The store must be named, so that all candidates ask the same one.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = "distlock elect [OPTIONS] <NAME> -- <CMD>...")]
pub(crate) struct Elect {
    /// The election
    #[arg(value_name = "NAME")]
    name: OsString,
    /// How long nobody leads after a leader has died; renewed at a third of it
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "15s",
        value_parser = values::parse_duration,
        allow_hyphen_values = true,
    )]
    ttl: Duration,
    /// Time between TERM and KILL when the lease cannot be renewed [default: 5s, but at most a
    /// quarter of the TTL]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::parse_duration,
        allow_hyphen_values = true
    )]
    kill_after: Option<Duration>,
    /// Run by sh at the start of a term, before the command; the term ends if it fails
    #[arg(long, value_name = "SCRIPT")]
    on_start: Option<OsString>,
    /// Run by sh after the end of a term, when another one may lead already; for half a minute at
    /// most, and not if this process is killed
    #[arg(long, value_name = "SCRIPT")]
    on_end: Option<OsString>,
    /// This candidate's name [default: user@host:pid]
    #[arg(long, value_name = "LABEL")]
    holder: Option<String>,
    #[command(flatten)]
    metrics: TextfileOption,
    #[command(flatten)]
    systemd: ReadyOption,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Environment of the command and of both scripts:
  DISTLOCK_NAME, DISTLOCK_TOKEN (the term, a fencing token), DISTLOCK_HOLDER

Exit codes:
  the command's own when a signal has ended both; 128 + the signal's number when
  the signal came during the wait; 76 when the lock was being lost then;
  126 and 127 when the command cannot be started; 69, 77 and 78 when the store
  cannot be used

Examples:
  distlock elect scheduler --backend redis://locks.example -- ./scheduler
  distlock elect cron --config locks.toml --on-start ./announce -- ./cron
  distlock inspect election/scheduler        (who leads)";

/// The first and the longest pause before this candidate takes part in the election again, after a
/// command that ended by itself.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The longest time that the script after a term may take.
const END_SCRIPT_LIMIT: Duration = Duration::from_secs(30);

/// How a term ended.
enum TermEnd {
    /// A signal asked this process to end. It ends with this code.
    Signalled(u8),
    /// The command, or the script of `--on-start`, ended by itself with this code.
    Ended(u8),
    /// The lock of the leader was lost.
    Lost,
}

impl Elect {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let name = values::parse_lock_name(&self.name)?;
        let mut textfile = Textfile::new(&self.metrics, "elect", &name);
        let outcome = self.open_and_stand(context, &name, &mut textfile).await;
        // The end of each term is written already.
        if let Err(failure) = &outcome {
            textfile.ended(Err(failure)).await;
        }
        outcome
    }

    /// Opens the store, takes part in the election and closes the store.
    async fn open_and_stand(
        &self,
        context: &Context,
        name: &LockName,
        textfile: &mut Textfile,
    ) -> Outcome {
        let name = LockName::new(format!("election/{name}"))?;
        check_kill_after(self.kill_after, self.ttl)?;
        let holder = match &self.holder {
            Some(holder) => values::parse_holder(holder)?,
            None => HolderLabel::of_this_process(),
        };
        // Signals are caught before a lock is held, so that no signal skips the release.
        let mut signals = Signals::catch()?;
        let store = tokio::select! {
            store = context.open_locks(Sharing::Hosts("elect")) => store?,
            signal = signals.next_ending() => return Ok(code_of_signal(signal.as_raw())),
        };
        let locker = store.locker();
        let outcome = self
            .stand_repeatedly(&locker, &name, &holder, &mut signals, textfile)
            .await;
        systemd::notify_stopping();
        drivers::close(&store).await;
        outcome
    }

    /// Takes part in the election again and again until a signal ends this process.
    async fn stand_repeatedly(
        &self,
        locker: &Locker,
        name: &LockName,
        holder: &HolderLabel,
        signals: &mut Signals,
        textfile: &mut Textfile,
    ) -> Outcome {
        let clock = locker.clock();
        let is_followed = systemd::wants_notifications();
        let mut pause = PAUSES.0;
        loop {
            let campaign = locker
                .lock_named(name)
                .ttl(self.ttl)
                .holder(holder.as_str())
                .wait_forever();
            self.systemd.notify_waiting(name);
            let describe = async || describe_wait(locker, name).await;
            let guard = tokio::select! {
                guard = campaign.acquire() => guard?,
                never = follow_wait(&*clock, describe, |_| {}), if is_followed => match never {},
                signal = signals.next_ending() => return Ok(code_of_signal(signal.as_raw())),
            };
            output::print_message(format_args!("leads {name:?}, term {}", guard.token()));
            let began = clock.now();
            textfile.started().await;
            let term = self.run_term(locker, &guard, holder, signals).await;
            textfile.command_ended();
            let token = guard.token();
            let _ = guard.release().await;
            let code = match &term {
                Ok(TermEnd::Signalled(code) | TermEnd::Ended(code)) => Ok(*code),
                Ok(TermEnd::Lost) => Ok(code::LOST),
                Err(failure) => Err(failure),
            };
            if let Ok(TermEnd::Lost | TermEnd::Signalled(code::LOST)) = &term {
                textfile.lost();
            }
            textfile.ended(code).await;
            output::print_message(format_args!("leads {name:?} no more"));
            if let Some(script) = &self.on_end {
                self.run_end_script(locker, script, name, holder, token)
                    .await;
            }
            match term? {
                TermEnd::Signalled(code) => return Ok(code),
                TermEnd::Lost => continue,
                TermEnd::Ended(_) => {}
            }
            if was_long(began, clock.now()) {
                pause = PAUSES.0;
            }
            output::print_message(format_args!(
                "is a candidate for {name:?} again in {pause:?}"
            ));
            tokio::select! {
                () = clock.sleep(pause) => {}
                signal = signals.next_ending() => return Ok(code_of_signal(signal.as_raw())),
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Runs one term: the script of `--on-start`, and then the command. The term ends when the
    /// script fails, when the command ends or when the lock is lost.
    async fn run_term(
        &self,
        locker: &Locker,
        guard: &Guard,
        holder: &HolderLabel,
        signals: &mut Signals,
    ) -> Outcome<TermEnd> {
        let clock = locker.clock();
        let supervised = Supervised {
            command: &self.command,
            holder,
            kill_after: self.kill_after,
        };
        if let Some(script) = &self.on_start {
            let script = shell_words(script);
            let start = Supervised {
                command: &script,
                ..supervised
            };
            let end = match start.run(guard, signals, &*clock).await {
                Err(failure) if failure.code == code::LOST => return Ok(TermEnd::Lost),
                end => end?,
            };
            match term_end(end, "--on-start") {
                TermEnd::Ended(code::OK) => {}
                term => return Ok(term),
            }
        }
        self.systemd.notify_held(guard.into());
        match supervised.run(guard, signals, &*clock).await {
            // The lease expired before the command could start, because this process was stopped.
            Err(failure) if failure.code == code::LOST => Ok(TermEnd::Lost),
            end => Ok(term_end(end?, "the command")),
        }
    }

    /// Runs the script of `--on-end` after a term. No lock protects it any more.
    async fn run_end_script(
        &self,
        locker: &Locker,
        script: &OsString,
        name: &LockName,
        holder: &HolderLabel,
        token: distlock::FencingToken,
    ) {
        let words = shell_words(script);
        let mut command = command_with_lock(&words, name, token, holder);
        let mut group = match ProcessGroup::spawn(&mut command) {
            Ok(group) => group,
            Err(error) => {
                return output::print_message(format_args!("--on-end cannot be run: {error}"));
            }
        };
        tokio::select! {
            ended = group.wait_for_leader() => if !ended.as_ref().is_ok_and(ExitStatus::success) {
                output::print_message(format_args!("--on-end failed: {ended:?}"));
            },
            () = locker.clock().sleep(END_SCRIPT_LIMIT) => {
                output::print_message(format_args!(
                    "--on-end has not ended after {END_SCRIPT_LIMIT:?}: killing it"
                ));
            }
        }
        group.signal(Signal::KILL);
    }
}

/// The words that run a script with the shell.
fn shell_words(script: &OsString) -> [OsString; 3] {
    ["/bin/sh".into(), "-c".into(), script.clone()]
}

/// Computes from the end of the command how the term ended.
fn term_end(end: End, what: &str) -> TermEnd {
    match end {
        End::LockLost { asked_to_end: None } => TermEnd::Lost,
        End::LockLost {
            asked_to_end: Some(_),
        } => TermEnd::Signalled(code::LOST),
        End::ByItself {
            status,
            asked_to_end: Some(_),
            ..
        } => TermEnd::Signalled(code_of_status(status)),
        End::ByItself { status, .. } => {
            if !status.success() {
                output::print_message(format_args!("{what} ended with {status}"));
            }
            TermEnd::Ended(code_of_status(status))
        }
    }
}

/// Whether a term was so long that the next pause is reset to the shortest pause.
fn was_long(began: Moment, ended: Moment) -> bool {
    ended.since(began) >= PAUSES.1
}
