//! `distlock renew`: renews the lock of a ticket.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::ticket;
use crate::{
    context::{Context, Sharing},
    exit::{Outcome, code},
    output::{self, whole_millis},
    values,
};

/// Renew the lock of a ticket.
///
/// The ticket is read from DISTLOCK_TICKET or standard input, and stays usable. Exit code 76 says
/// that the lock is not this ticket's any more: it expired, was released, or somebody else holds
/// it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Renew {
    /// How long the lock lasts from now [default: the TTL it was acquired with]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::parse_duration,
        allow_hyphen_values = true
    )]
    ttl: Option<Duration>,
}

const EXAMPLES: &str = "\
Examples:
  distlock renew                      (with DISTLOCK_TICKET set)
  distlock renew --ttl 10m < ticket";

impl Renew {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let ticket = ticket::read_ticket()?;
        let ttl = self.ttl.unwrap_or_else(|| ticket.ttl().duration());
        let store = context.open_locks(Sharing::Required).await?;
        let renewed = store.locker().renew_ticket(&ticket, ttl).await;
        store.close().await;
        renewed?;
        if context.wants_json() {
            output::print_json(&json!({
                "name": ticket.name().as_str(),
                "token": ticket.token(),
                "ttl_ms": whole_millis(ttl),
                "renewed": true,
            }))?;
        }
        Ok(code::OK)
    }
}
