//! `distlock release`: releases the lock of a ticket.

use clap::Args;
use serde_json::json;

use super::ticket;
use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Failure, Outcome, code},
    output::{self, format_seconds},
};

/// Release the lock of a ticket.
///
/// The ticket is read from DISTLOCK_TICKET or standard input.
/// Exit code 76 says that the lock was not this ticket's any more: it had expired, was released
/// before, or somebody else holds it. Nothing was changed then. While the store is away, this
/// command tries again for a few seconds.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Release {}

const EXAMPLES: &str = "\
Examples:
  distlock release                    (with DISTLOCK_TICKET set)
  distlock release < ticket";

impl Release {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let ticket = ticket::read_ticket()?;
        // Nobody else has the ticket, so without patience a short outage would keep the lock for
        // its whole TTL.
        let released = match context.open_locks_patiently(Sharing::Required).await {
            Ok(store) => {
                let released = store.locker().release_ticket(&ticket).await;
                drivers::close(&store).await;
                released.map_err(Failure::from)
            }
            Err(failure) => Err(failure),
        };
        released.map_err(|failure| match failure.code {
            code::UNAVAILABLE => failure.map_message(|why| {
                let left = format_seconds(ticket.ttl().duration());
                format!("{why}; {:?} stays held for up to {left}", ticket.name())
            }),
            _ => failure,
        })?;
        if context.wants_json() {
            output::print_json(&json!({
                "name": ticket.name().as_str(),
                "token": ticket.token(),
                "released": true,
            }))?;
        }
        Ok(code::OK)
    }
}
