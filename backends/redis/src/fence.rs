//! The checking half of fencing, on Redis: changes of data that only the latest holder can make.
//!
//! The bar is a key beside the data, without an end. One script compares it with what the caller was judged by, raises it, and
//! changes the data; somebody else who raised it in between is looked at again. So no earlier holder can write afterwards.
//!
//! In a cluster all keys must be in one slot: give them the same part in braces. What a failover forgets, it forgets of the
//! bar too; the data that is left is that of an earlier holder then, and so is the bar. A bar that is deleted or evicted by
//! itself has seen nobody: where `maxmemory-policy` is `allkeys-..`, it does not protect.

use distlock_core::{Error, ErrorKind, Fence, FenceError, FenceGuard};
use redis::{FromRedisValue, ParsingError, Script, Value, aio::ConnectionLike};

use crate::error::{BACKEND, of_operation};

/// What an error calls the server: whose connection it is, the caller knows.
const AT: &str = "the server";

/// How often the bar may be raised by others between the look at it and the change.
const ATTEMPTS: u32 = 32;

/// What comes before the caller's script. Keys and arguments are then those that the caller gave. What this part is refused for,
/// before it has written, is refused in the server's own words; what comes later is not taken back and is told apart.
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

/// A change of data, as a script, that only the latest holder can make. The [module](self) has an
/// example.
#[derive(Clone, Debug)]
pub struct Fenced(Script);

impl Fenced {
    /// The change, in Lua, as the server's `EVAL` takes it: it finds its keys in `KEYS` and its arguments in `ARGV`, and its
    /// answer is what [`run`](Self::run) gives. Make it once, and run it often.
    #[must_use]
    pub fn new(change: &str) -> Self {
        Self(Script::new(&format!("{BEFORE}{change}{AFTER}")))
    }

    /// Makes the change if `fence` is the latest that was shown to the bar at `bar`, which it raises; or refuses it and changes
    /// nothing. Takes two round trips, and more where others raise the bar at the same time.
    ///
    /// # Errors
    /// [`FenceError::Refused`] for an earlier holder; [`FenceError::Failed`] when the server cannot be asked or refuses, with
    /// [`ErrorKind::Corrupt`] when something else stands where the bar should be. After [`ErrorKind::OutcomeUnknown`], and after
    /// [`ErrorKind::Internal`], which a script that fails on its way or answers an error ends with, the change may have been made,
    /// in part or as a whole; as a whole it was where its answer is not a `T`, which is `Internal` as well and says so. After any
    /// other kind nothing was changed.
    ///
    /// # Cancel safety
    /// The change may or may not be made when the future is dropped; as a whole, unless the script itself fails on its way.
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

/// What stands at the bar; empty where nothing does.
fn text(bar_holds: Value, bar: &str) -> Result<String, FenceError> {
    let text: Result<Option<String>, _> = FromRedisValue::from_redis_value(bar_holds);
    text.map(Option::unwrap_or_default).map_err(|_| {
        let problem = format!("the fence of {bar:?} cannot be read: it is no text");
        FenceError::Failed(Error::new(ErrorKind::Corrupt, problem).on(BACKEND))
    })
}

/// What the change was refused for in the middle does not take back what it did before.
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
