//! `distlock release`: releases the lock of a ticket.

use clap::Args;
use serde_json::json;

use super::ticket;
use crate::{
    context::{Context, Sharing},
    exit::{Outcome, code},
    output,
};

/// Release the lock of a ticket.
///
/// The ticket is read from DISTLOCK_TICKET or standard input.
/// Exit code 76 says that the lock was not this ticket's any more: it had expired, was released
/// before, or somebody else holds it. Nothing was changed then.
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
        let store = context.open(Sharing::Required).await?;
        let released = store.locker().release_ticket(&ticket).await;
        store.close().await;
        released?;
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
