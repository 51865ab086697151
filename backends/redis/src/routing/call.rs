//! One request about keys of one bucket.

use distlock_core::{Error, ErrorKind, Result};
use redis::{Arg, Cmd, Pipeline, ServerError, Value};

use crate::{
    config::Endpoint,
    connection::Connection,
    error::{self, BACKEND},
    format::keys::Bucket,
    scripts::Script,
};

/// One request about keys of one bucket; of any buckets where there is one primary.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) bucket: Bucket,
    pub(super) commands: Vec<Cmd>,
    /// Where the only command runs a script.
    pub(super) script: Option<&'static Script>,
    /// Reads the keys that the server is to remember, and to tell about when they change. It goes before the commands: a
    /// script would make the server remember everything it was given.
    pub(super) tracked: Option<Cmd>,
    /// What becomes of it while its slot is on its way to another server, and neither has all of its keys.
    pub(super) slot_migrating: SlotMigrating,
    /// Where to send it this once instead, and whether the slot is on its way there.
    pub(super) redirect: Option<(Endpoint, bool)>,
}

/// What to do with a call when a server has some of its keys and not others.
#[derive(Debug)]
pub(super) enum SlotMigrating {
    /// It is sent again: the slot will have moved.
    Retry,
    /// Its operations may do better one by one, so its caller is told at once.
    Split,
    /// This is sent from now on.
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

    /// While its slot moves it is better split: [`Heard::slot_migrating`] asks for that, without a delay.
    #[must_use]
    pub(crate) fn split_while_migrating(mut self) -> Self {
        self.slot_migrating = SlotMigrating::Split;
        self
    }

    /// While its slot moves, this is to be sent instead.
    #[must_use]
    pub(crate) fn replace_while_migrating(mut self, command: Cmd) -> Self {
        self.slot_migrating = SlotMigrating::SendInstead(command);
        self
    }

    /// When one of these keys changes from now on, the server says so, once. A call without commands
    /// is answered with how many of the keys exist.
    #[must_use]
    pub(crate) fn tracking<'a>(mut self, keys: impl Iterator<Item = &'a str>) -> Self {
        let mut read = redis::cmd("EXISTS");
        keys.for_each(|key| {
            read.arg(key);
        });
        self.tracked = Some(read);
        self
    }

    /// Its command, if that is all there is to send.
    pub(super) fn only_command(&self) -> Option<&Cmd> {
        match &*self.commands {
            [command] if self.tracked.is_none() && self.redirect.is_none() => Some(command),
            _ => None,
        }
    }

    /// Whether it goes to a server that does not have the whole slot yet.
    pub(super) const fn is_importing(&self) -> bool {
        matches!(self.redirect, Some((_, true)))
    }

    /// The server that has the whole slot now, as another one said.
    pub(super) fn moved_to(&self) -> Option<Endpoint> {
        let (endpoint, importing) = self.redirect.as_ref()?;
        (!importing).then(|| endpoint.clone())
    }

    /// Whether its caller wants to split it after this.
    pub(super) fn splits_on(&self, refusal: &Refusal) -> bool {
        matches!(self.slot_migrating, SlotMigrating::Split)
            && error::said(&refusal.says).0 == "TRYAGAIN"
    }

    /// What has the server remember keys, where it is told to.
    pub(super) fn tracking_read(&self) -> Option<&Cmd> {
        // The server takes `ASKING` or `CLIENT CACHING` before a command, not both, and a slot seldom moves.
        self.tracked.as_ref().filter(|_| !self.is_importing())
    }

    /// Writes it, and how many commands come before its own.
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

    /// Its own replies out of those to what was written.
    pub(super) fn read(
        &self,
        preamble: usize,
        replies: &mut impl Iterator<Item = Value>,
    ) -> CallResult {
        // All of them, or the next call would read what is left.
        let before: Vec<_> = replies.take(preamble).collect();
        let unprepared = before.iter().find_map(refusal);
        let importing = self.is_importing();
        let own = replies
            .take(self.commands.len() * if importing { 2 } else { 1 })
            .enumerate()
            .filter(|(at, _)| !importing || at % 2 == 1)
            .map(|(_, reply)| reply)
            .collect::<Vec<_>>();
        let refused = own.iter().find_map(refusal);
        let carried_out = refused.is_none() && !own.is_empty();
        let of_preamble = unprepared.is_some();
        // Without commands of its own, what was read is the answer.
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

    /// The server does not know the script: send its text, which makes it known.
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

/// The server's no to a call.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) says: ServerError,
    /// Whether what comes before the call's own commands was refused, so that the server does not remember what was read.
    pub(super) of_preamble: bool,
    /// Whether its own commands were carried out all the same.
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
            "the server did as asked, and will not tell of changes",
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
