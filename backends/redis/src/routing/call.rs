//! One request about keys of one bucket: its commands, its preamble for tracking, and the reading
//! of its replies.

use distlock_core::{Error, ErrorKind, Result};
use redis::{Arg, Cmd, Pipeline, ServerError, Value};

use crate::{
    config::Endpoint,
    connection::Connection,
    error::{self, BACKEND},
    format::keys::Bucket,
    scripts::Script,
};

/// One request about keys of one bucket. If there is only one primary, the keys may be of several
/// buckets.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) bucket: Bucket,
    pub(super) commands: Vec<Cmd>,
    /// The script, if the call is one command that runs a script.
    pub(super) script: Option<&'static Script>,
    /// The read of the keys that the server must track. This read is a separate command before the
    /// others, because the server would otherwise track every key that a script is given.
    pub(super) tracked: Option<Cmd>,
    /// The reaction when the slot migrates and no server has all keys of the call.
    pub(super) slot_migrating: SlotMigrating,
    /// The server for the next attempt only, and whether the slot is still migrating to that
    /// server.
    pub(super) redirect: Option<(Endpoint, bool)>,
}

/// The reaction to a server that has only some of a call's keys.
#[derive(Debug)]
pub(super) enum SlotMigrating {
    /// The call is sent again. The slot has probably moved by then.
    Retry,
    /// The caller gets an answer at once, because its operations may succeed one by one.
    Split,
    /// This command replaces the call's commands from now on.
    SendInstead(Cmd),
}

impl Call {
    pub(crate) fn script(bucket: Bucket, command: Cmd, script: &'static Script) -> Self {
        Self {
            script: Some(script),
            ..Self::plain(bucket, vec![command])
        }
    }

    pub(crate) const fn plain(bucket: Bucket, commands: Vec<Cmd>) -> Self {
        Self {
            bucket,
            commands,
            script: None,
            tracked: None,
            slot_migrating: SlotMigrating::Retry,
            redirect: None,
        }
    }

    /// Chooses the reaction [`SlotMigrating::Split`]: the caller splits the call when
    /// [`Response::slot_migrating`](super::Response::slot_migrating) is `true`.
    #[must_use]
    pub(crate) fn split_while_migrating(mut self) -> Self {
        self.slot_migrating = SlotMigrating::Split;
        self
    }

    /// Chooses the reaction [`SlotMigrating::SendInstead`] with this command.
    #[must_use]
    pub(crate) fn replace_while_migrating(mut self, command: Cmd) -> Self {
        self.slot_migrating = SlotMigrating::SendInstead(command);
        self
    }

    /// Makes the server track these keys: it sends one push when one of them changes. The answer to
    /// a call without commands is the number of these keys that exist.
    #[must_use]
    pub(crate) fn tracking<'a>(mut self, keys: impl Iterator<Item = &'a str>) -> Self {
        let mut read = redis::cmd("EXISTS");
        keys.for_each(|key| {
            read.arg(key);
        });
        self.tracked = Some(read);
        self
    }

    /// Returns the command, if the call consists of a single command and nothing else.
    pub(super) fn only_command(&self) -> Option<&Cmd> {
        match &*self.commands {
            [command] if self.tracked.is_none() && self.redirect.is_none() => Some(command),
            _ => None,
        }
    }

    /// Returns whether the call goes to a server that does not have the whole slot yet.
    pub(super) const fn is_importing(&self) -> bool {
        matches!(self.redirect, Some((_, true)))
    }

    /// Returns the server that has the whole slot now, according to a `MOVED` redirect.
    pub(super) fn moved_to(&self) -> Option<Endpoint> {
        let (endpoint, importing) = self.redirect.as_ref()?;
        (!importing).then(|| endpoint.clone())
    }

    /// Returns whether the caller splits the call after this refusal.
    pub(super) fn splits_on(&self, refusal: &Refusal) -> bool {
        matches!(self.slot_migrating, SlotMigrating::Split)
            && error::code_and_detail(&refusal.says).0 == "TRYAGAIN"
    }

    /// Returns the read that makes the server track keys, if this attempt sends it.
    pub(super) fn tracking_read(&self) -> Option<&Cmd> {
        // The server accepts either `ASKING` or `CLIENT CACHING` before a command, not both. Slots
        // migrate rarely, so the call then goes without tracking.
        self.tracked.as_ref().filter(|_| !self.is_importing())
    }

    /// Appends the call to a pipeline. Returns the number of preamble commands.
    pub(super) fn write(&self, pipeline: &mut Pipeline, connection: &Connection) -> usize {
        let before = pipeline.len();
        if let Some(read) = self.tracking_read() {
            if connection.must_start_tracking() {
                pipeline
                    .cmd("CLIENT")
                    .arg("TRACKING")
                    .arg("ON")
                    .arg("OPTIN");
            }
            pipeline.cmd("CLIENT").arg("CACHING").arg("YES");
            pipeline.add_command(read.clone());
        }
        let preamble = pipeline.len() - before;
        for command in &self.commands {
            if self.is_importing() {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(command.clone());
        }
        preamble
    }

    /// Takes the call's own replies from the replies to the pipeline. `preamble` is the number of
    /// commands that [`Self::write`] put before the call's own commands to start tracking. The
    /// replies to the preamble are consumed and checked, and are not returned. A call without
    /// commands is an exception: it returns the last reply to the preamble.
    pub(super) fn read(
        &self,
        preamble: usize,
        replies: &mut impl Iterator<Item = Value>,
    ) -> CallResult {
        // All replies of this call are consumed. Otherwise the next call would read the remaining
        // ones.
        let before: Vec<_> = replies.take(preamble).collect();
        let unprepared = before.iter().find_map(refusal);
        let importing = self.is_importing();
        let (own, asking): (Vec<_>, Vec<_>) = replies
            .take(self.commands.len() * if importing { 2 } else { 1 })
            .enumerate()
            .partition(|(at, _)| !importing || at % 2 == 1);
        let own: Vec<_> = own.into_iter().map(|(_, reply)| reply).collect();
        // Without `ASKING` the server redirects the command to the slot's old server, which is not
        // the reason.
        let reason = || asking.iter().find_map(|(_, reply)| refusal(reply));
        let refused = own.iter().find_map(refusal);
        let refused = refused.map(|says| reason().unwrap_or(says));
        let carried_out = refused.is_none() && !own.is_empty();
        let of_preamble = unprepared.is_some();
        // The answer to a call without commands is the reply to its tracking read.
        let own = match before.last() {
            Some(read) if self.commands.is_empty() => vec![read.clone()],
            _ => own,
        };
        match refused.or(unprepared) {
            Some(says) => Err(Refusal {
                says,
                of_preamble,
                carried_out,
            }),
            None => Ok(own),
        }
    }

    /// Prepares another attempt after the server did not know the script's hash. That attempt sends
    /// the source, which also loads the script.
    pub(super) fn send_source(&mut self) {
        let Some((script, command)) = self.script.zip(self.commands.first_mut()) else {
            return;
        };
        let mut eval = Cmd::new();
        eval.arg("EVAL").arg(script.source);
        for argument in command.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                eval.arg(argument);
            }
        }
        *command = eval;
    }
}

pub(super) type CallResult = Result<Vec<Value>, Refusal>;

/// A server's refusal of a call.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) says: ServerError,
    /// Whether the preamble was refused, so that the server does not track the keys.
    pub(super) of_preamble: bool,
    /// Whether the call's own commands ran although the preamble was refused.
    pub(super) carried_out: bool,
}

impl Refusal {
    pub(super) fn of_all(says: ServerError) -> Self {
        Self {
            says,
            of_preamble: false,
            carried_out: false,
        }
    }

    pub(super) fn into_error(self, at: &str) -> Error {
        let error = error::of_reply(&self.says, at);
        if !self.carried_out {
            return error;
        }
        Error::new(
            ErrorKind::OutcomeUnknown,
            "the server carried the request out, and refused to track its keys",
        )
        .on(BACKEND)
        .caused_by(error)
    }
}

pub(super) fn refusal(reply: &Value) -> Option<ServerError> {
    match reply {
        Value::ServerError(refusal) => Some(refusal.clone()),
        _ => None,
    }
}
