//! `distlock gateway token`: signs a login token, for trying things out.

use std::time::Duration;

use clap::Args;
use distlock_gateway::{Uid, mint, mint_for_class};
use distlock_kickout::Class;
use serde_json::json;

use super::settings::Settings;
use crate::{
    context::Context,
    exit::{Outcome, code},
    output::{self, whole_millis},
    values,
};

/// Sign a login token, for trying things out.
///
/// The key is `token_key` of the configuration file's [gateway] table, or
/// DISTLOCK_GATEWAY_TOKEN_KEY.
#[derive(Args, Debug)]
#[command(after_help = TOKEN_EXAMPLES)]
pub(super) struct MintToken {
    /// The account
    #[arg(long, value_name = "UID")]
    uid: String,
    /// How long the token is valid, up to 24h
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        value_parser = values::parse_duration,
        allow_hyphen_values = true,
    )]
    ttl: Duration,

    /// Class of the device, whatever its client says (the client's word unless given)
    #[arg(long)]
    class: Option<String>,
}

const TOKEN_EXAMPLES: &str = "\
Examples:
  distlock gateway token --uid alice
  distlock gateway token --uid alice --ttl 10m --json";

impl MintToken {
    pub(super) fn execute(self, context: &Context) -> Outcome {
        let settings = Settings::read(context)?;
        let key = settings
            .config
            .key()
            .map_err(|it| settings.with_origin(it))?;
        let uid = Uid::new(&self.uid)?;
        let token = match &self.class {
            Some(class) => mint_for_class(&key, &uid, &Class::new(class)?, self.ttl)?,
            None => mint(&key, &uid, self.ttl)?,
        };
        if context.wants_json() {
            output::print_json(
                &json!({"uid": self.uid, "token": token, "expires_in_ms": whole_millis(self.ttl)}),
            )?;
        } else {
            output::print_line(token)?;
        }
        Ok(code::OK)
    }
}
