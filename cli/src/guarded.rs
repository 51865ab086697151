//! Runs a program, and turns its result or its panic into the exit code of the process.

use std::{
    io,
    panic::{self, UnwindSafe},
    process::{self, ExitCode},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use distlock::backend::{
    panics,
    threads::{missed, no_thread},
};
use tokio::runtime::{self, Runtime};

use crate::{
    exit::{Failure, Outcome, code},
    output, stderr,
};

/// Runs a program, and turns its result or its panic into the exit code of the process.
pub fn guarded(run: impl FnOnce() -> Outcome + UnwindSafe) -> ExitCode {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        // A driver may panic at a server's answer that it cannot parse. The library catches this
        // panic and turns it into an error, so nothing is printed here.
        if panics::is_caught() {
            tracing::debug!(%panicked, "a panic was caught");
            return;
        }
        if let Some(why) = missed(panicked.payload()) {
            let failure = Failure::from(no_thread(why));
            if IS_STARTING.load(Ordering::Relaxed) {
                let code = report(&failure);
                stderr::write_rest();
                process::exit(code.into());
            }
            let _ = MISSED_THREAD.set(failure);
            return;
        }
        // Earlier messages must be printed before this one.
        stderr::catch_up();
        print(panicked);
    }));
    let code = match panic::catch_unwind(run) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => report(&with_cause(failure)),
        Err(panic) => match missed(&*panic) {
            Some(why) => report(&no_thread(why).into()),
            // The panic hook has printed it.
            None => code::BUG,
        },
    };
    stderr::write_rest();
    ExitCode::from(code)
}

/// Whether [`start_runtime`] runs.
static IS_STARTING: AtomicBool = AtomicBool::new(false);

/// Starts a runtime. If the system refuses one of its threads, tokio panics, and would then wait
/// for ever for the threads that have started. So the panic hook ends the process, with the message
/// and the exit code of a missing thread. No work of a command has begun by then.
pub(crate) fn start_runtime(runtime: &mut runtime::Builder) -> io::Result<Runtime> {
    IS_STARTING.store(true, Ordering::Relaxed);
    let started = runtime.build();
    IS_STARTING.store(false, Ordering::Relaxed);
    started
}

/// Prints the message of a failure, if it has one, and returns its exit code.
fn report(failure: &Failure) -> u8 {
    if !failure.is_silent() {
        output::print_error(failure);
    }
    failure.code
}

/// The failure to start a thread, once the system has refused a thread to a driver.
static MISSED_THREAD: OnceLock<Failure> = OnceLock::new();

/// Adds the missing thread as the cause to the failure of a store that is not available: a task of
/// its driver may have needed that thread.
fn with_cause(failure: Failure) -> Failure {
    match MISSED_THREAD.get() {
        Some(cause) if failure.code == code::UNAVAILABLE => {
            failure.map_message(|says| format!("{says}: {cause}"))
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_a_thread_is_no_bug() {
        let code = guarded(|| panic!("OS can't spawn worker thread: {}", "none"));
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(69)));
    }

    #[test]
    fn a_panic_is_a_bug() {
        let code = guarded(|| panic!("as if there were a bug"));
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(70)));
    }
}
