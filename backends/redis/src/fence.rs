//! The check of fencing tokens on Redis: changes of data that only the latest holder can make.
//!
//! The fence of some data is a key beside the data, called the bar, which has the fence state and
//! never expires. A script compares the bar with the value that this caller's token was checked
//! against. If the bar is unchanged, the script raises the bar and changes the data. Otherwise
//! another holder has raised the bar, and the token is checked again. So no earlier holder can
//! write after a later one.
//!
//! In a cluster all keys must be in one slot, so give them the same part in braces. A failover may
//! lose the latest writes, including those of the bar. The data and the bar are then those of an
//! earlier holder. A bar that is deleted or evicted alone refuses nobody: with `maxmemory-policy`
//! `allkeys-..` the bar does not protect the data.

use distlock_core::{Error, ErrorKind, Fence, FenceError, FenceGuard};
use redis::{FromRedisValue, ParsingError, Script, Value, aio::ConnectionLike};

use crate::error::{BACKEND, of_operation};

/// The name of the server in errors. The caller makes the connection and knows its address.
const AT: &str = "the server";

/// The limit of attempts. An attempt fails if another holder writes its fence state to the bar
/// after this caller's read of the bar and before the script runs.
const ATTEMPTS: u32 = 32;

/// The text before the caller's script. This text removes its own entries from `KEYS` and `ARGV`,
/// so that the caller's entries remain. If the server refuses a command of this text, nothing was
/// written, and the refusal has the server's own words. A later failure undoes nothing, and `AFTER`
/// reports it in another form.
const BEFORE: &str = "
local seen = redis.call('GET', KEYS[1]) or ''
if seen ~= ARGV[1] then return {0, seen} end
redis.call('SET', KEYS[1], ARGV[2])
local KEYS, ARGV = {unpack(KEYS, 2)}, {unpack(ARGV, 3)}
local function change()
";

const AFTER: &str = "
end
local fine, done = pcall(change)
local function error_in(part)
    if type(part) ~= 'table' then return nil end
    if type(part.err) == 'string' then return part.err end
    for _, inner in pairs(part) do
        local found = error_in(inner)
        if found then return found end
    end
end
local why = error_in(done)
if not fine then why = why or tostring(done) end
if why then return {2, why} end
if done == nil then done = false end
return {1, done}
";

/// A change of data, as a script, that only the latest holder can make.
#[derive(Clone, Debug)]
pub struct Fenced(Script);

impl Fenced {
    /// Creates the change from a Lua text in the form for the server's `EVAL`. The text finds its
    /// keys in `KEYS` and its arguments in `ARGV`, and [`run`](Self::run) returns its answer.
    /// Create the change once and run it many times.
    #[must_use]
    pub fn new(change: &str) -> Self {
        Self(Script::new(&format!("{BEFORE}{change}{AFTER}")))
    }

    /// Makes the change and raises the bar at `bar`, unless a later fence than `fence` was shown to
    /// that bar before. In that case the call is refused and changes nothing. A call takes two
    /// round trips, and more if other holders raise the bar at the same time.
    ///
    /// # Errors
    /// [`FenceError::Refused`] for an earlier holder. [`FenceError::Failed`] when the server cannot
    /// be asked or refuses, with these kinds:
    ///
    /// - [`ErrorKind::Corrupt`]: the bar's key has foreign content. Nothing was changed.
    /// - [`ErrorKind::OutcomeUnknown`]: the change may have been made.
    /// - [`ErrorKind::Internal`]: the script failed halfway or answered with an error, so the
    ///   change may have been made in part or as a whole. Or the change was made and its answer is
    ///   not a `T`; the message says so.
    /// - Any other kind: nothing was changed.
    ///
    /// # Cancel safety
    /// When the future is dropped, the change is either made or not. The change is made as a whole,
    /// unless the script itself fails halfway.
    pub async fn run<T: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        bar: &str,
        fence: &Fence,
        keys: &[&str],
        args: &[&str],
    ) -> Result<T, FenceError> {
        let mut look = redis::cmd("GET");
        look.arg(bar);
        let seen = look.query_async(connection).await.map_err(failed)?;
        let mut seen = text(seen, bar)?;
        for _ in 0..ATTEMPTS {
            let kept = Some(&*seen).filter(|seen| !seen.is_empty());
            let raised = FenceGuard::raised(kept, bar, fence)?;
            let mut call = self.0.key(bar);
            for key in keys {
                call.key(*key);
            }
            call.arg(&seen).arg(raised);
            for arg in args {
                call.arg(*arg);
            }
            let (came_to, said): (u8, Option<Value>) =
                call.invoke_async(connection).await.map_err(failed)?;
            let said = said.unwrap_or(Value::Nil);
            seen = match came_to {
                0 => text(said, bar)?,
                1 => return T::from_redis_value(said).map_err(not_as_asked),
                _ => return Err(broke_off(said)),
            };
        }
        Err(FenceError::Failed(
            Error::new(
                ErrorKind::Unavailable,
                format!("others kept raising the fence {bar:?}"),
            )
            .on(BACKEND),
        ))
    }
}

/// Returns the text of the bar; it is empty if the key is missing.
fn text(bar_holds: Value, bar: &str) -> Result<String, FenceError> {
    let text: Result<Option<String>, _> = FromRedisValue::from_redis_value(bar_holds);
    text.map(Option::unwrap_or_default).map_err(|_| {
        let problem = format!("the fence of {bar:?} cannot be read: it is no text");
        FenceError::Failed(Error::new(ErrorKind::Corrupt, problem).on(BACKEND))
    })
}

/// Returns the error for a change that failed halfway. The first part of the change is not undone.
fn broke_off(why: Value) -> FenceError {
    let why = match why {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        other => format!("{other:?}"),
    };
    internal("the script failed, and may have changed something", why)
}

fn not_as_asked(error: ParsingError) -> FenceError {
    let message = "the change was made, and its answer is not of the type asked for";
    internal(message, redis::RedisError::from(error).to_string())
}

fn internal(message: &str, cause: String) -> FenceError {
    let error = Error::new(ErrorKind::Internal, message).on(BACKEND);
    FenceError::Failed(error.caused_by(cause))
}

fn failed(error: redis::RedisError) -> FenceError {
    FenceError::Failed(of_operation(error, AT))
}
