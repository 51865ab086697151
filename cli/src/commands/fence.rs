//! `distlock fence`: runs a command only for the latest holder.

use std::{ffi::OsString, os::unix::process::CommandExt as _, path::PathBuf, process::Command};

use clap::{Args, Subcommand};
use distlock::{
    Epoch, Fence as Shown, FencedFile, FencingToken, LockName, Store, backend::path_excerpt,
};
use distlock_recipes::RecordsFence;
use serde::Serialize;
use uuid::Uuid;

use super::run::start_failure;
use crate::{
    context::{Context, Sharing},
    exit::{Failure, Outcome, code},
    output,
    textfile::{Textfile, TextfileOption},
    values,
};

/// Run a command unless a later fencing token was here before.
///
/// A holder that is paused for longer than its lease goes on beside the next one, and no lock
/// can stop it: the resource has to refuse it. Where the resource cannot check tokens itself, this
/// is the gate before the step that matters: it remembers the highest token it has seen for NAME,
/// and runs CMD only for that token or a higher one. It ends with 76 and runs nothing otherwise. It
/// is a gate before the step, not a part of it: make the step short, such as one mv.
#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    override_usage = "distlock fence [OPTIONS] <NAME> -- <CMD>...\n       distlock fence check \
    <NAME>\n       distlock fence reset <NAME>",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
)]
pub(crate) struct Fence {
    #[command(subcommand)]
    only: Option<FenceAction>,
    #[command(flatten)]
    place: MemoryOption,
    #[command(flatten)]
    token: TokenOption,
    /// The resource
    #[arg(value_name = "NAME", required = true)]
    name: Option<OsString>,
    #[command(flatten)]
    metrics: TextfileOption,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Args, Debug)]
struct TokenOption {
    /// The fencing token [default: $DISTLOCK_TOKEN, which `distlock run` sets]
    #[arg(long, value_name = "TOKEN", value_parser = values::parse_token)]
    token: Option<FencingToken>,
}

impl TokenOption {
    /// The token of `--token`, or that of the environment.
    fn get(&self) -> Outcome<FencingToken> {
        if let Some(token) = self.token {
            return Ok(token);
        }
        let Some(token) = std::env::var_os(VARIABLE) else {
            let says = format!(
                "no token: give --token, or run it by `distlock run`, which sets {VARIABLE}"
            );
            return Err(Failure::usage(says));
        };
        let token = token.to_string_lossy();
        values::parse_token(&token)
            .map_err(|why| Failure::usage(format!("{VARIABLE} is {token:?}: {why}")))
    }
}

/// The place that remembers the highest token.
#[derive(Args, Debug)]
struct MemoryOption {
    /// Remember in this file, PATH.fence and PATH.fence.lock instead of the backend; for one NAME,
    /// on this host
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum FenceAction {
    /// Say whether a token would be let through, and run nothing: 0 if it would, 76 if not
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        /// The resource
        #[arg(value_name = "NAME")]
        name: OsString,
        #[command(flatten)]
        token: TokenOption,
        #[command(flatten)]
        place: MemoryOption,
    },
    /// Forget which tokens were seen, when the store that gives them out has lost its history and
    /// all former holders are known to be gone
    #[command(after_help = RESET_EXAMPLES)]
    Reset {
        /// The resource
        #[arg(value_name = "NAME")]
        name: OsString,
        #[command(flatten)]
        place: MemoryOption,
    },
}

const EXAMPLES: &str = "\
Exit codes:
  the command's own; 126 and 127 as in a shell; 76 a later token was seen, and
  the command was not run; 69, 77 and 78 where the tokens are remembered cannot
  be used

Examples:
  distlock run nightly -- sh -c 'pg_dump shop > $DISTLOCK_TOKEN.sql &&
    distlock fence nightly --file /backup/gate -- \\
      mv $DISTLOCK_TOKEN.sql shop.sql'
  distlock fence check nightly --backend redis://127.0.0.1 --token 41

docs/recipes.md has a nightly backup that survives being stopped in the middle.";

const CHECK_EXAMPLES: &str = "\
Examples:
  distlock fence check nightly --file /backup/gate --token 41
  distlock fence check nightly --token 41 --json | jq .highest_seen

JSON fields:
  name, token, highest_seen (null = nobody was seen), admitted";

const RESET_EXAMPLES: &str = "\
Examples:
  distlock fence reset nightly --file /backup/gate";

const VARIABLE: &str = "DISTLOCK_TOKEN";

/// The memory of tokens: a file or the store.
enum TokenMemory {
    File(FencedFile, LockName),
    Store(Store),
}

#[derive(Serialize)]
struct CheckJson<'a> {
    name: &'a str,
    token: FencingToken,
    highest_seen: Option<FencingToken>,
    admitted: bool,
}

impl Fence {
    pub(crate) async fn execute(mut self, context: &Context) -> Outcome {
        match self.only.take() {
            Some(FenceAction::Check { name, token, place }) => {
                let (name, token) = (values::parse_lock_name(&name)?, token.get()?);
                let memory = place.open(&name, context).await?;
                let highest = memory.highest(&name).await;
                memory.close().await;
                print_check(&name, token, highest?.as_ref(), context)
            }
            Some(FenceAction::Reset { name, place }) => {
                let name = values::parse_lock_name(&name)?;
                let memory = place.open(&name, context).await?;
                let reset = memory.reset(&name).await;
                memory.close().await;
                reset.map(|()| code::OK)
            }
            None => {
                let name = self.name.take().unwrap_or_default();
                let (name, token) = (values::parse_lock_name(&name)?, self.token.get()?);
                let mut textfile = Textfile::new(&self.metrics, "fence", &name);
                let outcome = match self.admit(&name, token, context).await {
                    Ok(()) => {
                        textfile.passed().await;
                        let mut command = Command::new(&self.command[0]);
                        let error = command.args(&self.command[1..]).exec();
                        Err(start_failure(&self.command[0], &error))
                    }
                    Err(failure) => Err(failure),
                };
                textfile.ended(outcome.as_ref().copied()).await;
                outcome
            }
        }
    }

    /// Lets a token through, or refuses it.
    async fn admit(&self, name: &LockName, token: FencingToken, context: &Context) -> Outcome<()> {
        let memory = self.place.open(name, context).await?;
        let admitted = memory.admit(name, &without_owner(token)).await;
        memory.close().await;
        admitted
    }
}

impl MemoryOption {
    /// Opens the file, or the store if no file was given.
    async fn open(&self, name: &LockName, context: &Context) -> Outcome<TokenMemory> {
        let Some(path) = &self.file else {
            return Ok(TokenMemory::Store(context.open(Sharing::Required).await?));
        };
        if context.has_backend_flag() || context.records_flag().is_some() {
            return Err(Failure::usage(
                "--file and --backend (or --records) exclude each other: give one of them",
            ));
        }
        let file = FencedFile::open(path)?;
        // The fence file contains the name of its resource, so two resources cannot share a file by
        // mistake.
        match file.read()? {
            Some(whose) if whose != name.as_str().as_bytes() => Err(Failure::usage(format!(
                "{} is for {:?}, not for {name:?}",
                path_excerpt(path),
                String::from_utf8_lossy(&whose)
            ))),
            _ => Ok(TokenMemory::File(file, name.clone())),
        }
    }
}

impl TokenMemory {
    /// Lets a token through and remembers it, or refuses it.
    async fn admit(&self, name: &LockName, fence: &Shown) -> Outcome<()> {
        let admitted = match self {
            Self::File(file, name) => file.write(fence, name.as_str().as_bytes()),
            Self::Store(store) => RecordsFence::new(store).admit(name.as_str(), fence).await,
        };
        admitted.map_err(|error| match error.refusal() {
            Some(why) => Failure::new(code::LOST, format!("{name:?} was not touched: {why}")),
            None => distlock::Error::from(error).into(),
        })
    }

    /// The highest token that was seen, if there is one.
    async fn highest(&self, name: &LockName) -> Outcome<Option<Shown>> {
        Ok(match self {
            Self::File(file, _) => file.highest()?,
            Self::Store(store) => RecordsFence::new(store).highest(name.as_str()).await?,
        })
    }

    /// Forgets all tokens.
    async fn reset(&self, name: &LockName) -> Outcome<()> {
        match self {
            Self::File(file, _) => file.reset()?,
            Self::Store(store) => RecordsFence::new(store).reset(name.as_str()).await?,
        }
        Ok(())
    }

    /// Closes the store.
    async fn close(self) {
        if let Self::Store(store) = self {
            store.close().await;
        }
    }
}

/// A fence state without an owner. A script knows only its token, so holders with the same token
/// count as one holder.
fn without_owner(token: FencingToken) -> Shown {
    Shown::new(token, Uuid::nil(), Epoch::new(""))
}

/// Prints whether a token would be let through. Fails if it would not.
fn print_check(
    name: &LockName,
    token: FencingToken,
    highest: Option<&Shown>,
    context: &Context,
) -> Outcome {
    let refused = highest.filter(|highest| highest.token > token);
    if context.wants_json() {
        output::print_json(&CheckJson {
            name: name.as_str(),
            token,
            highest_seen: highest.map(|highest| highest.token),
            admitted: refused.is_none(),
        })?;
    }
    match refused {
        None => Ok(code::OK),
        Some(highest) => Err(Failure::new(
            code::LOST,
            format!(
                "token {token} of {name:?} is refused: {} was seen",
                highest.token
            ),
        )),
    }
}
