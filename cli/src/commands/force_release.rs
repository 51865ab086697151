//! `distlock force-release`: frees a lock that somebody else holds.

use std::ffi::OsString;

use clap::Args;
use distlock::{FencingToken, Forced};
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    exit::{Failure, Outcome, code},
    output, values,
};

/// Free a lock whoever holds it, if its token is the one you saw.
///
/// The holder learns of it with its next renewal, or at its deadline; until then it still believes
/// it holds the lock, and only a resource that checks fencing tokens refuses it. Exit code 76 says
/// that the lock is not held with that token.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ForceRelease {
    /// The lock
    #[arg(value_name = "NAME")]
    name: OsString,
    /// The token that `distlock inspect` showed
    #[arg(
        long,
        value_name = "TOKEN",
        value_parser = values::parse_token,
        allow_hyphen_values = true
    )]
    token: FencingToken,
}

const EXAMPLES: &str = "\
Examples:
  distlock inspect nightly
  distlock force-release nightly --token 1767225600000000";

impl ForceRelease {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let name = values::parse_lock_name(&self.name)?;
        let store = context.open_locks(Sharing::Required).await?;
        let forced = store.locker().force_release(&name, self.token).await;
        store.close().await;
        let forced = forced?;
        let refused = |why: String| {
            Err(Failure::new(
                code::LOST,
                format!("{name:?} {why}: nothing was changed"),
            ))
        };
        match forced {
            Forced::Released => {}
            Forced::NotHeld => return refused("is free".into()),
            Forced::OtherToken(token) => {
                return refused(format!("is held with token {token}, not {}", self.token));
            }
        }
        if context.wants_json() {
            output::print_json(
                &json!({"name": name.as_str(), "token": self.token, "released": true}),
            )?;
        } else {
            output::print_message(format_args!("{name:?} was released by force"));
        }
        Ok(code::OK)
    }
}
