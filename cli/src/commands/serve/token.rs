//! `distlock serve token`: signs a token for a client of a lock server.

use std::time::Duration;

use clap::Args;
use distlock::SystemClock;
use distlock_server::{NamedFile, OperationGroup, TokenGrant, TokenKeys, mint_token};
use serde_json::json;

use crate::{
    context::Context,
    exit::{Outcome, code},
    output::{self, whole_millis},
    values,
};

/// Sign a token for a client of a lock server.
///
/// The client names it by the option `token_file` of its URL. The first key of the file signs; to
/// replace a key, put the new one above it, send HUP to the server, and take the old one away when
/// its tokens have expired.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct MintToken {
    /// File with the keys of the server
    #[arg(long, value_name = "PATH")]
    token_key: String,
    /// The client may use names that begin with this; several are possible, and '' means all
    #[arg(long, value_name = "TEXT", required = true)]
    prefix: Vec<String>,
    /// What it may do: acquire (and renew), release, inspect (and list), force-release, records
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "acquire,release",
        value_parser = values::parse_operation,
    )]
    operations: Vec<OperationGroup>,
    /// How long the token is valid, up to 366d
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1d",
        value_parser = values::parse_duration,
        allow_hyphen_values = true,
    )]
    ttl: Duration,
    /// Who uses the token, for the server's log
    #[arg(long, value_name = "NAME", default_value = "client")]
    subject: String,
}

const EXAMPLES: &str = "\
Examples:
  openssl rand -hex 32 > server.keys
  distlock serve token --token-key server.keys --prefix app/ > app.token
  distlock run --backend 'distlocks://locks.example?token_file=app.token' \\
      app/nightly -- ./backup.sh";

impl MintToken {
    pub(super) async fn execute(self, context: &Context) -> Outcome {
        let keys = TokenKeys::read(NamedFile {
            setting: "token_key",
            path: self.token_key,
        });
        let grant = TokenGrant {
            subject: self.subject,
            prefixes: self.prefix,
            operations: self.operations,
            ttl: self.ttl,
        };
        let token = mint_token(&keys.await?, grant, &SystemClock)?;
        if context.wants_json() {
            let expires = whole_millis(self.ttl);
            output::print_json(&json!({"token": token, "expires_in_ms": expires}))?;
        } else {
            output::print_line(token)?;
        }
        Ok(code::OK)
    }
}
