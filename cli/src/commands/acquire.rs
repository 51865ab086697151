//! `distlock acquire`: takes a lock and leaves it held, with a ticket to renew and release it.

use std::{ffi::OsString, time::Duration};

use clap::Args;
use distlock::{LockName, Store};
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Failure, Outcome, code, code_of_signal},
    group::Signals,
    output::{self, format_seconds, whole_millis},
    values,
};

/// Take a lock for a script and print its ticket.
///
/// `distlock renew` and `distlock release` need the ticket.
/// Nothing renews the lock by itself: it ends after its TTL unless `distlock renew` is called in
/// time. The ticket is a secret: whoever has it can release the lock.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Acquire {
    /// The lock
    #[arg(value_name = "NAME")]
    name: OsString,
    /// How long the lock lasts without a renewal
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::parse_duration,
        allow_hyphen_values = true
    )]
    ttl: Duration,
    /// How long to wait while it is busy; 0 tries once
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = values::parse_wait,
        allow_hyphen_values = true,
    )]
    wait: Duration,
    /// Label that others see [default: user@host:pid]
    #[arg(long, value_name = "LABEL")]
    holder: Option<String>,
    /// Free text kept beside the lock
    #[arg(long, value_name = "TEXT")]
    meta: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  DISTLOCK_TICKET=$(distlock acquire deploy --ttl 5m) || exit
  export DISTLOCK_TICKET
  ...
  distlock renew
  ...
  distlock release

  distlock acquire deploy --ttl 30s --wait 0 --json";

impl Acquire {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let name = values::parse_lock_name(&self.name)?;
        // Signals are caught before a lock is held, so that none leaves a lock without a ticket.
        let mut signals = Signals::catch()?;
        let store = tokio::select! {
            store = context.open_locks(Sharing::Locks) => store?,
            signal = signals.next_ending() => return Ok(code_of_signal(signal.as_raw())),
        };
        let outcome = tokio::select! {
            // A ticket that was printed can release the lock, so a signal comes too late then.
            biased;
            outcome = self.acquire_and_print(&name, context, &store) => outcome,
            signal = signals.next_ending() => Ok(code_of_signal(signal.as_raw())),
        };
        drivers::close(&store).await;
        outcome
    }

    /// Acquires the lock and prints its ticket.
    async fn acquire_and_print(self, name: &LockName, context: &Context, store: &Store) -> Outcome {
        let locker = store.locker();
        let capabilities = locker.capabilities();
        if !capabilities.tickets {
            // This check comes before any wait: without a ticket nobody could release the lock.
            let backend = capabilities.backend;
            return Err(Failure::new(
                code::CONFIG,
                format!("{backend}: has no tickets: hold the lock with `distlock run`"),
            ));
        }
        let mut request = locker.lock(name).ttl(self.ttl).wait(self.wait);
        if let Some(holder) = self.holder {
            request = request.holder(values::parse_holder(&holder)?.as_str());
        }
        if let Some(meta) = self.meta {
            request = request.meta(meta);
        }
        let guard = request.acquire().await?;
        let (token, epoch) = (guard.token(), guard.epoch());
        let ticket = guard.into_ticket().await?;
        let printed = if context.wants_json() {
            output::print_json(&json!({
                "name": name.as_str(),
                "token": token,
                "epoch": epoch.as_str(),
                "ttl_ms": whole_millis(self.ttl),
                "ticket": ticket.to_string(),
            }))
        } else {
            output::print_line(&ticket)
        };
        if let Err(failure) = printed {
            // Nobody can use the lock without its ticket, so a closed pipe is a failure here.
            let after = match locker.release_ticket(&ticket).await {
                Ok(_) => "was released again".to_owned(),
                Err(_) => format!("stays held for up to {}", format_seconds(self.ttl)),
            };
            let why = failure.with_closed_pipe_as_failure();
            return Err(Failure::new(
                code::UNAVAILABLE,
                format!("{why}: nobody has the ticket, and the lock {after}"),
            ));
        }
        Ok(code::OK)
    }
}
